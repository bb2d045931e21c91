//! What a plan is made from: everything that could run now, as numbers. No tensor, no channel, no lock.

use std::time::Duration;

use crate::device::shared::MediaKey;
use crate::families::Place;
use crate::request::Class;

/// A request on the device, numbered in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceKey(pub(crate) u64);

/// An encoder run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey(pub(crate) u64);

/// An encoder of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Tower {
    /// Takes patches.
    Vision,
    /// Takes log-mel frames.
    Audio,
}

/// Who waits for a piece of work, and since when (on the device's clock).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) class: Class,
    pub(crate) since: Duration,
    /// When the answer is no longer wanted.
    pub(crate) deadline: Option<Duration>,
}

impl Claim {
    /// The claim of both: the more urgent of each.
    pub(crate) fn with(self, other: Self) -> Self {
        let deadline = match (self.deadline, other.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { class: self.class.min(other.class), since: self.since.min(other.since), deadline }
    }
}

/// Room of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free_pages: usize,
    /// Admitted sequences.
    pub(crate) running: usize,
}

/// A request that waits for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) key: SequenceKey,
    pub(crate) model: usize,
    pub(crate) claim: Claim,
    /// Pages from start to end, cross pages included.
    pub(crate) pages: usize,
}

/// An admitted request whose prompt is not all in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) key: SequenceKey,
    pub(crate) model: usize,
    pub(crate) claim: Claim,
    /// Rows that could run now: up to the first medium that is not encoded.
    pub(crate) ready: usize,
}

/// A sequence that can take its next decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decoding {
    pub(crate) key: SequenceKey,
    pub(crate) model: usize,
    /// Step number of its last decode, so that no sequence is left out for long.
    pub(crate) stepped: u64,
}

/// A medium that waits for its encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitingMedium {
    pub(crate) key: MediaKey,
    pub(crate) tower: Tower,
    pub(crate) claim: Claim,
    /// Patches or frames.
    pub(crate) units: usize,
    /// It was in a batch that failed: runs alone, so that only the culprit's requests fail.
    pub(crate) alone: bool,
}

/// An encoder run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) key: RunKey,
    pub(crate) model: usize,
    pub(crate) tower: Tower,
    pub(crate) claim: Claim,
    /// Patches or frames, over all media of the run.
    pub(crate) units: usize,
    /// Layers that are not finished.
    pub(crate) left: usize,
    /// Where it stands.
    pub(crate) place: Place,
}

/// State at one beat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// By model index.
    pub(crate) rooms: Vec<Room>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) decoding: Vec<Decoding>,
    pub(crate) media: Vec<WaitingMedium>,
    pub(crate) runs: Vec<Running>,
    /// Time that slices took beyond what earlier rounds gave them; see [`super::Plan::debt_after`].
    pub(crate) debt: Duration,
}
