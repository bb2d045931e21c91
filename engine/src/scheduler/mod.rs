//! Choosing what runs next, and only that: [`plan`] is a pure function of the state, the cost model and the limits. It
//! touches no device and no channel, so it runs in property tests and in a simulator as it runs in the service.
//!
//! A round is one decode step of every model that has running answers, then slices of compute-bound work:
//!
//! ```text
//! policy slice    | decode | slices <= (target - 1) x step | decode | slices | decode | ...
//! policy inline   | decode | whole encoder runs, whole prompts ..................... | decode | ...
//! nothing decodes | slices up to `idle_slice`, whole prefill chunks | receive | ...
//! ```
//!
//! Invariants, each a property test: the decode step is never left out while a sequence can take it; a slice is within
//! the round's budget unless it is the round's first piece and indivisible, and what it took too much later rounds save;
//! work goes by urgency, in which a batch
//! request counts as one that came [`Limits::ageing`] later than it did, so nothing starves.

mod budget;
mod cost;
mod slices;
mod snapshot;

#[cfg(test)]
mod simulation;

use std::time::Duration;

pub(crate) use budget::Budget;
pub(crate) use cost::{CostModel, Counts, Kind, Work};
pub(crate) use snapshot::{
    Claim, Decoding, Prompt, Room, RunKey, Running, SequenceKey, Snapshot, Tower, Waiting, WaitingMedium,
};

use crate::config::{EngineConfig, Policy};
use crate::device::shared::MediaKey;
use crate::request::Class;

/// The scheduler's constants, resolved from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limits {
    pub(crate) policy: Policy,
    pub(crate) max_batch: usize,
    pub(crate) prefill_chunk: usize,
    /// Layers in every encoder slice; `None` leaves it to the budget.
    pub(crate) slice_layers: Option<usize>,
    /// Inter-token time as a multiple of the decode step alone.
    pub(crate) inter_token_target: f64,
    /// A batch request counts as one that came this much later.
    pub(crate) ageing: Duration,
    /// A round without a decode step spends about this: short enough to notice arrivals and cancellations.
    pub(crate) idle_slice: Duration,
}

impl Limits {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        Self {
            policy: config.policy,
            max_batch: config.max_batch,
            prefill_chunk: config.prefill_chunk,
            slice_layers: (config.encoder_slice_layers > 0).then_some(config.encoder_slice_layers),
            inter_token_target: f64::from(config.inter_token_target),
            ageing: Duration::from_secs(20),
            idle_slice: Duration::from_millis(20),
        }
    }

    /// The time of arrival that work is ordered by.
    fn urgency(&self, claim: Claim) -> Duration {
        match claim.class {
            Class::Interactive => claim.since,
            Class::Batch => claim.since + self.ageing,
        }
    }
}

/// One round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// Waiting requests that get their pages now.
    pub(crate) admit: Vec<SequenceKey>,
    /// Decode steps, at most one a model.
    pub(crate) decode: Vec<DecodeStep>,
    /// Compute-bound work, in this order.
    pub(crate) slices: Vec<Slice>,
    /// What this round gives to slices beside its decode steps; `None` when nothing bounds them.
    pub(crate) slack: Option<Duration>,
    /// Why the round looks like this.
    pub(crate) reason: Reason,
}

impl Plan {
    /// The debt after this round, whose slices took this long. An indivisible piece may take more than a round's slack
    /// (one layer of a large picture beside a small decoder); later rounds save that before they run slices again, so the
    /// mean inter-token time keeps the target.
    pub(crate) fn debt_after(slack: Option<Duration>, debt: Duration, took: Duration) -> Duration {
        slack.map_or(Duration::ZERO, |slack| (debt + took).saturating_sub(slack))
    }
}

/// Why a round looks as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Nothing can run.
    Idle,
    /// Only decode runs: nothing else waits, or earlier rounds spent this one's budget.
    DecodeAlone,
    /// Nothing decodes: the whole device goes to encoders and prompts.
    ComputeAlone,
    /// Slices within what the inter-token target leaves.
    Woven,
    /// The baseline: whole encoders and prompts before the next step.
    Inline,
}

/// One token for each of these sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecodeStep {
    pub(crate) model: usize,
    pub(crate) sequences: Vec<SequenceKey>,
    pub(crate) predicted: Duration,
}

/// A bounded piece of compute-bound work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Some layers of an encoder run.
    Encode {
        work: EncodeWork,
        /// At most this many; a run may have fewer left. 0 only begins a run.
        layers: usize,
        predicted: Duration,
    },
    /// Prompt rows of sequences of one model.
    Prefill { model: usize, chunks: Vec<Chunk>, predicted: Duration },
}

impl Slice {
    pub(crate) fn predicted(&self) -> Duration {
        match self {
            Self::Encode { predicted, .. } | Self::Prefill { predicted, .. } => *predicted,
        }
    }
}

/// Which encoder run a slice advances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EncodeWork {
    /// A new one over these media of one model and tower.
    Begin(Vec<MediaKey>),
    /// One in progress.
    Resume(RunKey),
}

/// Prompt rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) key: SequenceKey,
    pub(crate) rows: usize,
}

/// Plans one round.
pub(crate) fn plan(state: &Snapshot, cost: &CostModel, limits: &Limits) -> Plan {
    let admit = admit(state, limits);
    let decode = decode(state, cost, limits);
    let step: Duration = decode.iter().map(|batch| batch.predicted).sum();
    let slack = step.mul_f64((limits.inter_token_target - 1.0).max(0.0));
    let share = match (limits.policy, decode.is_empty()) {
        (Policy::Inline, _) => slices::Share::Everything,
        (Policy::Slice, true) => slices::Share::Device(Budget::new(limits.idle_slice)),
        (Policy::Slice, false) if state.debt >= slack => slices::Share::Nothing,
        (Policy::Slice, false) => slices::Share::Beside(Budget::new(slack - state.debt)),
    };
    let slices = slices::choose(state, cost, limits, share);
    let slack = matches!(share, slices::Share::Beside(_) | slices::Share::Nothing).then_some(slack);
    let reason = match (decode.is_empty(), slices.is_empty(), limits.policy) {
        (true, true, _) => Reason::Idle,
        (false, true, _) => Reason::DecodeAlone,
        (true, false, _) => Reason::ComputeAlone,
        (false, false, Policy::Slice) => Reason::Woven,
        (false, false, Policy::Inline) => Reason::Inline,
    };
    Plan { admit, decode, slices, slack, reason }
}

/// Requests that get their pages now, by urgency. All pages from start to end are leased at once, so running sequences
/// never wait for pages of each other; a request that does not fit holds back later ones of its model, so that small
/// ones cannot starve it.
fn admit(state: &Snapshot, limits: &Limits) -> Vec<SequenceKey> {
    let mut waiting: Vec<&Waiting> = state.waiting.iter().collect();
    waiting.sort_by_key(|request| (limits.urgency(request.claim), request.key));
    let mut rooms: Vec<Option<Room>> = state.rooms.iter().copied().map(Some).collect();
    let mut admitted = Vec::new();
    for request in waiting {
        let Some(slot) = rooms.get_mut(request.model) else { continue };
        let Some(room) = slot else { continue };
        if room.running < limits.max_batch && request.pages <= room.free_pages {
            room.running += 1;
            room.free_pages -= request.pages;
            admitted.push(request.key);
        } else {
            *slot = None;
        }
    }
    admitted
}

/// One decode step a model, over the sequences that waited longest. Admission bounds the running sequences to the batch,
/// so normally that is all of them.
fn decode(state: &Snapshot, cost: &CostModel, limits: &Limits) -> Vec<DecodeStep> {
    let mut steps = Vec::new();
    for model in 0..state.rooms.len() {
        let mut ready: Vec<&Decoding> = state.decoding.iter().filter(|sequence| sequence.model == model).collect();
        if ready.is_empty() {
            continue;
        }
        ready.sort_by_key(|sequence| (sequence.stepped, sequence.key));
        ready.truncate(limits.max_batch);
        let sequences: Vec<SequenceKey> = ready.iter().map(|sequence| sequence.key).collect();
        let predicted = cost.predict(Work { model, kind: Kind::Decode, size: sequences.len() });
        steps.push(DecodeStep { model, sequences, predicted });
    }
    steps
}
