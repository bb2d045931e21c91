//! Settle: tokens to their streams, endings, cancellations and deadlines; counters; the idle audit.

use std::time::Instant;

use weft_kernels::Backend;
use weft_kernels::shapes::Sampled;

use super::Device;
use super::command::Command;
use super::media::Readiness;
use super::sequence::{Ending, Phase, Progress, Sequence};
use super::step::{Outcome, Share, accepted};
use crate::error::{EngineError, ErrorKind};
use crate::request::TokenEvent;
use crate::scheduler::SequenceKey;
use crate::stats::{count, gauge};

impl<B: Backend> Device<B> {
    /// Hands out what a step gave.
    pub(super) fn settle_step(&mut self, outcomes: Vec<Outcome>) {
        for (share, outcome) in outcomes {
            let sampled = match outcome {
                Ok(sampled) => sampled,
                Err(error) => {
                    self.fail(share.key, error);
                    continue;
                }
            };
            self.settle_share(&share, sampled);
        }
    }

    /// Takes the tokens of a share as long as they follow from each other, and lets others find the blocks it filled.
    fn settle_share(&mut self, share: &Share, sampled: Vec<Sampled>) {
        let Some(sequence) = self.sequences.get_mut(&share.key) else { return };
        let mut cached = share.positions.end;
        let mut reason = None;
        let before = sequence.produced();
        let complete = !sampled.is_empty();
        let chosen: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
        let came = accepted(&share.drafts, &chosen);
        sequence.drafter.learn(&chosen[..chosen.len().min(came + 1)]);
        // The rows behind drafts that came true are in the cache; those behind the others are of no use.
        for (at, sampled) in sampled.into_iter().take(came + 1).enumerate() {
            cached += usize::from(at > 0);
            reason = sequence.take(sampled);
            if reason.is_some() {
                break;
            }
        }
        count(&self.shared.counters.accepted, cached - share.positions.end);
        if complete && reason.is_none() {
            reason = sequence.force();
        }
        let fault = sequence.sampler.fault().filter(|_| reason.is_none());
        count(&self.shared.counters.tokens_out, sequence.produced() - before);
        if let Phase::Admitted { progress, .. } = &mut sequence.phase {
            *progress = match complete {
                true => Progress::Answer { cached, stepped: self.steps },
                false => Progress::Prompt { done: cached },
            };
        }
        if self.prefixes {
            sequence.publish(cached, self.models[sequence.model].facts.kv.pages.page_tokens);
        }
        match (reason, fault) {
            (Some(reason), _) => self.end(share.key, Ending::Finished(reason)),
            (None, Some(error)) => self.fail(share.key, error),
            (None, None) => {}
        }
    }

    /// Ends what is over for reasons outside the device's work, and publishes the counts.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        let over: Vec<(SequenceKey, Ending)> =
            self.sequences.iter().filter_map(|(key, sequence)| Some((*key, self.over(sequence, now)?))).collect();
        for (key, ending) in over {
            self.end(key, ending);
        }
        self.media.sweep();
        let counters = &self.shared.counters;
        let admitted = |sequence: &&Sequence| matches!(sequence.phase, Phase::Admitted { .. });
        gauge(&counters.running, self.sequences.values().filter(admitted).count());
        gauge(&counters.kv_pages_used, self.models.iter().map(|m| m.books.total() - m.books.free()).sum());
        gauge(&counters.kv_pages_cached, self.models.iter().map(|m| m.books.idle()).sum());
        gauge(&counters.encoder_cache_bytes, self.media.bytes());
        gauge(&counters.media_waiting, self.media.pending());
    }

    /// Whether nobody reads any more, the time is up, or a medium of the prompt failed.
    fn over(&self, sequence: &Sequence, now: Instant) -> Option<Ending> {
        if sequence.gone() {
            return Some(Ending::Gone);
        }
        if sequence.deadline.is_some_and(|deadline| deadline <= now) {
            let error = EngineError::new(ErrorKind::Deadline, "the request's time was up");
            return Some(Ending::Failed(error));
        }
        if matches!(sequence.phase, Phase::Admitted { progress: Progress::Answer { .. }, .. }) {
            return None;
        }
        let spans = sequence.prompt.media.iter().map(|span| &span.ticket);
        spans.chain(&sequence.prompt.cross).find_map(|ticket| match self.media.readiness(&ticket.lease.key) {
            Readiness::Ready | Readiness::Coming => None,
            Readiness::Failed(error) => Some(Ending::Failed(error.clone())),
            Readiness::Unknown => {
                Some(Ending::Failed(EngineError::new(ErrorKind::Internal, "a medium of the prompt was lost")))
            }
        })
    }

    pub(super) fn fail(&mut self, key: SequenceKey, error: EngineError) {
        self.end(key, Ending::Failed(error));
    }

    fn end(&mut self, key: SequenceKey, ending: Ending) {
        if let Some(sequence) = self.sequences.remove(&key) {
            for span in &sequence.prompt.media {
                self.media.used(&span.ticket.lease.key);
            }
            sequence.end(ending);
        }
    }

    /// Free + held = total in every pool, each page once.
    pub(super) fn audit(&self) {
        for (at, model) in self.models.iter().enumerate() {
            let seats = self.sequences.values().filter(|sequence| sequence.model == at);
            let seats = seats.filter_map(|sequence| match &sequence.phase {
                Phase::Admitted { seat, .. } => Some(seat),
                Phase::Waiting(_) => None,
            });
            let tables = seats.flat_map(|seat| [Some(&seat.table), seat.cross.as_ref().map(|cross| &cross.table)]);
            if let Err(detail) = model.books.audit(tables.flatten()) {
                count(&self.shared.counters.audit_failures, 1);
                tracing::error!(model = model.facts.card.name, detail, "the page books do not balance");
            }
        }
    }

    /// The last handle is gone: every answer still open ends.
    pub(super) fn close(mut self) {
        let stopped = || EngineError::new(ErrorKind::Cancelled, "the engine was stopped");
        for (_, sequence) in std::mem::take(&mut self.sequences) {
            sequence.end(Ending::Failed(stopped()));
        }
        for command in self.inbox.drain() {
            if let Command::Generate(order) = command {
                // A fresh channel has room; its reader may be gone, and then needs no answer.
                let _ = order.events.try_send(TokenEvent::Failed(stopped()));
            }
        }
        self.audit();
    }
}
