//! Learned costs as a file, so that a service that starts again need not guess: written when the engine stops, read when
//! it starts. Costs of another device, or of a model whose weights changed, are left alone.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::simulator::table::{CostTime, kind_name, kind_of};
use super::{CostModel, Work};

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedCosts {
    /// Of each model on each device that it ran on.
    pub models: Vec<LearnedModel>,
}

/// What one model takes on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedModel {
    /// Device.
    pub device: String,
    /// Name of the model.
    pub model: String,
    /// Bytes of its weights, to tell it from another of its name.
    pub weight_bytes: u64,
    /// Times.
    pub times: Vec<CostTime>,
}

impl LearnedCosts {
    /// Reads a file; one that is missing holds nothing.
    pub fn read(path: &Path) -> Result<Self, String> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Writes the file whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&fresh, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(&fresh, path)
    }

    /// Teaches a model of costs what is known of this model, its `index`-th.
    pub(crate) fn teach(&self, cost: &mut CostModel, index: usize, of: Identity<'_>) {
        for known in self.models.iter().filter(|known| of.is(known)) {
            for time in &known.times {
                let sane = time.ms.is_finite() && time.ms > 0.0 && time.ms < 1e7 && time.size > 0;
                if let Some(kind) = kind_of(&time.kind).filter(|_| sane) {
                    cost.recall(Work { model: index, kind, size: time.size }, time.ms / 1e3, time.samples);
                }
            }
        }
    }

    /// Replaces what is known of this model.
    pub(crate) fn keep(&mut self, cost: &CostModel, index: usize, of: Identity<'_>) {
        let times = cost.learned(index).map(|(kind, size, seconds, samples)| CostTime {
            kind: kind_name(kind),
            size,
            ms: seconds * 1e3,
            samples,
        });
        let times: Vec<_> = times.collect();
        if times.is_empty() {
            return;
        }
        self.models.retain(|known| !of.is(known));
        let (device, model) = (of.device.to_owned(), of.model.to_owned());
        self.models.push(LearnedModel { device, model, weight_bytes: of.weight_bytes, times });
    }
}

/// A model on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity<'a> {
    pub(crate) device: &'a str,
    pub(crate) model: &'a str,
    pub(crate) weight_bytes: u64,
}

impl Identity<'_> {
    fn is(self, known: &LearnedModel) -> bool {
        (self.device, self.model, self.weight_bytes) == (&known.device, &known.model, known.weight_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scheduler::{Counts, Kind, Tower};

    #[test]
    fn what_was_learned_is_known_after_a_restart() {
        let fresh = || CostModel::new(vec![Counts { parameters: 1_000_000, weight_bytes: 4_000_000 }]);
        let of = Identity { device: "cpu", model: "m", weight_bytes: 4 };
        let layer = Work { model: 0, kind: Kind::Layer(Tower::Vision), size: 700 };
        let mut cost = fresh();
        (0..20).for_each(|_| cost.observe(layer, Duration::from_millis(9)));
        let mut costs = LearnedCosts::default();
        costs.keep(&cost, 0, of);
        costs.keep(&cost, 0, of);
        assert_eq!(costs.models.len(), 1, "kept once");
        let path = std::env::temp_dir().join(format!("weft-learned-{}.json", std::process::id()));
        costs.write(&path).expect("writes");
        let read = LearnedCosts::read(&path).expect("reads");
        std::fs::remove_file(&path).expect("removes");
        let mut again = fresh();
        read.teach(&mut again, 0, of);
        let difference = again.predict(layer).as_secs_f64() / cost.predict(layer).as_secs_f64();
        assert!((difference - 1.0).abs() < 1e-6, "{difference}");
        // What was read can be unlearned: the device may be a busier one today.
        (0..30).for_each(|_| again.observe(layer, Duration::from_millis(3)));
        assert!(again.predict(layer) < Duration::from_millis(4));
        let mut other = fresh();
        read.teach(&mut other, 0, Identity { weight_bytes: 5, ..of });
        assert_eq!(other.predict(layer), fresh().predict(layer), "another model of the name");
        assert_eq!(LearnedCosts::read(&path), Ok(LearnedCosts::default()));
    }
}
