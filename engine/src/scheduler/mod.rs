//! Choosing what runs next, and only that: [`plan`] is a pure function of the state, the cost model and the limits. It
//! touches no device and no channel, so it runs in property tests and in a simulator as it runs in the service.
//!
//! A round is one decode step of every model that has running answers, then slices of compute-bound work:
//!
//! ```text
//! policy slice     | decode | slices <= target - step | decode | slices | decode | ...
//! policy partition | decode beside slices, each on its part of the device | ...
//! policy inline    | decode | whole encoder runs, whole prompts ..................... | decode | ...
//! prompts of a model that decodes ride in its step: the weights are streamed once for both
//! nothing decodes  | slices up to `idle_slice` on the whole device | receive | ...
//! ```
//!
//! Invariants, each a property test: the decode step is never left out while a sequence can take it; a slice is within
//! the round's budget unless it is the round's first piece and indivisible, and what it took too much later rounds save;
//! work goes by when it is due, in which a batch request counts as one that came [`Limits::ageing`] later than it did; what
//! is overdue goes before all that comes, so nothing starves.

mod budget;
mod cost;
mod lanes;
mod learned;
mod pieces;
mod slices;
mod snapshot;

#[cfg(test)]
mod properties;
pub mod simulator;

use std::time::Duration;

pub(crate) use budget::Budget;
pub(crate) use cost::{CostModel, Counts, Kind, Work};
pub(crate) use lanes::Sharing;
pub(crate) use learned::Identity;
pub use learned::{LearnedCosts, LearnedModel};
pub(crate) use pieces::{next_piece, remaining};
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
    pub(crate) inter_token: InterToken,
    /// An interactive request is due this long after its arrival.
    pub(crate) first_token: Duration,
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
            inter_token: match config.inter_token_ms {
                Some(time) => InterToken::Time(Duration::from_secs_f64(f64::from(time) / 1e3)),
                None => InterToken::TimesLone(f64::from(config.inter_token_target)),
            },
            first_token: Duration::from_secs_f64(f64::from(config.first_token_ms) / 1e3),
            ageing: Duration::from_secs(20),
            idle_slice: Duration::from_millis(20),
        }
    }

    /// When work is due; the earliest goes first.
    fn urgency(&self, claim: Claim) -> Duration {
        let due = match claim.class {
            Class::Interactive => claim.since + self.first_token,
            Class::Batch => claim.since + self.first_token + self.ageing,
        };
        claim.deadline.map_or(due, |deadline| due.min(deadline))
    }

    /// The inter-token time to keep to, where a step alone takes this long.
    fn target(&self, lone: Duration) -> Duration {
        match self.inter_token {
            InterToken::TimesLone(times) => lone.mul_f64(times.max(1.0)),
            InterToken::Time(time) => time,
        }
    }
}

/// The inter-token time that running answers may see while compute-bound work waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum InterToken {
    /// A multiple of the decode step alone, as measured.
    TimesLone(f64),
    /// A time.
    Time(Duration),
}

/// Compute-bound work gets at least this share of a step, so that a target that cannot be met does not starve it.
const LEAST_SLACK: f64 = 0.05;

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
    /// How decode steps and slices share the device.
    pub(crate) sharing: Sharing,
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
    /// Slices beside the decode step, on another part of the device.
    Parted,
    /// The baseline: whole encoders and prompts before the next step.
    Inline,
}

/// One token for each of these sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DecodeStep {
    pub(crate) model: usize,
    pub(crate) sequences: Vec<SequenceKey>,
    /// Time of the step without riders.
    pub(crate) predicted: Duration,
    /// Prompt rows in the same launch.
    pub(crate) riders: Vec<Chunk>,
    /// What they add.
    pub(crate) ride: Duration,
}

/// A bounded piece of compute-bound work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Some of an encoder run.
    Encode { work: EncodeWork, spend: Spend, predicted: Duration },
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

/// How far a slice takes an encoder run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spend {
    /// Pieces (see [`next_piece`]) for this long, all of them for [`Duration::MAX`].
    Within(Duration),
    /// So many layers, as configured.
    Layers(usize),
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
    let mut decode = decode(state, cost, limits);
    let step: Duration = decode.iter().map(|batch| batch.predicted).sum();
    let lone = decode.iter().map(|batch| cost.predict_lone(batch.model, batch.sequences.len())).sum();
    let sequences = decode.iter().map(|batch| batch.sequences.len()).sum();
    let target = limits.target(lone);
    let sharing = match decode.is_empty() {
        true => Sharing::Turns,
        false => lanes::sharing(limits.policy, cost.splits(), lanes::Beside { step, target, sequences }),
    };
    let slack = match sharing {
        Sharing::Turns => target.saturating_sub(step).max(step.mul_f64(LEAST_SLACK)),
        Sharing::Split(split) => step.mul_f64(split.decode * split.encode),
    };
    let share = match (limits.policy, decode.is_empty()) {
        (Policy::Inline, _) => slices::Share::Everything,
        (_, true) => slices::Share::Device(Budget::new(limits.idle_slice)),
        (_, false) if state.debt >= slack => slices::Share::Nothing,
        (_, false) => slices::Share::Beside(Budget::new(slack - state.debt)),
    };
    let models: Vec<usize> = decode.iter().map(|batch| batch.model).collect();
    let ride = match sharing {
        Sharing::Turns => None,
        Sharing::Split(split) => {
            let slowed = step.mul_f64(split.decode);
            let left = target.saturating_sub(slowed).max(step.mul_f64(LEAST_SLACK));
            Some(Budget::new(left.div_f64(split.decode)))
        }
    };
    let turn = slices::Turn { share, decoding: &models, ride };
    let slices::Chosen { slices, rides } = slices::choose(state, cost, limits, turn);
    for (model, chunks, predicted) in rides {
        if let Some(step) = decode.iter_mut().find(|step| step.model == model) {
            step.riders = chunks;
            step.ride = predicted;
        }
    }
    let riding = decode.iter().any(|step| !step.riders.is_empty());
    let slack = matches!(share, slices::Share::Beside(_) | slices::Share::Nothing).then_some(slack);
    let reason = match (decode.is_empty(), slices.is_empty() && !riding, limits.policy, sharing) {
        (true, true, ..) => Reason::Idle,
        (false, true, ..) => Reason::DecodeAlone,
        (true, false, ..) => Reason::ComputeAlone,
        (false, false, Policy::Inline, _) => Reason::Inline,
        (false, false, _, Sharing::Split(_)) => Reason::Parted,
        (false, false, _, Sharing::Turns) => Reason::Woven,
    };
    Plan { admit, decode, slices, slack, sharing, reason }
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
        steps.push(DecodeStep { model, sequences, predicted, riders: Vec::new(), ride: Duration::ZERO });
    }
    steps
}
