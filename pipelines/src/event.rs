//! What a running request tells its caller.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop text.
    Stop,
    /// The token limit or the end of the context.
    Length,
}

/// What a request cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens, media included.
    pub prompt_tokens: usize,
    /// Of these, tokens that stand for media.
    pub media_tokens: usize,
    /// Answer tokens.
    pub completion_tokens: usize,
}

/// A token with its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Text of the token (lossy when it is a part of a character).
    pub token: String,
    /// Log-probability.
    pub logprob: f32,
    /// Alternatives, best first.
    pub top: Vec<(String, f32)>,
}

/// A piece of a transcript.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TranscriptSegment {
    /// Number, from 0.
    pub id: usize,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Text.
    pub text: String,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Mean log-probability of its tokens.
    pub avg_logprob: f32,
    /// Probability that nobody speaks.
    pub no_speech_prob: f32,
    /// Size of the text over its compressed size.
    pub compression_ratio: f32,
    /// Temperature that produced it.
    pub temperature: f32,
}

/// One span of a request's timeline, from the request's start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Stage id, or a step of one (`answer/prefill`).
    pub name: String,
    /// Start in milliseconds.
    pub start_ms: f64,
    /// End in milliseconds.
    pub end_ms: f64,
    /// What was measured or noticed, for people (`640x480 png, 391 tokens`).
    pub note: String,
}

/// The end of a request that went well.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The pipeline's output text.
    pub text: String,
    /// Output text of every stage that makes text, by stage id, in order.
    pub outputs: Vec<(String, String)>,
    /// Why the last answer ended.
    pub finish_reason: Option<FinishReason>,
    /// Costs, over all stages.
    pub usage: Usage,
    /// Log-probabilities, when asked.
    pub logprobs: Vec<TokenLogprob>,
    /// Transcript segments, when a stage transcribed.
    pub segments: Vec<TranscriptSegment>,
    /// Detected or given language of the transcript.
    pub language: Option<String>,
    /// Length of the transcribed clip in seconds.
    pub duration: Option<f64>,
    /// Timeline.
    pub spans: Vec<Span>,
    /// What was tolerated (skipped damaged packets, first frame of an animation).
    pub warnings: Vec<String>,
}

/// What a request's stream carries. [`Event::Done`] or [`Event::Failed`] comes exactly once, last.
#[derive(Debug, Clone)]
pub enum Event {
    /// A stage began.
    StageStarted {
        /// Stage id.
        stage: String,
    },
    /// A stage ended.
    StageFinished {
        /// Stage id.
        stage: String,
        /// How long it took.
        took: Duration,
        /// For people.
        note: String,
    },
    /// Text of the output stage.
    Text {
        /// The new piece.
        delta: String,
        /// Log-probabilities of its tokens, when asked.
        logprobs: Vec<TokenLogprob>,
    },
    /// A finished transcript segment of the output stage.
    Segment(TranscriptSegment),
    /// The end.
    Done(Box<Outcome>),
    /// The end, badly.
    Failed(Error),
}
