//! Time that one round may spend on compute-bound work. Made fresh each round; taken from, never put back.

use std::time::Duration;

/// What is left of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    left: Duration,
    spent: Duration,
}

impl Budget {
    pub(crate) fn new(time: Duration) -> Self {
        Self { left: time, spent: Duration::ZERO }
    }

    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// Nothing was taken yet: the one indivisible piece that every round may run still may.
    pub(crate) fn untouched(&self) -> bool {
        self.spent.is_zero()
    }

    pub(crate) fn take(&mut self, time: Duration) {
        // A piece predicted at nothing still ends the round's right to an indivisible one.
        self.spent += time.max(Duration::from_nanos(1));
        self.left = self.left.saturating_sub(time);
    }
}
