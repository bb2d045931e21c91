//! What the runtime is started with, resolved: no options left open.

use std::path::PathBuf;
use std::time::Duration;

pub use weft_stages::{DeviceChoice, Policy, Speculation};

/// Where a model's weights lie.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder in the Hugging Face layout, or a GGUF file.
    Path(PathBuf),
    /// Files in memory, by name.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl ModelSource {
    /// As the engine takes it.
    pub(crate) fn resolved(&self) -> weft_stages::ModelSource {
        match self {
            Self::Path(path) => weft_stages::ModelSource::Path(path.clone()),
            Self::Embedded(files) => weft_stages::ModelSource::Embedded(files),
        }
    }
}

/// A model to load.
#[derive(Debug, Clone)]
pub struct ModelEntry {
    /// Name under which it is served.
    pub name: String,
    /// Weights.
    pub source: ModelSource,
    /// Dequantise to float32 instead of keeping the stored precision.
    pub float32: bool,
    /// Its answers mean nothing (the embedded first edition); said wherever answers are shown.
    pub placeholder: bool,
}

/// Limits on what one request may bring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes of one medium.
    pub media_bytes: usize,
    /// Pixels of one picture, as declared in its header.
    pub image_pixels: u64,
    /// Seconds of one clip.
    pub audio_seconds: f64,
    /// Media in one request.
    pub media_count: usize,
    /// Bytes of text in one request.
    pub prompt_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            media_bytes: 64 << 20,
            image_pixels: 100_000_000,
            audio_seconds: 3600.0,
            media_count: 32,
            prompt_bytes: 4 << 20,
        }
    }
}

/// What all requests in the works may hold together, and how long a caller is asked to wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Admission {
    /// Requests, those whose body is still read included.
    pub requests: usize,
    /// Bytes of bodies and media.
    pub bytes: usize,
    /// Pixels of pictures, as declared in their headers.
    pub pixels: u64,
    /// Seconds of clips.
    pub seconds: f64,
    /// Tokens of prompts and answers, at most.
    pub tokens: usize,
    /// Longest predicted wait of an interactive request; `None` takes [`Objectives::first_token_ms`].
    pub wait: Option<Duration>,
}

impl Default for Admission {
    fn default() -> Self {
        Self { requests: 288, bytes: 512 << 20, pixels: 400_000_000, seconds: 14_400.0, tokens: 4 << 20, wait: None }
    }
}

/// Latencies that the scheduler works towards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objectives {
    /// Milliseconds between two tokens of a running answer while encoders and prompts wait. `None`: one and a half times
    /// the decode step alone, as measured.
    pub inter_token_ms: Option<f32>,
    /// Milliseconds to the first token of an interactive request.
    pub first_token_ms: f32,
}

impl Default for Objectives {
    fn default() -> Self {
        Self { inter_token_ms: None, first_token_ms: 2000.0 }
    }
}

/// Everything the runtime needs.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// Models, loaded before the runtime is ready.
    pub models: Vec<ModelEntry>,
    /// Folders of pipeline definitions (`*.yaml`).
    pub pipelines: Vec<PathBuf>,
    /// What runs the models.
    pub device: DeviceChoice,
    /// CPU threads of the device; 0 takes the machine's cores.
    pub threads: usize,
    /// Bytes of KV pages per model; 0 lets the device choose.
    pub kv_bytes: usize,
    /// Bytes of encoder outputs kept.
    pub encoder_cache_bytes: usize,
    /// Most sequences in a decode step.
    pub max_batch: usize,
    /// Most requests waiting for the device.
    pub max_waiting: usize,
    /// How decode steps, encoders and prompts share the device.
    pub policy: Policy,
    /// Whether decode steps run guesses of the tokens to come.
    pub speculation: Speculation,
    /// What running answers and new requests should see.
    pub slo: Objectives,
    /// File in which learned costs outlive the process; `None` keeps none.
    pub costs: Option<PathBuf>,
    /// Limits of one request.
    pub limits: Limits,
    /// Limits of all requests together.
    pub admission: Admission,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            pipelines: Vec::new(),
            device: DeviceChoice::Auto,
            threads: 0,
            kv_bytes: 0,
            encoder_cache_bytes: 128 << 20,
            max_batch: 32,
            max_waiting: 256,
            policy: Policy::default(),
            speculation: Speculation::default(),
            slo: Objectives::default(),
            costs: None,
            limits: Limits::default(),
            admission: Admission::default(),
        }
    }
}

/// Name of the GPU that would be used, or why none is.
///
/// # Errors
/// What is missing, and what to install where there is a card without its libraries.
pub fn gpu() -> std::result::Result<String, String> {
    weft_stages::gpu().map_err(|error| error.to_string())
}
