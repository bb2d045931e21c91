//! How long work takes: learned per kind and size, started from operation and byte counts.
//!
//! One cell a (model, kind, power-of-two size) holds an exponentially weighted mean of the time **per unit of work**
//! (per decode step, prompt row, encoder layer and row), so a prediction within a bucket scales with the size, and a
//! bucket that was never seen borrows from the nearest one that was. One slow outlier (another process took the core)
//! moves a cell by at most a fixed factor.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lanes::Split;
use super::snapshot::Tower;
use crate::families::EncoderPart;

/// A kind of work whose time is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A decode step; its size is its sequences.
    Decode,
    /// A decode step with nothing between it and the one before: what inter-token targets are multiples of.
    LoneDecode,
    /// A prefill slice; its size is its rows.
    Prefill,
    /// Prompt rows in the launch of a decode step: what they add to it, which streams the weights anyway.
    Ride,
    /// The part of an encoder before its first layer; its size is patches or frames.
    Begin(Tower),
    /// One layer of an encoder; its size is patches or frames.
    Layer(Tower),
    /// Some rows of a part of an encoder, or of a part of one of its layers; its size is these rows.
    Rows(Tower, EncoderPart),
}

/// A piece of work to predict or to learn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) model: usize,
    pub(crate) kind: Kind,
    pub(crate) size: usize,
}

/// Counts of a model from which first predictions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) parameters: u64,
    pub(crate) weight_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    seconds: f64,
    samples: u32,
}

/// The model. Deterministic: the same observations give the same predictions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CostModel {
    counts: Vec<Counts>,
    cells: BTreeMap<(usize, Kind, u32), Cell>,
    splits: Vec<Split>,
}

/// What a first guess takes a device to do; learned times replace it within a few launches.
const GUESSED_BYTES_A_SECOND: f64 = 8e9;
const GUESSED_OPERATIONS_A_SECOND: f64 = 4e10;
/// Share of a model that one encoder layer is guessed to be.
const GUESSED_LAYER_SHARE: f64 = 1.0 / 128.0;
/// Weight of a new observation, once a cell is warm.
const WEIGHT: f64 = 0.15;
/// Measurements that a recalled time counts for.
const RECALLED: u32 = 3;
/// An observation counts as at most this factor off the mean.
const OUTLIER: f64 = 3.0;

impl CostModel {
    pub(crate) fn new(counts: Vec<Counts>) -> Self {
        Self { counts, cells: BTreeMap::new(), splits: Vec::new() }
    }

    /// What partitions of the device cost and give; none where it cannot be parted.
    pub(crate) fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Knows what an earlier process learned: seconds of this work. A few measurements of this process outweigh it.
    pub(crate) fn recall(&mut self, work: Work, seconds: f64, samples: u32) {
        let key = (work.model, work.kind, bucket(work.size));
        self.cells.insert(key, Cell { seconds, samples: samples.min(RECALLED) });
    }

    /// All that was learned of a model: kind, size, seconds, measurements.
    pub(crate) fn learned(&self, model: usize) -> impl Iterator<Item = (Kind, usize, f64, u32)> + '_ {
        let own = self.cells.iter().filter(move |((of, ..), _)| *of == model);
        own.map(|(&(_, kind, bucket), cell)| (kind, 1 << bucket, cell.seconds, cell.samples))
    }

    /// What partitions of this device cost and give.
    pub(crate) fn set_splits(&mut self, splits: Vec<Split>) {
        self.splits = splits;
    }

    /// Expected time of a decode step alone; as any step until one ran alone.
    pub(crate) fn predict_lone(&self, model: usize, size: usize) -> Duration {
        let lone = |bucket| (model, Kind::LoneDecode, bucket);
        let known = self.cells.range(lone(0)..=lone(u32::MAX)).next().is_some();
        self.predict(Work { model, kind: if known { Kind::LoneDecode } else { Kind::Decode }, size })
    }

    /// Expected time of this work.
    pub(crate) fn predict(&self, work: Work) -> Duration {
        if work.size == 0 {
            return Duration::ZERO;
        }
        let bucket = bucket(work.size);
        let key = |bucket| (work.model, work.kind, bucket);
        let below = self.cells.range(key(0)..=key(bucket)).next_back();
        let above = self.cells.range(key(bucket)..=key(u32::MAX)).next();
        // The nearest bucket; of two equally near ones the smaller, which has the larger cost per unit.
        let nearest = match (below, above) {
            (Some((&(.., low), small)), Some((&(.., high), large))) => {
                Some(if bucket - low <= high - bucket { (low, small) } else { (high, large) })
            }
            (Some((&(.., near), cell)), None) | (None, Some((&(.., near), cell))) => Some((near, cell)),
            (None, None) => None,
        };
        let seconds = match nearest {
            Some((near, cell)) => cell.seconds * self.guess(work) / self.guess(Work { size: 1 << near, ..work }),
            None => self.guess(work),
        };
        Duration::from_secs_f64(seconds)
    }

    /// Learns from a measured time.
    pub(crate) fn observe(&mut self, work: Work, took: Duration) {
        if work.size == 0 {
            return;
        }
        let bucket = bucket(work.size);
        // Kept as the time of the bucket's own size, so that sizes within a bucket do not blur it.
        let scale = self.guess(Work { size: 1 << bucket, ..work }) / self.guess(work);
        let seconds = took.as_secs_f64().max(1e-9) * scale;
        let cell = self.cells.entry((work.model, work.kind, bucket)).or_insert(Cell { seconds, samples: 0 });
        cell.samples = cell.samples.saturating_add(1);
        // The first observations count equally: a cold first launch must not linger.
        let weight = WEIGHT.max(1.0 / f64::from(cell.samples));
        let bounded = match cell.samples {
            0..4 => seconds,
            _ => seconds.clamp(cell.seconds / OUTLIER, cell.seconds * OUTLIER),
        };
        cell.seconds += weight * (bounded - cell.seconds);
    }

    /// Largest size up to `most` whose predicted time is within `time`; 0 when not even one is.
    pub(crate) fn size_within(&self, work: Work, time: Duration) -> usize {
        let most = work.size;
        if self.predict(work) <= time {
            return most;
        }
        // Predictions need not be monotonic across buckets: search for a size that fits, not for the border.
        let (mut fits, mut over) = (0, most);
        while over - fits > 1 {
            let size = fits + (over - fits) / 2;
            if self.predict(Work { size, ..work }) <= time { fits = size } else { over = size }
        }
        fits
    }

    /// Seconds from operation and byte counts alone.
    fn guess(&self, work: Work) -> f64 {
        let counts = self.counts.get(work.model).copied().unwrap_or(Counts { parameters: 1, weight_bytes: 1 });
        let size = work.size as f64;
        let operations = 2.0 * counts.parameters.max(1) as f64 * size;
        let stream = counts.weight_bytes.max(1) as f64 / GUESSED_BYTES_A_SECOND;
        let compute = operations / GUESSED_OPERATIONS_A_SECOND;
        match work.kind {
            Kind::Decode | Kind::LoneDecode | Kind::Prefill => stream + compute,
            Kind::Ride => compute,
            Kind::Begin(_) | Kind::Layer(_) => (stream + compute) * GUESSED_LAYER_SHARE,
            Kind::Rows(_, part) => (stream + compute) * GUESSED_LAYER_SHARE * share_of_layer(part),
        }
    }
}

/// What some rows of a part are guessed to cost, in layers of as many rows.
const fn share_of_layer(part: EncoderPart) -> f64 {
    match part {
        EncoderPart::Enter | EncoderPart::Project | EncoderPart::Leave => 0.4,
        EncoderPart::Finish => 0.6,
    }
}

fn bucket(size: usize) -> u32 {
    size.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: Work = Work { model: 0, kind: Kind::Decode, size: 1 };

    fn model() -> CostModel {
        CostModel::new(vec![Counts { parameters: 1_000_000, weight_bytes: 4_000_000 }])
    }

    fn millis(work: Work, cost: &CostModel) -> f64 {
        cost.predict(work).as_secs_f64() * 1e3
    }

    #[test]
    fn it_starts_from_counts_and_learns_the_truth() {
        let mut cost = model();
        assert!((millis(DECODE, &cost) - 0.55).abs() < 0.01, "{}", millis(DECODE, &cost));
        for _ in 0..30 {
            cost.observe(DECODE, Duration::from_millis(4));
        }
        assert!((millis(DECODE, &cost) - 4.0).abs() < 0.01);
        // An unseen bucket borrows the correction.
        let eight = Work { size: 8, ..DECODE };
        assert!(millis(eight, &cost) > 5.0);
        // Another kind does not.
        assert!(millis(Work { kind: Kind::Prefill, ..DECODE }, &cost) < 1.0);
    }

    #[test]
    fn one_outlier_moves_little() {
        let mut cost = model();
        for _ in 0..30 {
            cost.observe(DECODE, Duration::from_millis(2));
        }
        cost.observe(DECODE, Duration::from_secs(5));
        assert!(millis(DECODE, &cost) < 2.0 * (1.0 + WEIGHT * (OUTLIER - 1.0)) + 1e-6);
        for _ in 0..30 {
            cost.observe(DECODE, Duration::from_millis(2));
        }
        assert!(millis(DECODE, &cost) < 2.05);
    }

    #[test]
    fn a_size_within_a_time_fits_it() {
        let mut cost = model();
        for size in [1, 2, 4, 8, 16, 32, 64] {
            let work = Work { model: 0, kind: Kind::Prefill, size };
            cost.observe(work, Duration::from_micros(100 + 50 * size as u64));
        }
        let most = Work { model: 0, kind: Kind::Prefill, size: 64 };
        for micros in [10, 200, 500, 1000, 10_000] {
            let time = Duration::from_micros(micros);
            let size = cost.size_within(most, time);
            assert!(size == 0 || cost.predict(Work { size, ..most }) <= time, "{micros} us: {size}");
        }
        assert_eq!(cost.size_within(most, Duration::from_secs(1)), 64);
        assert_eq!(cost.size_within(most, Duration::from_micros(10)), 0);
    }
}
