//! What the runtime has: pipelines, models and counts, for listings, metrics and health.

use serde::{Deserialize, Serialize};

pub use weft_stages::{EngineStats, StepKind};

/// How many of a kind of input a pipeline takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arity {
    /// None; bringing one is an error.
    #[default]
    None,
    /// At most one.
    Optional,
    /// Exactly one.
    Required,
    /// Any number, none included.
    Many,
}

impl Arity {
    /// Whether this many fit.
    pub const fn accepts(self, count: usize) -> bool {
        match self {
            Self::None => count == 0,
            Self::Optional => count <= 1,
            Self::Required => count == 1,
            Self::Many => true,
        }
    }
}

/// A pipeline in a listing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PipelineSummary {
    /// Name by which it is asked for.
    pub name: String,
    /// What it does, one line.
    pub description: String,
    /// Pictures it takes.
    pub images: Arity,
    /// Clips it takes.
    pub audios: Arity,
    /// Prompts it takes.
    pub prompt: Arity,
    /// Output stage.
    pub output: String,
    /// Models it uses.
    pub models: Vec<String>,
    /// File it was read from, or `built-in`.
    pub source: String,
    /// Some of its models are placeholders whose answers mean nothing.
    pub placeholder: bool,
    /// Why it cannot run here (a model is missing), with the remedy.
    pub unavailable: Option<String>,
}

/// What a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Answers conversations.
    Generate,
    /// Writes down speech.
    Transcribe,
}

/// A model in a listing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// Name under which it is served.
    pub name: String,
    /// Family.
    pub family: String,
    /// What it does.
    pub kind: ModelKind,
    /// Whether it sees.
    pub image: bool,
    /// Whether it hears.
    pub audio: bool,
    /// Longest sequence in tokens, prompt and answer together.
    pub context: usize,
    /// Parameters.
    pub parameters: u64,
    /// Storage of most weights.
    pub dtype: String,
    /// Its answers mean nothing.
    pub placeholder: bool,
}

/// Jobs waiting in and capacity of one stage's inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageDepth {
    /// Stage (`image`, `audio`).
    pub stage: String,
    /// Jobs waiting.
    pub waiting: usize,
    /// Jobs that fit.
    pub capacity: usize,
}

/// Counts; a snapshot.
#[derive(Debug, Clone, Default)]
pub struct RuntimeStats {
    /// Of the engine.
    pub engine: EngineStats,
    /// Of the stages.
    pub stages: Vec<StageDepth>,
    /// Requests running.
    pub requests: usize,
    /// Requests in the house, those whose body is still read included.
    pub entered: usize,
    /// Bytes of bodies and media that they hold.
    pub held_bytes: usize,
    /// Predicted wait of the next request.
    pub wait: std::time::Duration,
    /// Requests refused at the door, by reason.
    pub refused: Vec<(&'static str, u64)>,
}
