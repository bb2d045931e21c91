//! The handles that everyone but the device thread holds.

use std::path::PathBuf;
use std::sync::Arc;

use crate::card::ModelCard;
use crate::error::Result;
use crate::media::{MediaId, Medium};
use crate::request::{Generate, TokenEvent};

/// Where the weights of a model lie.
#[derive(Debug, Clone)]
pub enum ModelSource {
    /// A folder in the Hugging Face layout, or a GGUF file.
    Path(PathBuf),
    /// Files in memory, by name (the embedded model).
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// How weights are kept on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// As stored in the checkpoint.
    #[default]
    Stored,
    /// Dequantised to float32.
    Float32,
}

/// A model to load.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    /// Name under which it is served.
    pub name: String,
    /// Weights.
    pub source: ModelSource,
    /// Storage on the device.
    pub precision: Precision,
}

/// What runs between two decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Whole encoders and whole prompts before the next decode step: the baseline.
    Inline,
    /// A bounded slice of encoder or prefill work between two decode steps.
    #[default]
    Slice,
}

/// Sizes and policies of the engine, resolved.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Models, loaded before [`Engine::start`] returns.
    pub models: Vec<ModelConfig>,
    /// CPU threads; 0 takes the machine's cores.
    pub threads: usize,
    /// Tokens in a KV page.
    pub page_tokens: usize,
    /// Bytes of KV pages a model may use.
    pub kv_bytes: usize,
    /// Bytes of encoder outputs kept.
    pub encoder_cache_bytes: usize,
    /// Most sequences in a decode step.
    pub max_batch: usize,
    /// Most prompt tokens in one prefill slice.
    pub prefill_chunk: usize,
    /// Encoder layers in one slice; 0 leaves it to the scheduler.
    pub encoder_slice_layers: usize,
    /// Most requests waiting for admission; one more is `Overloaded`.
    pub max_waiting: usize,
    /// Policy.
    pub policy: Policy,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            threads: 0,
            page_tokens: 16,
            kv_bytes: 512 << 20,
            encoder_cache_bytes: 128 << 20,
            max_batch: 32,
            prefill_chunk: 256,
            encoder_slice_layers: 0,
            max_waiting: 256,
            policy: Policy::default(),
        }
    }
}

/// A running engine: one device thread and its models. Dropping the last clone stops and joins the thread.
#[derive(Debug, Clone)]
pub struct Engine {
    // device agent fills this in
}

/// Counts that the engine keeps; a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences decoding or in prefill.
    pub running: usize,
    /// Requests waiting for admission.
    pub waiting: usize,
    /// KV pages in use, over all models.
    pub kv_pages_used: usize,
    /// KV pages in all.
    pub kv_pages_total: usize,
    /// Bytes of encoder outputs held.
    pub encoder_cache_bytes: usize,
    /// Encoder outputs found in the cache.
    pub encoder_cache_hits: u64,
    /// Encoder runs.
    pub encoder_cache_misses: u64,
    /// Decode steps.
    pub decode_steps: u64,
    /// Prefill slices.
    pub prefill_slices: u64,
    /// Encoder slices.
    pub encoder_slices: u64,
    /// Tokens produced.
    pub tokens_out: u64,
    /// Prompt tokens processed.
    pub tokens_in: u64,
    /// Idle audits in which the books did not balance. Anything but 0 is a fault.
    pub audit_failures: u64,
    /// Beats of the device loop; stands still only when there is no work.
    pub beats: u64,
}

impl Engine {
    /// Starts the device thread, loads the models and returns when they are ready.
    pub fn start(config: EngineConfig) -> Result<Self> {
        let _ = config;
        todo!()
    }

    /// The loaded models.
    pub fn models(&self) -> Vec<Model> {
        todo!()
    }

    /// A model by name, or `NotFound` naming those there are.
    pub fn model(&self, name: &str) -> Result<Model> {
        let _ = name;
        todo!()
    }

    /// Name of the device for people.
    pub fn device(&self) -> String {
        todo!()
    }

    /// Counts.
    pub fn stats(&self) -> EngineStats {
        todo!()
    }
}

/// A loaded model.
#[derive(Debug, Clone)]
pub struct Model {
    // engine: handle; card
}

impl Model {
    /// What it is.
    pub fn card(&self) -> &Arc<ModelCard> {
        todo!()
    }

    /// Queues a medium for its encoder and returns at once with a lease on the (future) output. A medium whose identity
    /// is in the cache or in the queue is not encoded again. `Overloaded` when the byte budget or the inbox is full.
    pub fn encode(&self, medium: Medium) -> Result<MediaTicket> {
        let _ = medium;
        todo!()
    }

    /// Queues a request. Checks what can be checked before any work (context length, media of the right kind, empty
    /// prompt); `Overloaded` when too many wait.
    pub fn generate(&self, request: Generate) -> Result<TokenStream> {
        let _ = request;
        todo!()
    }
}

/// A lease on one encoder output, ready or to come. Cloning shares it; the output may be evicted once all clones are
/// gone. Dropping all clones before the encoder ran cancels its work.
#[derive(Debug, Clone)]
pub struct MediaTicket {
    // device agent fills this in
}

impl MediaTicket {
    /// Identity of the medium.
    pub fn id(&self) -> MediaId {
        todo!()
    }

    /// Prompt tokens it stands for (0 for Whisper).
    pub fn tokens(&self) -> usize {
        todo!()
    }
}

/// The answer to a [`Generate`]: a bounded channel of events. Dropping it cancels the request.
#[derive(Debug)]
pub struct TokenStream {
    // device agent fills this in
}

impl TokenStream {
    /// The next event; `None` after the terminal one. Works under any async runtime.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        todo!()
    }

    /// Blocking form of [`TokenStream::next`].
    pub fn next_blocking(&mut self) -> Option<TokenEvent> {
        todo!()
    }
}
