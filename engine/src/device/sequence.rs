//! A request on the device thread: its prompt, its pages, its way back.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::draft::Drafter;
use crate::books::{BlockChain, BlockKey, BlockTable};
use crate::check::PagesNeeded;
use crate::device::command::{GenerateOrder, MOST_FORCED, STREAM_EVENTS};
use crate::device::shared::{MediaKey, MediaShape, WaitingPermit};
use crate::error::EngineError;
use crate::families::{Positions, PromptPart};
use crate::handle::MediaTicket;
use crate::request::{Class, DeviceTimes, FinishReason, Segment, Token, TokenEvent, Usage};
use crate::sampling::Sampler;

/// A live request. Dropping it returns its pages, its permit and its tickets.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) model: usize,
    pub(super) class: Class,
    pub(super) arrived: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) prompt: PromptRows,
    pub(super) needed: PagesNeeded,
    pub(super) phase: Phase,
    pub(super) sampler: Sampler,
    pub(super) times: DeviceTimes,
    /// Its guesses of the next tokens.
    pub(super) drafter: Drafter,
    events: flume::Sender<TokenEvent>,
    end_tokens: Vec<u32>,
    max_tokens: usize,
    watches: bool,
    /// Answer tokens so far.
    answer: Vec<u32>,
    /// Keys of the full blocks of prompt and answer.
    chain: BlockChain,
}

/// A prompt as rows of a step's input.
#[derive(Debug)]
pub(super) struct PromptRows {
    /// Token of every row; 0 under media.
    pub(super) ids: Vec<u32>,
    /// Media and the rows they take, in order.
    pub(super) media: Vec<MediaSpan>,
    pub(super) positions: Positions,
    /// The clip that is attended to (Whisper).
    pub(super) cross: Option<MediaTicket>,
}

/// A medium in a prompt.
#[derive(Debug)]
pub(super) struct MediaSpan {
    pub(super) ticket: MediaTicket,
    pub(super) rows: Range<usize>,
}

/// How far a request is.
#[derive(Debug)]
pub(super) enum Phase {
    /// For its pages.
    Waiting(#[expect(dead_code, reason = "held for its drop")] WaitingPermit),
    /// With pages.
    Admitted { seat: Seat, progress: Progress },
}

/// An admitted sequence's pages, from its first token to its last.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) table: BlockTable,
    pub(super) cross: Option<Cross>,
    /// Full blocks that others can find.
    pub(super) published: usize,
}

/// Pages of the encoded frames that a sequence attends to.
#[derive(Debug)]
pub(super) struct Cross {
    pub(super) table: BlockTable,
    pub(super) frames: usize,
    pub(super) written: bool,
}

/// Where an admitted sequence stands. Its rows are the prompt's and then the answer's tokens.
#[derive(Debug, Clone, Copy)]
pub(super) enum Progress {
    /// This many rows are in the cache, and not all that were known when it was admitted.
    Prompt { done: usize },
    /// This many rows are in the cache; the answer's last token is not. `stepped` is the number of the last decode step.
    Answer { cached: usize, stepped: u64 },
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum Ending {
    Finished(FinishReason),
    Failed(EngineError),
    /// Nobody listens any more.
    Gone,
}

impl PromptRows {
    /// Enters the rows into a chain of blocks.
    fn enter(&self, chain: &mut BlockChain) {
        let mut from = 0;
        for span in &self.media {
            self.ids[from..span.rows.start].iter().for_each(|&id| chain.push(id));
            chain.push_medium(span.ticket.lease.key, span.ticket.lease.shape);
            from = span.rows.end;
        }
        self.ids[from..].iter().for_each(|&id| chain.push(id));
    }
}

impl PromptRows {
    /// Enters the rows into the text that guesses are looked up in.
    fn follow(&self, drafter: &mut Drafter) {
        let mut from = 0;
        for span in &self.media {
            self.ids[from..span.rows.start].iter().for_each(|&id| drafter.push(id));
            drafter.push_medium(span.rows.len());
            from = span.rows.end;
        }
        self.ids[from..].iter().for_each(|&id| drafter.push(id));
    }
}

impl Sequence {
    /// A waiting sequence; `positions` gives those of a prompt's parts, `chain` begins the keys of one that attends to
    /// this clip.
    pub(super) fn new(
        order: GenerateOrder,
        (max_tokens, needed): (usize, PagesNeeded),
        positions: impl FnOnce(&[PromptPart]) -> Positions,
        chain: impl FnOnce(Option<(MediaKey, MediaShape)>) -> BlockChain,
    ) -> Self {
        let GenerateOrder { model, request, rules, events, permit, arrived } = order;
        let watches = !request.watch.is_empty();
        let mut sampler = Sampler::new(request.sampling, rules, request.watch);
        let (mut ids, mut media, mut cross, mut parts) = (Vec::new(), Vec::new(), None, Vec::new());
        for segment in request.prompt {
            match segment {
                Segment::Text(text) => {
                    sampler.note_prompt(&text);
                    parts.push(PromptPart::Text(text.len()));
                    ids.extend(text);
                }
                Segment::Media(ticket) => {
                    match ticket.lease.shape {
                        MediaShape::Image(grid, _) => parts.push(PromptPart::Image(grid)),
                        MediaShape::Audio(tokens) => parts.push(PromptPart::Audio(tokens)),
                        MediaShape::Cross(_) => {
                            cross = Some(ticket);
                            continue;
                        }
                    }
                    let rows = ids.len()..ids.len() + ticket.tokens();
                    ids.resize(rows.end, 0);
                    media.push(MediaSpan { ticket, rows });
                }
            }
        }
        let prompt = PromptRows { positions: positions(&parts), ids, media, cross };
        let mut chain = chain(prompt.cross.as_ref().map(|ticket| (ticket.lease.key, ticket.lease.shape)));
        prompt.enter(&mut chain);
        let mut drafter = Drafter::new();
        prompt.follow(&mut drafter);
        Self {
            model,
            class: request.class,
            arrived,
            deadline: request.deadline,
            prompt,
            needed,
            phase: Phase::Waiting(permit),
            sampler,
            times: DeviceTimes::default(),
            drafter,
            events,
            end_tokens: request.end_tokens,
            max_tokens,
            watches,
            answer: Vec::new(),
            chain,
        }
    }

    /// Rows that are known: the prompt's and the answer's.
    pub(super) fn known(&self) -> usize {
        self.prompt.ids.len() + self.answer.len()
    }

    /// Token and position of a row; `drafts` come after the known ones.
    pub(super) fn row(&self, at: usize, drafts: &[u32]) -> Option<(u32, [u32; 3])> {
        let Some(answered) = at.checked_sub(self.prompt.ids.len()) else {
            return Some((self.prompt.ids[at], self.prompt.positions.rows[at]));
        };
        let draft = || drafts.get(answered - self.answer.len());
        let id = *self.answer.get(answered).or_else(draft)?;
        Some((id, [self.prompt.positions.next + u32::try_from(answered).ok()?; 3]))
    }

    /// Blocks of its prompt that may be found instead of computed. The last known row always runs: its logits choose the
    /// next token.
    pub(super) fn findable(&self, page_tokens: usize) -> &[BlockKey] {
        &self.chain.keys()[..self.known().saturating_sub(1) / page_tokens]
    }

    /// Lets others find the blocks that are full now that this many rows are in the cache.
    pub(super) fn publish(&mut self, cached: usize, page_tokens: usize) {
        let Phase::Admitted { seat, .. } = &mut self.phase else { return };
        let full = (cached / page_tokens).min(self.chain.keys().len());
        for block in seat.published..full {
            seat.table.publish(block, self.chain.keys()[block]);
        }
        seat.published = seat.published.max(full);
    }

    /// Answer tokens so far.
    pub(super) fn produced(&self) -> usize {
        self.answer.len()
    }

    /// Most answer tokens that may still come.
    pub(super) fn expects(&self) -> usize {
        self.max_tokens - self.produced().min(self.max_tokens)
    }

    /// Its reader went away.
    pub(super) fn gone(&self) -> bool {
        self.events.is_disconnected()
    }

    /// Its stream has room for a step's events.
    pub(super) fn flows(&self) -> bool {
        self.events.len() < STREAM_EVENTS
    }

    /// Notes its first work on the device.
    pub(super) fn touch(&mut self) {
        if self.times.queued.is_zero() {
            self.times.queued = self.since_arrival();
        }
    }

    /// Takes a sampled token: tells the reader, and says whether the answer ends here.
    pub(super) fn take(&mut self, sampled: weft_kernels::shapes::Sampled) -> Option<FinishReason> {
        if self.answer.is_empty() {
            self.times.prefilled = self.since_arrival();
            let watched = if self.watches { sampled.watched } else { Vec::new() };
            self.tell(TokenEvent::Started { watched });
        }
        if self.end_tokens.contains(&sampled.token) {
            return Some(FinishReason::Stop);
        }
        if self.answer.is_empty() {
            self.times.first_token = self.since_arrival();
        }
        self.append(Token { id: sampled.token, logprob: sampled.logprob, top: sampled.top })
    }

    /// Appends the tokens that the rules leave no choice about: they need no logits, so they go through the decoder beside
    /// the next chosen one. Says whether the answer ends with them.
    pub(super) fn force(&mut self) -> Option<FinishReason> {
        let mut left = MOST_FORCED;
        loop {
            let tokens = self.sampler.forced(left.min(self.max_tokens - self.answer.len()));
            if tokens.is_empty() {
                return None;
            }
            left -= tokens.len();
            for id in tokens {
                if self.end_tokens.contains(&id) {
                    return Some(FinishReason::Stop);
                }
                let reason = self.append(Token { id, logprob: None, top: Vec::new() });
                if reason.is_some() {
                    return reason;
                }
            }
        }
    }

    fn append(&mut self, token: Token) -> Option<FinishReason> {
        self.sampler.push(token.id);
        self.answer.push(token.id);
        self.chain.push(token.id);
        self.drafter.push(token.id);
        self.tell(TokenEvent::Token(token));
        if self.sampler.complete() {
            return Some(FinishReason::Stop);
        }
        (self.answer.len() == self.max_tokens).then_some(FinishReason::Length)
    }

    /// Tells the reader how it ended, and returns everything it held.
    pub(super) fn end(mut self, ending: Ending) {
        self.times.finished = self.since_arrival();
        let usage = Usage {
            prompt_tokens: self.prompt.ids.len(),
            media_tokens: self.prompt.media.iter().map(|span| span.rows.len()).sum(),
            completion_tokens: self.answer.len(),
        };
        let times = self.times;
        let Self { events, phase, prompt, .. } = self;
        // Pages, permit and tickets first: whoever reads the end finds them returned.
        drop((phase, prompt));
        let event = match ending {
            Ending::Finished(reason) => TokenEvent::Finished { reason, usage, times },
            Ending::Failed(error) => TokenEvent::Failed(error),
            Ending::Gone => return,
        };
        send(&events, event);
    }

    fn tell(&self, event: TokenEvent) {
        send(&self.events, event);
    }

    fn since_arrival(&self) -> Duration {
        self.arrived.elapsed()
    }
}

/// A sequence only runs while its stream has room for a step's events and the terminal one, so a send fails only when
/// the reader is gone, which the next settle notices.
fn send(events: &flume::Sender<TokenEvent>, event: TokenEvent) {
    if let Err(flume::TrySendError::Full(_)) = events.try_send(event) {
        tracing::error!("a token stream had no room for an event that was accounted for");
    }
}
