//! One pass through a decoder: sequences' rows laid one after another, run, and sampled.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{SampleRow, Sampled};

use super::media::MediaDesk;
use super::sequence::{Phase, Sequence};
use super::{Device, Resident};
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::{MediaRows, StepBatch, StepSequence};
use crate::scheduler::SequenceKey;

/// A sequence's share of a step: these of its rows, prompt and answer counted through, and guesses of the rows after them.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) key: SequenceKey,
    pub(super) positions: Range<usize>,
    /// Tokens that may come next. The step gives the token after each of them as well.
    pub(super) drafts: Vec<u32>,
}

/// What a share gave: the token after its last row when all known rows are in, and then that after each draft.
pub(super) type Outcome = (Share, Result<Vec<Sampled>>);

/// How many drafts came true: those that were chosen where they were guessed, up to the first that was not. Each choice is
/// made from the model's own logits with the draw of its place, so what is accepted is what would have come anyway.
pub(super) fn accepted(drafts: &[u32], chosen: &[u32]) -> usize {
    drafts.iter().zip(chosen).take_while(|(draft, chosen)| draft == chosen).count()
}

/// The input of a step. Row ranges of `sequences` follow one another.
struct Input<'a, B: Backend> {
    ids: Vec<u32>,
    positions: Vec<[u32; 3]>,
    slots: Vec<u32>,
    media: Vec<MediaRows<'a, B>>,
    sequences: Vec<StepSequence<'a>>,
}

impl<B: Backend> Device<B> {
    /// Runs shares of one model in one step. When a step of several fails, each runs again on its own (rewriting the same
    /// slots with the same keys), so that only the culprit fails.
    pub(super) fn step(&mut self, model: usize, shares: Vec<Share>) -> Vec<Outcome> {
        match self.step_together(model, &shares) {
            Ok(sampled) => shares.into_iter().zip(sampled.into_iter().map(Ok)).collect(),
            Err(error) if shares.len() == 1 => shares.into_iter().map(|share| (share, Err(error.clone()))).collect(),
            Err(error) => {
                tracing::warn!(%error, sequences = shares.len(), "a step failed; its sequences run apart");
                let mut outcomes = Vec::new();
                for share in shares {
                    let sampled = self.step_together(model, std::slice::from_ref(&share));
                    outcomes.push((share, sampled.map(|mut sampled| sampled.pop().unwrap_or_default())));
                }
                outcomes
            }
        }
    }

    /// One result a share, in order.
    fn step_together(&mut self, model: usize, shares: &[Share]) -> Result<Vec<Vec<Sampled>>> {
        let Self { backend, models, sequences, media, .. } = self;
        let Resident { loaded, pages, .. } = &mut models[model];
        let mut input = Input::<B> {
            ids: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            media: Vec::new(),
            sequences: Vec::new(),
        };
        for share in shares {
            input.push(sequences, media, share)?;
        }
        let batch = StepBatch {
            ids: &input.ids,
            positions: &input.positions,
            slots: &input.slots,
            media: &input.media,
            sequences: &input.sequences,
        };
        let logits = loaded.step(backend, &batch, pages)?;
        drop(input);
        let wanting = |share: &Share| match share.positions.end < sequences[&share.key].known() {
            true => 0,
            false => 1 + share.drafts.len(),
        };
        let wanted: Vec<usize> = shares.iter().map(wanting).collect();
        let chosen = shares.iter().zip(&wanted).filter(|(_, wanted)| **wanted > 0);
        let chosen: Vec<(&Sequence, &[u32])> =
            chosen.map(|(share, _)| (&sequences[&share.key], share.drafts.as_slice())).collect();
        let sampled = match logits {
            Some(logits) => {
                let rows = sample_rows(backend, &logits, &chosen)?;
                backend.sample(&logits, &rows)?
            }
            None => Vec::new(),
        };
        if sampled.len() != wanted.iter().sum::<usize>() {
            let detail = format!("a step gave {} tokens for {} sequences", sampled.len(), chosen.len());
            return Err(EngineError::new(ErrorKind::Internal, detail));
        }
        let mut sampled = sampled.into_iter();
        Ok(wanted.into_iter().map(|wanted| sampled.by_ref().take(wanted).collect()).collect())
    }
}

/// How each sequence chooses its tokens: one, and one after each of its drafts. Logits come to the host only when a
/// penalty or a rule must see them.
fn sample_rows<B: Backend>(backend: &B, logits: &B::Tensor, chosen: &[(&Sequence, &[u32])]) -> Result<Vec<SampleRow>> {
    let (_, vocabulary) = backend.shape(logits);
    let mut host: Option<Vec<f32>> = None;
    let mut rows = Vec::new();
    for (sequence, drafts) in chosen {
        let mut sampler = Cow::Borrowed(&sequence.sampler);
        for draft in std::iter::once(None).chain(drafts.iter().map(Some)) {
            if let Some(&draft) = draft {
                sampler.to_mut().push(draft);
            }
            if sampler.needs_logits() && host.is_none() {
                host = Some(backend.download(logits)?);
            }
            let own = host.as_ref().filter(|_| sampler.needs_logits());
            rows.push(sampler.row(own.map(|host| &host[rows.len() * vocabulary..(rows.len() + 1) * vocabulary])));
        }
    }
    Ok(rows)
}

impl<'a, B: Backend> Input<'a, B> {
    fn push(
        &mut self,
        sequences: &'a BTreeMap<SequenceKey, Sequence>,
        desk: &'a MediaDesk<B>,
        share: &Share,
    ) -> Result<()> {
        let fault = |what: &str| EngineError::new(ErrorKind::Internal, format!("a planned sequence has no {what}"));
        let sequence = sequences.get(&share.key).ok_or_else(|| fault("state"))?;
        let Phase::Admitted { seat, .. } = &sequence.phase else { return Err(fault("pages")) };
        let prompt = &sequence.prompt;
        let Range { start, end } = share.positions;
        let from = self.ids.len();
        for position in start..end + share.drafts.len() {
            let (id, triple) = sequence.row(position, &share.drafts).ok_or_else(|| fault("such row"))?;
            self.ids.push(id);
            self.positions.push(triple);
            self.slots.push(seat.table.slot(position));
        }
        for span in &prompt.media {
            let (first, last) = (span.rows.start.max(start), span.rows.end.min(end));
            if first < last {
                let encoded = desk.output(&span.ticket.lease.key).ok_or_else(|| fault("encoder output"))?;
                let rows = first - span.rows.start..last - span.rows.start;
                self.media.push(MediaRows { at: from + first - start, encoded, rows });
            }
        }
        let part = |rows: Range<usize>, context| StepSequence {
            rows,
            context,
            table: seat.table.pages(),
            cross: seat.cross.as_ref().map(|cross| (cross.table.pages(), cross.frames)),
            wants_logits: context >= sequence.known(),
        };
        let known = from + end - start;
        self.sequences.push(part(from..known, end));
        // Each draft is a sequence of one row over the same pages, so it runs as a decode step of its own would.
        for draft in 0..share.drafts.len() {
            self.sequences.push(part(known + draft..known + draft + 1, end + draft + 1));
        }
        Ok(())
    }
}
