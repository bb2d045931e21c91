//! Whether decode steps and compute-bound work take turns on the device or part it between them.
//!
//! Knows measured rates only: what a split of the device costs a decode step and leaves an encoder. A device that cannot be
//! parted has no splits, and there everything takes turns.

use std::time::Duration;

use crate::config::Policy;

/// A measured split of the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Split {
    /// Units of the device (multiprocessors) that decode gets.
    pub(crate) units: usize,
    /// Sequences in the decode steps it was measured with.
    pub(crate) batch: usize,
    /// Decode step beside a busy encoder, as a multiple of the step alone on the whole device.
    pub(crate) decode: f64,
    /// Encoder rate beside decode, as a share of its rate alone.
    pub(crate) encode: f64,
}

/// How a round shares the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sharing {
    /// One after the other, each on all of it.
    Turns,
    /// At once, each on its part.
    Split(Split),
}

/// The decode step that a choice is made beside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) step: Duration,
    pub(super) target: Duration,
    pub(super) sequences: usize,
}

/// The sharing that gives compute-bound work most at the target's inter-token time.
pub(super) fn sharing(policy: Policy, splits: &[Split], beside: Beside) -> Sharing {
    if matches!(policy, Policy::Inline | Policy::Slice) {
        return Sharing::Turns;
    }
    let times = beside.target.as_secs_f64() / beside.step.as_secs_f64().max(1e-9);
    // Splits are measured at some batch sizes; the nearest one speaks for this one.
    let distance = |split: &Split| {
        let log = |n: usize| (n.max(1) as f64).log2();
        (log(split.batch) - log(beside.sequences)).abs()
    };
    let nearest = splits.iter().map(distance).min_by(f64::total_cmp).unwrap_or_default();
    let fits = splits.iter().filter(|split| distance(split) <= nearest && split.decode <= times);
    let Some(best) = fits.copied().max_by(|a, b| a.encode.total_cmp(&b.encode)) else { return Sharing::Turns };
    // Turns of (target - 1) to 1 leave compute-bound work this share of its rate alone.
    let turns = (times - 1.0) / times;
    if policy == Policy::Partition || best.encode > turns { Sharing::Split(best) } else { Sharing::Turns }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(2);

    fn chosen(policy: Policy, target: f64) -> Sharing {
        let split = |units, decode, encode| Split { units, batch: 8, decode, encode };
        let splits = [split(64, 1.10, 0.31), split(48, 1.29, 0.45), split(24, 1.74, 0.59)];
        sharing(policy, &splits, Beside { step: STEP, target: STEP.mul_f64(target), sequences: 8 })
    }

    #[test]
    fn the_best_split_within_the_target_is_taken_where_it_beats_turns() {
        let units = |sharing| match sharing {
            Sharing::Split(split) => split.units,
            Sharing::Turns => 0,
        };
        assert_eq!(units(chosen(Policy::Auto, 1.25)), 64);
        assert_eq!(units(chosen(Policy::Auto, 1.5)), 48);
        assert_eq!(units(chosen(Policy::Auto, 1.05)), 0, "no split keeps such a target");
        // Turns leave 3/4 of the device at a target of 4.
        assert_eq!(units(chosen(Policy::Auto, 4.0)), 0);
        assert_eq!(units(chosen(Policy::Partition, 4.0)), 24);
        assert_eq!(units(chosen(Policy::Slice, 1.25)), 0);
        assert_eq!(
            sharing(Policy::Partition, &[], Beside { step: STEP, target: STEP * 2, sequences: 1 }),
            Sharing::Turns
        );
    }
}
