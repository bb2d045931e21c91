//! One pass through a decoder: sequences' rows laid one after another, run, and sampled.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{SampleRow, Sampled};

use super::media::MediaDesk;
use super::sequence::{Phase, Progress, Sequence};
use super::{Device, Resident};
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::{MediaRows, StepBatch, StepSequence};
use crate::scheduler::SequenceKey;

/// A sequence's share of a step: these of its positions. Prompt rows and answer tokens are counted through.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) key: SequenceKey,
    pub(super) positions: Range<usize>,
}

/// What a share gave: a token when the prompt is complete.
pub(super) type Outcome = (Share, Result<Option<Sampled>>);

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
                    outcomes.push((share, sampled.map(|sampled| sampled.into_iter().next().flatten())));
                }
                outcomes
            }
        }
    }

    /// One result a share, in order.
    fn step_together(&mut self, model: usize, shares: &[Share]) -> Result<Vec<Option<Sampled>>> {
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
        let wanting: Vec<bool> = input.sequences.iter().map(|sequence| sequence.wants_logits).collect();
        drop(input);
        let chosen: Vec<&Sequence> =
            shares.iter().zip(&wanting).filter(|(_, wants)| **wants).map(|(share, _)| &sequences[&share.key]).collect();
        let mut sampled = match logits {
            Some(logits) => {
                let rows = sample_rows(backend, &logits, &chosen)?;
                backend.sample(&logits, &rows)?
            }
            None => Vec::new(),
        };
        if sampled.len() != chosen.len() {
            let detail = format!("a step gave {} tokens for {} sequences", sampled.len(), chosen.len());
            return Err(EngineError::new(ErrorKind::Internal, detail));
        }
        let mut sampled = sampled.drain(..);
        Ok(wanting.into_iter().map(|wants| if wants { sampled.next() } else { None }).collect())
    }
}

/// How each sequence chooses its token. Logits come to the host only when a penalty or a rule must see them.
fn sample_rows<B: Backend>(backend: &B, logits: &B::Tensor, chosen: &[&Sequence]) -> Result<Vec<SampleRow>> {
    let (_, vocabulary) = backend.shape(logits);
    let host = match chosen.iter().any(|sequence| sequence.sampler.needs_logits()) {
        true => backend.download(logits)?,
        false => Vec::new(),
    };
    let rows = chosen.iter().enumerate().map(|(at, sequence)| {
        let own = sequence.sampler.needs_logits().then(|| &host[at * vocabulary..(at + 1) * vocabulary]);
        sequence.sampler.row(own)
    });
    Ok(rows.collect())
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
        let Phase::Admitted { seat, progress } = &sequence.phase else { return Err(fault("pages")) };
        let prompt = &sequence.prompt;
        let Range { start, end } = share.positions;
        let from = self.ids.len();
        for position in start..end {
            let (id, triple) = match (prompt.ids.get(position), progress) {
                (Some(&id), _) => (id, prompt.positions.rows[position]),
                (None, Progress::Answer { last, .. }) => {
                    let answered = u32::try_from(position - prompt.ids.len()).map_err(|_| fault("such position"))?;
                    (*last, [prompt.positions.next + answered; 3])
                }
                (None, Progress::Prompt { .. }) => return Err(fault("answer yet")),
            };
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
        self.sequences.push(StepSequence {
            rows: from..self.ids.len(),
            context: end,
            table: seat.table.pages(),
            cross: seat.cross.as_ref().map(|cross| (cross.table.pages(), cross.frames)),
            wants_logits: end >= prompt.ids.len(),
        });
        Ok(())
    }
}
