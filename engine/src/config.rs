//! Sizes, policies and models of an engine, resolved: no option is left open.

use std::path::PathBuf;

use crate::error::{EngineError, ErrorKind, Result};

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

/// What runs the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The GPU where there is one, otherwise the CPU, with a log line that says why.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU, or no start.
    Cuda,
}

/// How decode steps and compute-bound work (encoders, prompts) share the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Whole encoders and whole prompts before the next decode step: the baseline.
    Inline,
    /// Bounded slices of encoders and prompts between two decode steps.
    Slice,
    /// Both at once on disjoint parts of the device, where it can be parted; else slices.
    Partition,
    /// Slices, or a partition where the model of costs says that it gives encoders more at the same inter-token time.
    #[default]
    Auto,
}

/// Whether decode steps also run guesses of the tokens to come. Answers are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculation {
    /// One token a sequence and step.
    #[default]
    Off,
    /// Guesses are what followed the last three tokens earlier in prompt or answer; as many run as pay, by the measured
    /// times of steps and the share of guesses that came true.
    Ngram,
}

/// Sizes and policies of the engine, resolved.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Models, loaded before [`Engine::start`](crate::handle::Engine::start) returns.
    pub models: Vec<ModelConfig>,
    /// What runs the models.
    pub device: DeviceChoice,
    /// CPU threads; 0 takes the machine's cores.
    pub threads: usize,
    /// Tokens in a KV page.
    pub page_tokens: usize,
    /// Bytes of KV pages a model may use; 0 takes 512 MiB, or on a GPU an equal share of most of what is free there.
    pub kv_bytes: usize,
    /// Whether full KV pages are found again by their content.
    pub prefix_cache: bool,
    /// Bytes of encoder outputs kept after their last ticket is gone, for the next request with the same medium.
    pub encoder_cache_bytes: usize,
    /// Bytes of media that tickets may hold: prepared input until the encoder has run, its output afterwards.
    pub media_bytes: usize,
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
    /// Guesses of the tokens to come.
    pub speculation: Speculation,
    /// Inter-token time that running answers may see while encoders and prompts wait, as a multiple of the decode step
    /// alone (as measured). Slices are kept within what this leaves.
    pub inter_token_target: f32,
    /// The same in milliseconds; where set, it replaces the multiple.
    pub inter_token_ms: Option<f32>,
    /// Time to the first token that interactive requests should see, in milliseconds: work is ordered by when its request
    /// is due, which is this long after its arrival, or at its deadline if that is sooner.
    pub first_token_ms: f32,
    /// File in which learned costs outlive the process; `None` keeps none.
    pub costs: Option<PathBuf>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            device: DeviceChoice::default(),
            threads: 0,
            page_tokens: 16,
            kv_bytes: 512 << 20,
            prefix_cache: true,
            encoder_cache_bytes: 128 << 20,
            media_bytes: 1 << 30,
            max_batch: 32,
            prefill_chunk: 256,
            encoder_slice_layers: 0,
            max_waiting: 256,
            policy: Policy::default(),
            speculation: Speculation::default(),
            inter_token_target: 1.5,
            inter_token_ms: None,
            first_token_ms: 2000.0,
            costs: None,
        }
    }
}

/// Longest target that means anything: an hour.
const MOST_MS: f32 = 3.6e6;

impl EngineConfig {
    /// Refuses sizes with which nothing could ever run.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("page_tokens", self.page_tokens),
            ("max_batch", self.max_batch),
            ("prefill_chunk", self.prefill_chunk),
            ("max_waiting", self.max_waiting),
        ];
        for (name, value) in sizes {
            if value == 0 {
                return Err(EngineError::new(ErrorKind::Malformed, format!("{name} must be at least 1")));
            }
        }
        if !self.inter_token_target.is_finite() || self.inter_token_target <= 1.0 {
            let detail = format!("inter_token_target is {}; it must be over 1", self.inter_token_target);
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        let times = [("inter_token_ms", self.inter_token_ms), ("first_token_ms", Some(self.first_token_ms))];
        for (name, time) in times.iter().filter_map(|(name, time)| Some((name, (*time)?))) {
            if !(time > 0.0 && time <= MOST_MS) {
                let detail = format!("{name} is {time}; it must be over 0 and at most {MOST_MS}");
                return Err(EngineError::new(ErrorKind::Malformed, detail));
            }
        }
        for (at, model) in self.models.iter().enumerate() {
            if self.models[..at].iter().any(|other| other.name == model.name) {
                return Err(EngineError::new(ErrorKind::Malformed, format!("two models are called {}", model.name)));
            }
        }
        Ok(())
    }
}
