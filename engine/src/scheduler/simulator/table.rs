//! What a device takes for work, as a file: measured on a card, or learned by a running engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Truth;
use crate::families::EncoderPart;
use crate::scheduler::lanes::Split;
use crate::scheduler::snapshot::Tower;
use crate::scheduler::{CostModel, Counts, Kind, Work};

/// Times of one model on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    /// Device.
    pub device: String,
    /// Where the figures come from.
    pub source: String,
    /// Layers of the vision and of the audio tower.
    pub layers: [usize; 2],
    /// Times.
    pub times: Vec<CostTime>,
    /// What partitions of the device cost and give.
    #[serde(default)]
    pub splits: Vec<CostSplit>,
}

/// The time of one kind of work at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTime {
    /// `decode`, `lone_decode`, `prefill`, `ride` (what prompt rows add to a decode step), or of a tower `vision_begin`, `vision_layer`, `vision_enter`,
    /// `vision_project`, `vision_finish`, `vision_leave`, and the same of `audio`.
    pub kind: String,
    /// Sequences, rows, patches or frames.
    pub size: usize,
    /// Milliseconds.
    pub ms: f64,
    /// Measurements behind it.
    #[serde(default)]
    pub samples: u32,
}

/// A partition, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostSplit {
    /// Multiprocessors that decode gets.
    pub units: usize,
    /// Sequences of the decode steps.
    pub batch: usize,
    /// Decode step as a multiple of the step alone.
    pub decode: f64,
    /// Encoder rate as a share of the rate alone.
    pub encode: f64,
}

const PARTS: [(EncoderPart, &str); 4] = [
    (EncoderPart::Enter, "enter"),
    (EncoderPart::Project, "project"),
    (EncoderPart::Finish, "finish"),
    (EncoderPart::Leave, "leave"),
];

pub(crate) fn kind_name(kind: Kind) -> String {
    let tower = |tower| if tower == Tower::Vision { "vision" } else { "audio" };
    match kind {
        Kind::Decode => "decode".into(),
        Kind::LoneDecode => "lone_decode".into(),
        Kind::Prefill => "prefill".into(),
        Kind::Ride => "ride".into(),
        Kind::Begin(of) => format!("{}_begin", tower(of)),
        Kind::Layer(of) => format!("{}_layer", tower(of)),
        Kind::Rows(of, part) => {
            let name = PARTS.iter().find(|(known, _)| *known == part).map_or("", |(_, name)| name);
            format!("{}_{name}", tower(of))
        }
    }
}

pub(crate) fn kind_of(name: &str) -> Option<Kind> {
    match name {
        "decode" => return Some(Kind::Decode),
        "lone_decode" => return Some(Kind::LoneDecode),
        "prefill" => return Some(Kind::Prefill),
        "ride" => return Some(Kind::Ride),
        _ => {}
    }
    let (tower, part) = name.split_once('_')?;
    let tower = match tower {
        "vision" => Tower::Vision,
        "audio" => Tower::Audio,
        _ => return None,
    };
    match part {
        "begin" => Some(Kind::Begin(tower)),
        "layer" => Some(Kind::Layer(tower)),
        _ => PARTS.iter().find(|(_, name)| *name == part).map(|(part, _)| Kind::Rows(tower, *part)),
    }
}

impl CostTable {
    /// Reads a table; an error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for time in &table.times {
            if kind_of(&time.kind).is_none() {
                return Err(format!("unknown kind of work {:?}", time.kind));
            }
            if !(time.ms.is_finite() && time.ms > 0.0 && time.size > 0) {
                return Err(format!("{} of size {} takes {} ms", time.kind, time.size, time.ms));
            }
        }
        if table.splits.iter().any(|split| !(split.decode >= 1.0 && split.encode > 0.0 && split.encode <= 1.0)) {
            return Err("a split slows decode by a factor of at least 1 and keeps a share of the encoder's rate".into());
        }
        Ok(table)
    }

    /// A model of costs that knows this table.
    pub(crate) fn model(&self, splits: bool) -> CostModel {
        let mut cost = CostModel::new(vec![Counts { parameters: 3_000_000_000, weight_bytes: 6_000_000_000 }]);
        for time in &self.times {
            if let Some(kind) = kind_of(&time.kind) {
                cost.observe(Work { model: 0, kind, size: time.size }, Duration::from_secs_f64(time.ms / 1e3));
            }
        }
        if splits {
            let split = |s: &CostSplit| Split { units: s.units, batch: s.batch, decode: s.decode, encode: s.encode };
            cost.set_splits(self.splits.iter().map(split).collect());
        }
        cost
    }

    /// The table as the truth of a simulation: straight lines between its sizes, in proportion beyond them; parts of a
    /// layer that it does not know are shares of the layer.
    pub(crate) fn truth(&self) -> Truth {
        let mut lines: std::collections::BTreeMap<Kind, Vec<(f64, f64)>> = std::collections::BTreeMap::new();
        for time in &self.times {
            if let Some(kind) = kind_of(&time.kind) {
                lines.entry(kind).or_default().push((time.size as f64, time.ms / 1e3));
            }
        }
        lines.values_mut().for_each(|points| points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let time = move |work: Work| {
            let at = |kind: Kind| lines.get(&kind).map(|points| between(points, work.size as f64));
            let seconds = at(work.kind).unwrap_or_else(|| match work.kind {
                Kind::LoneDecode => at(Kind::Decode).unwrap_or(1e-3),
                // The rate of the longest prompt, in which the weights' stream is the smallest part.
                Kind::Ride => {
                    let longest = lines.get(&Kind::Prefill).and_then(|points| points.last());
                    longest.map_or(1e-3, |(rows, seconds)| seconds / rows * work.size as f64)
                }
                Kind::Rows(tower, part) => {
                    let share = match part {
                        EncoderPart::Enter | EncoderPart::Leave => 0.15,
                        EncoderPart::Project => 0.3,
                        EncoderPart::Finish => 0.7,
                    };
                    share * at(Kind::Layer(tower)).unwrap_or(1e-3)
                }
                Kind::Begin(tower) => 0.02 * at(Kind::Layer(tower)).unwrap_or(1e-3),
                Kind::Decode | Kind::Prefill | Kind::Layer(_) => 1e-3,
            });
            Duration::from_secs_f64(seconds)
        };
        Truth { time: Box::new(time), layers: self.layers }
    }
}

fn between(points: &[(f64, f64)], size: f64) -> f64 {
    let above = points.iter().position(|point| point.0 >= size);
    match above {
        Some(0) => {
            // Below the smallest size a launch costs about what the smallest costs, half of it at least.
            let (x, y) = points[0];
            y * (0.5 + 0.5 * size / x)
        }
        Some(n) => {
            let ((x0, y0), (x1, y1)) = (points[n - 1], points[n]);
            y0 + (y1 - y0) * (size - x0) / (x1 - x0).max(1e-9)
        }
        None => points.last().map_or(1e-3, |(x, y)| y * size / x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_name() {
        let mut kinds = vec![Kind::Decode, Kind::LoneDecode, Kind::Prefill, Kind::Ride];
        for tower in [Tower::Vision, Tower::Audio] {
            kinds.extend([Kind::Begin(tower), Kind::Layer(tower)]);
            kinds.extend(PARTS.map(|(part, _)| Kind::Rows(tower, part)));
        }
        for kind in kinds {
            assert_eq!(kind_of(&kind_name(kind)), Some(kind));
        }
        assert_eq!((kind_of("vision_"), kind_of("decoder")), (None, None));
    }

    #[test]
    fn a_broken_table_says_what_is_wrong() {
        let table = |kind: &str, ms: f64| {
            let text = format!(
                r#"{{"device":"d","source":"s","layers":[1,1],"times":[{{"kind":"{kind}","size":1,"ms":{ms}}}]}}"#
            );
            CostTable::parse(&text)
        };
        assert!(table("decode", 2.0).is_ok());
        assert!(table("dekode", 2.0).expect_err("unknown").contains("dekode"));
        assert!(table("decode", 0.0).expect_err("no time").contains("0 ms"));
    }
}
