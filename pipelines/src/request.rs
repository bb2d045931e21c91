//! What a caller asks: a pipeline or a model, a conversation with media, options.

use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// A piece of a message.
#[derive(Debug, Clone)]
pub enum Part {
    /// Text. Literal placeholder tokens in it never become media.
    Text(String),
    /// A picture file.
    Image(Bytes),
    /// A sound file.
    Audio(Bytes),
}

/// A message.
#[derive(Debug, Clone)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What, in order.
    pub parts: Vec<Part>,
}

/// What goes into a pipeline: either a whole conversation, or media and a prompt.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// A conversation; used alone when not empty.
    pub messages: Vec<Message>,
    /// Pictures.
    pub images: Vec<Bytes>,
    /// Clips.
    pub audios: Vec<Bytes>,
    /// The question.
    pub prompt: Option<String>,
}

impl Input {
    /// Bytes of its media and its text.
    pub fn bytes(&self) -> usize {
        let part = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Image(file) | Part::Audio(file) => file.len(),
        };
        let messages = self.messages.iter().flat_map(|message| &message.parts).map(part);
        let files = self.images.iter().chain(&self.audios).map(Bytes::len);
        messages.chain(files).sum::<usize>() + self.prompt.as_ref().map_or(0, String::len)
    }
}

/// Options of an answer. `None` takes the pipeline's value, else the checkpoint's, else greedy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Most tokens in the answer.
    pub max_tokens: Option<usize>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1 keeps all.
    pub top_p: Option<f32>,
    /// 0 keeps all.
    pub min_p: Option<f32>,
    /// 1 does nothing.
    pub repetition_penalty: Option<f32>,
    /// 0 does nothing.
    pub presence_penalty: Option<f32>,
    /// 0 does nothing.
    pub frequency_penalty: Option<f32>,
    /// Same seed, same draws.
    pub seed: Option<u64>,
    /// Texts that end the answer (not part of it).
    pub stop: Vec<String>,
    /// Log-probabilities with this many alternatives.
    pub logprobs: Option<u32>,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// What the answer must look like; anything when left out.
    pub format: Option<Format>,
    /// Transcription: language code.
    pub language: Option<String>,
    /// Transcription: translate into English instead.
    pub translate: bool,
    /// Transcription: segments with times. `None` takes the pipeline's choice.
    pub timestamps: Option<bool>,
}

/// What an answer must look like. It ends when it is complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Any JSON object.
    Json,
    /// JSON that this schema accepts.
    JsonSchema(serde_json::Value),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this Lark grammar, beginning at `start`.
    Lark(String),
}

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// A person.
    #[default]
    Interactive,
    /// A batch job.
    Batch,
}

/// What answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A named pipeline.
    Pipeline(String),
    /// A model by name, through its built-in pipeline (chat for generating models, transcribe for Whisper).
    Model(String),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// What answers.
    pub target: Target,
    /// Input.
    pub input: Input,
    /// Options.
    pub options: Options,
    /// Class.
    pub class: Class,
    /// When the answer is no longer wanted.
    pub deadline: Option<Instant>,
}
