//! Cutting compute-bound work to what a round may spend on it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::pieces::{next_piece, remaining};
use super::snapshot::{Prompt, Running, Snapshot, Tower, WaitingMedium};
use super::{Budget, Chunk, CostModel, EncodeWork, Kind, Limits, Slice, Spend, Work};
use crate::families::{EncoderPart, Place};

/// What a round gives to encoders and prompts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    /// What the inter-token target leaves beside a decode step.
    Beside(Budget),
    /// The device, for a bounded time: nothing decodes.
    Device(Budget),
    /// Nothing: earlier rounds spent its budget.
    Nothing,
    /// All that there is, whole.
    Everything,
}

/// Fewest prompt rows worth a launch beside a decode step (or what is left of a prompt).
const LEAST_ROWS: usize = 16;
/// Media in one run, and their patches and frames: bounds activations.
const MOST_MEDIA: usize = 8;
const MOST_UNITS: usize = 4096;
/// Media run together only where that saves at least this share of their time apart: the first of a batch is ready only
/// with the last.
const LEAST_SAVING: f64 = 0.1;

/// Work that competes for a round.
enum Candidate<'a> {
    Resume(&'a Running),
    Begin { model: usize, tower: Tower },
    Prefill { model: usize },
}

impl Candidate<'_> {
    /// How far it is from a token.
    fn distance(&self) -> u8 {
        match self {
            Self::Prefill { .. } => 0,
            Self::Resume(_) => 1,
            Self::Begin { .. } => 2,
        }
    }
}

/// What a round is made beside.
pub(super) struct Turn<'a> {
    pub(super) share: Share,
    /// Models that decode in this round: their prompts ride in the same launch, unless everything is to run.
    pub(super) decoding: &'a [usize],
    /// What rides may add to the decode steps where slices run beside them; `None` where both share one budget.
    pub(super) ride: Option<Budget>,
}

/// Compute-bound work of a round.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) slices: Vec<Slice>,
    /// Prompt rows that ride in the decode step of a model, and what they are predicted to add.
    pub(super) rides: Vec<(usize, Vec<Chunk>, Duration)>,
}

/// The slices of a round, most urgent first. Unless the share is nothing, at least one piece runs if there is any.
pub(super) fn choose(state: &Snapshot, cost: &CostModel, limits: &Limits, turn: Turn<'_>) -> Chosen {
    let mut chosen = Chosen::default();
    let Turn { mut share, decoding, mut ride } = turn;
    if matches!(share, Share::Nothing) {
        return chosen;
    }
    for candidate in candidates(state, limits) {
        let mut chooser = Chooser { state, cost, limits, share, kind: Kind::Prefill };
        let mut found: Vec<Slice> = match candidate {
            Candidate::Resume(run) => chooser.resume(run).into_iter().collect(),
            Candidate::Begin { model, tower } => chooser.begin(model, tower).into_iter().collect(),
            Candidate::Prefill { model } if matches!(share, Share::Beside(_)) && decoding.contains(&model) => {
                chooser.kind = Kind::Ride;
                chooser.share = ride.map_or(share, Share::Beside);
                for slice in chooser.prefill(model) {
                    if let Slice::Prefill { model, chunks, predicted } = slice {
                        match (&mut ride, &mut share) {
                            (Some(budget), _) | (None, Share::Beside(budget)) => budget.take(predicted),
                            _ => {}
                        }
                        chosen.rides.push((model, chunks, predicted));
                    }
                }
                continue;
            }
            Candidate::Prefill { model } => chooser.prefill(model),
        };
        if let Share::Beside(budget) | Share::Device(budget) = &mut share {
            found.iter().for_each(|slice| budget.take(slice.predicted()));
        }
        chosen.slices.append(&mut found);
    }
    chosen
}

/// All that could run, by urgency. A run in progress is as urgent as the media that wait behind it.
fn candidates<'a>(state: &'a Snapshot, limits: &Limits) -> Vec<Candidate<'a>> {
    let mut found: Vec<(Duration, Candidate<'a>)> = Vec::new();
    let mut towers = BTreeSet::new();
    let behind = |model, tower| {
        let media = state.media.iter().filter(move |medium| (medium.key.model, medium.tower) == (model, tower));
        media.map(|medium| limits.urgency(medium.claim)).min()
    };
    for run in &state.runs {
        let own = limits.urgency(run.claim);
        let urgency = behind(run.model, run.tower).map_or(own, |other| own.min(other));
        found.push((urgency, Candidate::Resume(run)));
        towers.insert((run.model, run.tower));
    }
    for medium in &state.media {
        let (model, tower) = (medium.key.model, medium.tower);
        // One run a tower at a time bounds the activations that are kept between slices.
        if towers.insert((model, tower)) {
            let urgency = behind(model, tower).unwrap_or(medium.claim.since);
            found.push((urgency, Candidate::Begin { model, tower }));
        }
    }
    for model in 0..state.rooms.len() {
        let ready = state.prompts.iter().filter(|prompt| prompt.model == model && prompt.ready > 0);
        if let Some(urgency) = ready.map(|prompt| limits.urgency(prompt.claim)).min() {
            found.push((urgency, Candidate::Prefill { model }));
        }
    }
    // Of equally urgent work the one nearest to a token goes first.
    found.sort_by_key(|(urgency, candidate)| (*urgency, candidate.distance()));
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

struct Chooser<'a> {
    state: &'a Snapshot,
    cost: &'a CostModel,
    limits: &'a Limits,
    share: Share,
    /// Of prompt rows: [`Kind::Prefill`] or [`Kind::Ride`].
    kind: Kind,
}

impl Chooser<'_> {
    fn resume(&self, run: &Running) -> Option<Slice> {
        let (spend, predicted) = self.spend(run, Duration::ZERO)?;
        Some(Slice::Encode { work: EncodeWork::Resume(run.key), spend, predicted })
    }

    fn begin(&self, model: usize, tower: Tower) -> Option<Slice> {
        let media = self.media(model, tower);
        let first = media.first()?;
        let units = media.iter().map(|medium| medium.units).sum();
        let begin = self.cost.predict(Work { model, kind: Kind::Begin(tower), size: units });
        // As the run will stand when it has begun; how many layers it has shows then.
        let place = Place { part: EncoderPart::Enter, rows: units, whole: false };
        let (key, claim, left) = (super::RunKey(u64::MAX), first.claim, usize::MAX);
        let run = Running { key, model, tower, claim, units, left, place };
        let (spend, predicted) = self.spend(&run, begin)?;
        let work = EncodeWork::Begin(media.iter().map(|medium| medium.key).collect());
        Some(Slice::Encode { work, spend, predicted })
    }

    /// What a run may spend after a part of time `before` that cannot be left out, and the time of both. `None` when it
    /// must wait for another round.
    fn spend(&self, run: &Running, before: Duration) -> Option<(Spend, Duration)> {
        let budget = match self.share {
            Share::Beside(budget) | Share::Device(budget) => budget,
            Share::Everything => return Some((Spend::Within(Duration::MAX), Duration::MAX)),
            Share::Nothing => return None,
        };
        let all = || before.saturating_add(remaining(self.cost, run));
        if let Some(layers) = self.limits.slice_layers {
            return budget.untouched().then(|| (Spend::Layers(layers), all().min(budget.left())));
        }
        match budget.left().checked_sub(before) {
            Some(left) => {
                let first = next_piece(self.cost, run, left, budget.untouched())?;
                Some((Spend::Within(left), all().min(budget.left()).max(before + first.predicted)))
            }
            // Beginning is a piece of its own.
            None => budget.untouched().then_some((Spend::Within(Duration::ZERO), before)),
        }
    }

    /// Media of one tower that run together, whoever asked for them: the most urgent one, and those behind it while that
    /// saves time.
    fn media(&self, model: usize, tower: Tower) -> Vec<&WaitingMedium> {
        let waiting = self.state.media.iter();
        let mut waiting: Vec<_> = waiting.filter(|m| (m.key.model, m.tower) == (model, tower)).collect();
        waiting.sort_by_key(|medium| (self.limits.urgency(medium.claim), medium.key));
        let mut chosen: Vec<&WaitingMedium> = Vec::new();
        let mut units = 0;
        for medium in waiting {
            let run = Work { model, kind: Kind::Layer(tower), size: units };
            if !chosen.is_empty() && (medium.alone || !self.pays_together(run, medium.units)) {
                continue;
            }
            units += medium.units;
            chosen.push(medium);
            if medium.alone || chosen.len() == MOST_MEDIA {
                break;
            }
        }
        chosen
    }

    /// Whether media of `units` in all and one more of `more` are faster together than apart.
    fn pays_together(&self, work: Work, more: usize) -> bool {
        let layer = |size| self.cost.predict(Work { size, ..work }).as_secs_f64();
        let (together, apart) = (layer(work.size + more), layer(work.size) + layer(more));
        work.size + more <= MOST_UNITS && together <= apart * (1.0 - LEAST_SAVING)
    }

    fn prefill(&self, model: usize) -> Vec<Slice> {
        let mut prompts: Vec<&Prompt> = self.state.prompts.iter().filter(|prompt| prompt.model == model).collect();
        prompts.sort_by_key(|prompt| (self.limits.urgency(prompt.claim), prompt.key));
        let mut ready: Vec<Chunk> =
            prompts.iter().map(|prompt| Chunk { key: prompt.key, rows: prompt.ready }).collect();
        ready.retain(|chunk| chunk.rows > 0);
        let mut slices = Vec::new();
        while !ready.is_empty() {
            let Some(slice) = self.prefill_slice(model, &mut ready) else { break };
            slices.push(slice);
            if !matches!(self.share, Share::Everything) {
                break;
            }
        }
        slices
    }

    /// The next prefill slice; takes its rows from `ready`.
    fn prefill_slice(&self, model: usize, ready: &mut Vec<Chunk>) -> Option<Slice> {
        let all: usize = ready.iter().map(|chunk| chunk.rows).sum();
        let most = Work { model, kind: self.kind, size: all.min(self.limits.prefill_chunk) };
        let mut rows = match self.share {
            Share::Everything => most.size,
            Share::Nothing => return None,
            Share::Device(budget) if budget.untouched() => most.size,
            Share::Beside(budget) | Share::Device(budget) => {
                let least = if self.kind == Kind::Ride { 1 } else { most.size.min(LEAST_ROWS) };
                match self.cost.size_within(most, budget.left()) {
                    rows if rows >= least => rows,
                    _ if budget.untouched() => least,
                    _ => return None,
                }
            }
        };
        let predicted = self.cost.predict(Work { size: rows, ..most });
        let mut chunks = Vec::new();
        for chunk in ready.iter_mut() {
            let taken = chunk.rows.min(rows);
            if taken == 0 {
                break;
            }
            chunks.push(Chunk { key: chunk.key, rows: taken });
            chunk.rows -= taken;
            rows -= taken;
        }
        ready.retain(|chunk| chunk.rows > 0);
        Some(Slice::Prefill { model, chunks, predicted })
    }
}
