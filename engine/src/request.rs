//! What callers ask of the engine and what comes back.

use std::time::{Duration, Instant};

use crate::error::EngineError;
use crate::handle::MediaTicket;

/// Identity of a request, chosen by the caller; cancelling and timelines go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Who waits for the answer. Interactive work goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// A person waits.
    #[default]
    Interactive,
    /// A batch job; may be postponed.
    Batch,
}

/// A piece of a prompt, in order.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Token ids, special tokens included.
    Text(Vec<u32>),
    /// An encoded medium, spliced in as `ticket.tokens()` rows (or attended to, for Whisper).
    Media(MediaTicket),
}

/// How tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 does nothing.
    pub repetition_penalty: f32,
    /// Taken from logits of tokens already in the answer.
    pub presence_penalty: f32,
    /// Taken from logits per occurrence in the answer.
    pub frequency_penalty: f32,
    /// Added to single logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the request's own random stream; the n-th token's draw depends on seed and n alone.
    pub seed: u64,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// Rules on which tokens may come next, beyond sampling.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum TokenRules {
    /// None.
    #[default]
    Free,
    /// Only these tokens (language detection).
    OneOf(Vec<u32>),
    /// Only tokens that continue a text of this grammar. The answer ends with the text.
    Grammar(crate::grammar::Grammar),
    /// Whisper's suppression and timestamp rules.
    Transcription {
        /// Rules of the model.
        card: std::sync::Arc<crate::card::TranscriptionCard>,
        /// Whether timestamps are produced.
        timestamps: bool,
        /// The first answer tokens, given (language, task, `<|notimestamps|>`). They are part of the answer, so the
        /// prompt ends with `<|startoftranscript|>` and [`Generate::watch`] sees the step after it, where the
        /// probability of no speech is defined.
        forced: Vec<u32>,
    },
}

/// A request for tokens.
#[derive(Debug, Clone)]
pub struct Generate {
    /// Identity.
    pub id: RequestId,
    /// Prompt.
    pub prompt: Vec<Segment>,
    /// Choice of tokens.
    pub sampling: Sampling,
    /// Rules.
    pub rules: TokenRules,
    /// Tokens that end the answer (not part of it).
    pub end_tokens: Vec<u32>,
    /// Most tokens in the answer.
    pub max_tokens: usize,
    /// Tokens whose log-probability at the first step is reported in [`TokenEvent::Started`].
    pub watch: Vec<u32>,
    /// Class.
    pub class: Class,
    /// When the answer is no longer wanted.
    pub deadline: Option<Instant>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end token.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
}

/// One token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Id.
    pub id: u32,
    /// Its log-probability, when asked.
    pub logprob: Option<f32>,
    /// Most probable tokens, best first, when asked.
    pub top: Vec<(u32, f32)>,
}

/// What a request cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, media included.
    pub prompt_tokens: usize,
    /// Prompt tokens that stand for media.
    pub media_tokens: usize,
    /// Answer tokens.
    pub completion_tokens: usize,
}

/// Device-side times of a request, from its arrival at the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTimes {
    /// Until its first work on the device.
    pub queued: Duration,
    /// Until its prompt was in the cache.
    pub prefilled: Duration,
    /// Until its first token.
    pub first_token: Duration,
    /// Until its last token.
    pub finished: Duration,
}

/// What a token stream carries. [`TokenEvent::Finished`] or [`TokenEvent::Failed`] comes exactly once, last.
#[derive(Debug, Clone)]
pub enum TokenEvent {
    /// The prompt is in the cache; log-probabilities of the watched tokens.
    Started {
        /// In the order of [`Generate::watch`].
        watched: Vec<f32>,
    },
    /// A token.
    Token(Token),
    /// The answer is complete.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts.
        usage: Usage,
        /// Times.
        times: DeviceTimes,
    },
    /// The answer failed.
    Failed(EngineError),
}
