//! Receive: commands become sequences and media; the state becomes a snapshot; admitted requests get their pages.

use std::time::{Duration, Instant};

use weft_kernels::Backend;

use super::command::{Command, GenerateOrder};
use super::media::{Ordered, Readiness};
use super::sequence::{Cross, Phase, Progress, Seat, Sequence};
use super::{Device, Resident};
use crate::books::{BlockChain, Lease};
use crate::device::shared::MediaShape;
use crate::scheduler::{Claim, Decoding, Prompt, Room, SequenceKey, Snapshot, Waiting};
use crate::stats::count;

/// Commands taken in one beat: a flood of them must not hold up the next decode step.
const COMMANDS_A_BEAT: usize = 64;

impl<B: Backend> Device<B> {
    pub(super) fn receive(&mut self) {
        for _ in 0..COMMANDS_A_BEAT {
            match self.inbox.try_recv() {
                Ok(Command::Encode(order)) => match self.media.order(order) {
                    Some(Ordered::Hit) => count(&self.shared.counters.encoder_cache_hits, 1),
                    Some(Ordered::Miss) | None => {}
                },
                Ok(Command::Generate(order)) => self.arrive(*order),
                Err(_) => return,
            }
        }
    }

    fn arrive(&mut self, order: GenerateOrder) {
        let model = &self.models[order.model];
        let bounds = (model.facts.answer_tokens(&order.request), model.facts.pages_needed(&order.request));
        let sequence = Sequence::new(
            order,
            bounds,
            |parts| model.loaded.positions(parts),
            |cross| BlockChain::new(model.facts.kv.pages.page_tokens, &model.root, cross),
        );
        for span in &sequence.prompt.media {
            self.media.claim(&span.ticket.lease.key, sequence.class, sequence.deadline);
        }
        if let Some(ticket) = &sequence.prompt.cross {
            self.media.claim(&ticket.lease.key, sequence.class, sequence.deadline);
        }
        self.arrivals += 1;
        self.sequences.insert(SequenceKey(self.arrivals), sequence);
    }

    /// The state as the plan sees it.
    pub(super) fn survey(&self) -> Snapshot {
        let clock = |instant: Instant| self.clock(instant);
        let (media, runs) = self.media.survey(clock);
        let rooms = self.models.iter().map(|model| Room { free_pages: model.books.free(), running: 0 });
        let mut state = Snapshot { rooms: rooms.collect(), media, runs, debt: self.debt, ..Snapshot::default() };
        for (&key, sequence) in &self.sequences {
            let model = sequence.model;
            let deadline = sequence.deadline.map(clock);
            let claim = Claim { class: sequence.class, since: clock(sequence.arrived), deadline };
            match &sequence.phase {
                Phase::Waiting(_) => {
                    let pages = sequence.needed.own + sequence.needed.cross;
                    state.waiting.push(Waiting { key, model, claim, pages });
                }
                Phase::Admitted { progress, .. } => {
                    state.rooms[model].running += 1;
                    match *progress {
                        Progress::Prompt { done } => {
                            let ready = self.ready_rows(sequence, done);
                            state.prompts.push(Prompt { key, model, claim, ready });
                        }
                        Progress::Answer { stepped, .. } if sequence.flows() => {
                            state.decoding.push(Decoding { key, model, stepped });
                        }
                        Progress::Answer { .. } => {}
                    }
                }
            }
        }
        state
    }

    /// Prompt rows that could run now: up to the first medium that is not encoded.
    fn ready_rows(&self, sequence: &Sequence, done: usize) -> usize {
        let coming = |key| !matches!(self.media.readiness(key), Readiness::Ready);
        if sequence.prompt.cross.as_ref().is_some_and(|ticket| coming(&ticket.lease.key)) {
            return 0;
        }
        let ahead = sequence.prompt.media.iter().filter(|span| span.rows.end > done);
        let until = ahead.filter(|span| coming(&span.ticket.lease.key)).map(|span| span.rows.start).min();
        until.unwrap_or(sequence.known()).saturating_sub(done)
    }

    fn clock(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.epoch)
    }

    /// Gives the planned requests their pages, from the first token to the last. Blocks that are found are not computed.
    pub(super) fn admit(&mut self, keys: &[SequenceKey]) {
        for key in keys {
            let Some(sequence) = self.sequences.get_mut(key) else { continue };
            let Resident { books, facts, .. } = &self.models[sequence.model];
            let page_tokens = facts.kv.pages.page_tokens;
            let findable = if self.prefixes { sequence.findable(page_tokens) } else { &[] };
            let asked = findable.len();
            let Some(Lease { table, shared, .. }) = books.lease_after(findable, sequence.needed.own) else { continue };
            let cross = match sequence.prompt.cross.as_ref().map(|ticket| ticket.lease.shape) {
                Some(MediaShape::Cross(frames)) => match books.lease(sequence.needed.cross) {
                    Some(Lease { table, .. }) => Some(Cross { table, frames, written: false }),
                    None => continue,
                },
                _ => None,
            };
            count(&self.shared.counters.prefix_blocks_hit, shared);
            count(&self.shared.counters.prefix_blocks_missed, asked - shared);
            let seat = Seat { table, cross, published: shared };
            sequence.phase = Phase::Admitted { seat, progress: Progress::Prompt { done: shared * page_tokens } };
        }
    }
}
