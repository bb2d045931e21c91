//! Answers: a conversation with leases in, text deltas out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weft_engine::grammar::GrammarSpec;
use weft_engine::handle::TokenStream;
use weft_engine::request::{
    Class, DeviceTimes, FinishReason, Generate, RequestId, Sampling, Segment, Token, TokenEvent, TokenRules, Usage,
};

use super::{Lease, Service};
use crate::error::{ErrorKind, Result, StageError};
use crate::text::{Content, Detokeniser, Piece, StopTexts, TextModel, Turn};

/// How to answer.
#[derive(Debug, Clone)]
pub struct AnswerOptions {
    /// Identity.
    pub id: RequestId,
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Most tokens in the answer; `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer (not part of it).
    pub stop: Vec<String>,
    /// What the answer must look like; `None`: anything.
    pub format: Option<GrammarSpec>,
    /// Class.
    pub class: Class,
    /// When the answer is no longer wanted.
    pub deadline: Option<Instant>,
    /// What templates take for the date.
    pub now: SystemTime,
}

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprob {
    /// Text of the token, lossy when it is a part of a character.
    pub token: String,
    /// Log-probability.
    pub logprob: f32,
    /// Alternatives, best first.
    pub top: Vec<(String, f32)>,
}

/// What a text stream carries. [`TextEvent::Finished`] or [`TextEvent::Failed`] comes exactly once, last.
#[derive(Debug, Clone)]
pub enum TextEvent {
    /// The prompt is in the cache.
    Started,
    /// New text; never ends inside a character, nor with what may become a stop text.
    Delta {
        /// The text; empty only when log-probabilities are left to tell.
        text: String,
        /// Log-probabilities of the tokens since the last delta, when asked.
        logprobs: Vec<Logprob>,
    },
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
        /// Device-side times; without the last one when a stop text ended the answer.
        times: DeviceTimes,
    },
    /// The answer failed.
    Failed(StageError),
}

/// The answer to a conversation. Dropping it cancels the request.
#[derive(Debug)]
pub struct TextStream {
    tokens: Option<TokenStream>,
    model: Arc<TextModel>,
    detokeniser: Detokeniser,
    stops: StopTexts,
    logprobs: Vec<Logprob>,
    usage: Usage,
    began: Instant,
    times: DeviceTimes,
    ready: VecDeque<TextEvent>,
    /// Time the text stage took to lay the prompt out, its queue included.
    pub laid_out: Duration,
}

impl Service {
    /// Tokens of a conversation's text, media not counted: for pricing.
    pub fn count_text<M: Clone>(&self, model: &str, turns: &[Turn<M>], now: SystemTime) -> Result<usize> {
        let pieces = self.served(model)?.text.layout(turns, now)?;
        let tokens = |piece: &Piece| if let Piece::Text(ids) = piece { ids.len() } else { 0 };
        Ok(pieces.iter().map(tokens).sum())
    }

    /// Answers a conversation: lays it out on the text workers, then queues it on the device.
    pub async fn answer(&self, model: &str, turns: Vec<Turn<Lease>>, options: AnswerOptions) -> Result<TextStream> {
        let served = self.served(model)?.clone();
        let began = Instant::now();
        let text = Arc::clone(&served.text);
        let (now, format) = (options.now, options.format);
        let lay_out = move || {
            let rules = match &format {
                Some(format) => TokenRules::Grammar(text.grammar(format)?),
                None => TokenRules::Free,
            };
            Ok::<_, StageError>((prompt(&text, &turns, now)?, rules))
        };
        let (prompt, rules) = self.inner.stages.text(lay_out).await??;
        let laid_out = began.elapsed();
        if options.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(StageError::new(ErrorKind::Deadline, "the time for this request is up"));
        }
        let media_tokens =
            prompt.iter().map(|segment| if let Segment::Media(ticket) = segment { ticket.tokens() } else { 0 });
        let media_tokens: usize = media_tokens.sum();
        let text_tokens: usize =
            prompt.iter().map(|segment| if let Segment::Text(ids) = segment { ids.len() } else { 0 }).sum();
        let usage = Usage { prompt_tokens: text_tokens + media_tokens, media_tokens, completion_tokens: 0 };
        let card = served.model.card();
        let room = card.context.saturating_sub(usage.prompt_tokens);
        if room == 0 {
            let text = format!(
                "the prompt has {} tokens ({media_tokens} of them media); model `{model}` has room for {}, answer included",
                usage.prompt_tokens, card.context
            );
            return Err(StageError::too_large(text));
        }
        let stream = served.model.generate(Generate {
            id: options.id,
            prompt,
            sampling: options.sampling,
            rules,
            end_tokens: card.end_tokens.clone(),
            max_tokens: options.max_tokens.unwrap_or(room).min(room),
            watch: Vec::new(),
            class: options.class,
            deadline: options.deadline,
        })?;
        Ok(TextStream {
            tokens: Some(stream),
            detokeniser: served.text.detokeniser(),
            model: served.text,
            stops: StopTexts::new(options.stop),
            logprobs: Vec::new(),
            usage,
            began: Instant::now(),
            times: DeviceTimes::default(),
            ready: VecDeque::new(),
            laid_out,
        })
    }
}

/// The engine's prompt: token runs and the leases' tickets in order.
fn prompt(model: &TextModel, turns: &[Turn<Lease>], now: SystemTime) -> Result<Vec<Segment>> {
    let (mut images, mut audios) = (Vec::new(), Vec::new());
    for content in turns.iter().flat_map(|turn| &turn.content) {
        match content {
            Content::Text(_) => {}
            Content::Image(lease) => images.push(&lease.ticket),
            Content::Audio(lease) => audios.push(&lease.ticket),
        }
    }
    let segment = |piece| match piece {
        Piece::Text(ids) => Segment::Text(ids),
        // The layout has exactly as many places as there are media.
        Piece::Image(at) => Segment::Media(images[at].clone()),
        Piece::Audio(at) => Segment::Media(audios[at].clone()),
    };
    Ok(model.layout(turns, now)?.into_iter().map(segment).collect())
}

impl TextStream {
    /// Prompt tokens, known before the first event.
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// The next event; `None` after the terminal one. Works under any async runtime.
    pub async fn next(&mut self) -> Option<TextEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let event = self.tokens.as_mut()?.next().await;
            self.take(event);
        }
    }

    fn take(&mut self, event: Option<TokenEvent>) {
        match event {
            Some(TokenEvent::Started { .. }) => {
                self.times.prefilled = self.began.elapsed();
                self.ready.push_back(TextEvent::Started);
            }
            Some(TokenEvent::Token(token)) => self.token(&token),
            Some(TokenEvent::Finished { reason, usage, times }) => {
                let rest = self.detokeniser.finish();
                let mut scan = self.stops.push(&rest);
                if !scan.stopped {
                    scan.text += &self.stops.finish();
                }
                self.delta(scan.text);
                let reason = if scan.stopped { FinishReason::Stop } else { reason };
                self.end(TextEvent::Finished { reason, usage, times });
            }
            Some(TokenEvent::Failed(error)) => self.end(TextEvent::Failed(error.into())),
            None => {
                let text = "the engine ended an answer without saying how";
                self.end(TextEvent::Failed(StageError::new(ErrorKind::Internal, text)));
            }
        }
    }

    fn token(&mut self, token: &Token) {
        if self.usage.completion_tokens == 0 {
            self.times.first_token = self.began.elapsed();
        }
        self.usage.completion_tokens += 1;
        if let Some(logprob) = token.logprob {
            let tokenizer = self.model.tokenizer();
            let top = token.top.iter().map(|&(id, logprob)| (tokenizer.token_text(id), logprob)).collect();
            self.logprobs.push(Logprob { token: tokenizer.token_text(token.id), logprob, top });
        }
        let delta = self.detokeniser.push(token.id);
        let scan = self.stops.push(&delta);
        if !scan.text.is_empty() || scan.stopped {
            self.delta(scan.text);
        }
        if scan.stopped {
            self.times.finished = self.began.elapsed();
            self.end(TextEvent::Finished { reason: FinishReason::Stop, usage: self.usage, times: self.times });
        }
    }

    fn delta(&mut self, text: String) {
        let logprobs = std::mem::take(&mut self.logprobs);
        if !text.is_empty() || !logprobs.is_empty() {
            self.ready.push_back(TextEvent::Delta { text, logprobs });
        }
    }

    /// The terminal event; the engine's stream is dropped, which cancels what still runs.
    fn end(&mut self, event: TextEvent) {
        self.tokens = None;
        self.ready.push_back(event);
    }
}
