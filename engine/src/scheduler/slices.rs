//! Cutting compute-bound work to what a round may spend on it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::snapshot::{Prompt, Running, Snapshot, Tower, WaitingMedium};
use super::{Budget, Chunk, CostModel, EncodeWork, Kind, Limits, Slice, Work};

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
/// Media in one run, and their patches and frames: bounds activations, and keeps one layer a small piece.
const MOST_MEDIA: usize = 8;
const MOST_UNITS: usize = 4096;

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

/// The slices of a round, most urgent first. Unless the share is nothing, at least one piece runs if there is any.
pub(super) fn choose(state: &Snapshot, cost: &CostModel, limits: &Limits, mut share: Share) -> Vec<Slice> {
    let mut slices = Vec::new();
    if matches!(share, Share::Nothing) {
        return slices;
    }
    for candidate in candidates(state, limits) {
        let chooser = Chooser { state, cost, limits, share };
        let mut found = match candidate {
            Candidate::Resume(run) => chooser.resume(run).into_iter().collect(),
            Candidate::Begin { model, tower } => chooser.begin(model, tower).into_iter().collect(),
            Candidate::Prefill { model } => chooser.prefill(model),
        };
        if let Share::Beside(budget) | Share::Device(budget) = &mut share {
            found.iter().for_each(|slice: &Slice| budget.take(slice.predicted()));
        }
        slices.append(&mut found);
    }
    slices
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
}

impl Chooser<'_> {
    fn resume(&self, run: &Running) -> Option<Slice> {
        let layer = self.cost.predict(Work { model: run.model, kind: Kind::Layer(run.tower), size: run.units });
        let layers = self.layers(layer, Duration::ZERO, 1)?.min(run.left);
        Some(Slice::Encode { work: EncodeWork::Resume(run.key), layers, predicted: times(layer, layers) })
    }

    fn begin(&self, model: usize, tower: Tower) -> Option<Slice> {
        let media = self.media(model, tower);
        let units = media.iter().map(|medium| medium.units).sum();
        let begin = self.cost.predict(Work { model, kind: Kind::Begin(tower), size: units });
        let layer = self.cost.predict(Work { model, kind: Kind::Layer(tower), size: units });
        let layers = self.layers(layer, begin, 0)?;
        let work = EncodeWork::Begin(media.iter().map(|medium| medium.key).collect());
        Some(Slice::Encode { work, layers, predicted: begin.saturating_add(times(layer, layers)) })
    }

    /// Layers of this time, after a part of time `first` that cannot be left out; `least` if nothing else ran in this
    /// round, and `None` when even that must wait.
    fn layers(&self, layer: Duration, first: Duration, least: usize) -> Option<usize> {
        let budget = match self.share {
            Share::Beside(budget) | Share::Device(budget) => budget,
            Share::Everything => return Some(usize::MAX),
            Share::Nothing => return None,
        };
        if let Some(layers) = self.limits.slice_layers {
            return budget.untouched().then_some(layers);
        }
        let fits = budget.left().checked_sub(first).map(|left| {
            let layers = left.as_nanos() / layer.as_nanos().max(1);
            usize::try_from(layers).unwrap_or(usize::MAX)
        });
        match fits {
            Some(layers) if layers >= least => Some(layers),
            _ => budget.untouched().then_some(least),
        }
    }

    /// Media of one tower that run together: the most urgent one, and those behind it while a layer of all of them is
    /// still a small piece.
    fn media(&self, model: usize, tower: Tower) -> Vec<&WaitingMedium> {
        let waiting = self.state.media.iter();
        let mut waiting: Vec<_> = waiting.filter(|m| (m.key.model, m.tower) == (model, tower)).collect();
        waiting.sort_by_key(|medium| (self.limits.urgency(medium.claim), medium.key));
        let mut chosen: Vec<&WaitingMedium> = Vec::new();
        let mut units = 0;
        for medium in waiting {
            let together = units + medium.units;
            let first = chosen.is_empty();
            if !first && (medium.alone || !self.fit_together(model, tower, together)) {
                continue;
            }
            units = together;
            chosen.push(medium);
            if medium.alone || chosen.len() == MOST_MEDIA {
                break;
            }
        }
        chosen
    }

    fn fit_together(&self, model: usize, tower: Tower, units: usize) -> bool {
        let layer = || self.cost.predict(Work { model, kind: Kind::Layer(tower), size: units });
        units <= MOST_UNITS
            && match self.share {
                Share::Beside(budget) => layer() <= budget.left(),
                Share::Device(_) | Share::Everything => true,
                Share::Nothing => false,
            }
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
        let most = Work { model, kind: Kind::Prefill, size: all.min(self.limits.prefill_chunk) };
        let mut rows = match self.share {
            Share::Everything => most.size,
            Share::Nothing => return None,
            Share::Device(budget) if budget.untouched() => most.size,
            Share::Beside(budget) | Share::Device(budget) => {
                let least = most.size.min(LEAST_ROWS);
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

fn times(layer: Duration, layers: usize) -> Duration {
    u32::try_from(layers).ok().and_then(|layers| layer.checked_mul(layers)).unwrap_or(Duration::MAX)
}
