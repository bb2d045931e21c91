//! What a loaded model tells the world: sizes, special tokens, and the constants its media need.
//!
//! The stages take patch sizes, normalisation constants, mel bands and token counts from here; no such constant stands
//! anywhere else.

use std::sync::Arc;

use crate::error::{EngineError, ErrorKind, Result};
pub use crate::families::Family;

/// Everything about a loaded model that its users need.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Name under which it is served.
    pub name: String,
    /// Family.
    pub family: Family,
    /// Parameters.
    pub parameters: u64,
    /// Storage of most weights, for people (`bf16`, `q4_1`).
    pub dtype: String,
    /// Bytes of weights on the device.
    pub weight_bytes: u64,
    /// Vocabulary size (rows of logits).
    pub vocabulary: usize,
    /// Longest sequence, prompt and answer together.
    pub context: usize,
    /// Tokens that end an answer (from the generation config, else the config).
    pub end_tokens: Vec<u32>,
    /// How pictures must be prepared; `None` when the model has no eyes.
    pub image: Option<ImageProcessor>,
    /// How clips must be prepared; `None` when the model has no ears.
    pub audio: Option<AudioProcessor>,
    /// Placeholder token that stands for pictures in the template's output.
    pub image_token: Option<u32>,
    /// Placeholder token that stands for clips in the template's output.
    pub audio_token: Option<u32>,
    /// Tokenizer as the checkpoint holds it.
    pub tokenizer: TokenizerSource,
    /// Jinja chat template, when the checkpoint has one.
    pub chat_template: Option<String>,
    /// Text forms of special tokens that templates use (`bos_token`, `eos_token`, ...).
    pub template_tokens: Vec<(String, String)>,
    /// Whisper's decoding rules.
    pub transcription: Option<Arc<crate::card::TranscriptionCard>>,
    /// Sampling defaults of the checkpoint's generation config.
    pub generation: GenerationDefaults,
}

/// Sampling defaults that a checkpoint recommends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Top-k.
    pub top_k: Option<u32>,
    /// Top-p.
    pub top_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
}

/// Where the tokenizer comes from.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// The bytes of a `tokenizer.json`.
    Json(Arc<[u8]>),
    /// The vocabulary of a GGUF file.
    Gguf(Arc<GgufVocabulary>),
}

/// A GGUF file's `tokenizer.ggml.*` fields.
#[derive(Debug, Clone, Default)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model` (`gpt2` is byte-level BPE, `llama` is SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: name of the pre-tokenizer.
    pub pre: String,
    /// Tokens by id.
    pub tokens: Vec<String>,
    /// Scores by id (SentencePiece).
    pub scores: Vec<f32>,
    /// Token types by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// BPE merges in rank order, each `left right`.
    pub merges: Vec<String>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Whether encoding adds BOS.
    pub add_bos: bool,
}

/// Resampling filters, as Pillow names and computes them (antialiased when shrinking).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResizeFilter {
    /// Triangle.
    Bilinear,
    /// Cubic with a = -0.5.
    Bicubic,
    /// Windowed sinc of three lobes.
    Lanczos,
}

/// Everything the image stage must know to make [`crate::media::Patches`] for a model of the Qwen-VL layout.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageProcessor {
    /// Pixels on a patch's side.
    pub patch: usize,
    /// Frames in a patch (a still picture is repeated).
    pub temporal_patch: usize,
    /// Patches merged on each side into one token.
    pub merge: usize,
    /// Fewest pixels after resizing.
    pub min_pixels: usize,
    /// Most pixels after resizing.
    pub max_pixels: usize,
    /// Filter.
    pub filter: ResizeFilter,
    /// Factor that takes a byte to unit range, usually 1/255.
    pub rescale: f32,
    /// Means per channel, in unit range.
    pub mean: [f32; 3],
    /// Standard deviations per channel, in unit range.
    pub std: [f32; 3],
}

/// The size a picture is resized to and what it then costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImagePlan {
    /// Width after resizing, in pixels.
    pub width: usize,
    /// Height after resizing, in pixels.
    pub height: usize,
    /// Patch grid.
    pub grid: crate::media::Grid,
    /// Tokens in the prompt.
    pub tokens: usize,
}

impl ImageProcessor {
    /// Largest accepted ratio of sides.
    pub const MAX_ASPECT: usize = 200;

    /// Size, grid and tokens for a picture of this size (the reference's `smart_resize`, which rounds half to even).
    pub fn plan(&self, width: usize, height: usize) -> Result<ImagePlan> {
        if width == 0 || height == 0 {
            return Err(EngineError::new(ErrorKind::Malformed, "image has no pixels"));
        }
        let (long, short) = (width.max(height), width.min(height));
        if long as f64 / short as f64 > Self::MAX_ASPECT as f64 {
            let detail =
                format!("image of {width}x{height} is too elongated: sides may differ by {}x", Self::MAX_ASPECT);
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        let factor = self.patch * self.merge;
        let round = |side: usize| (side as f64 / factor as f64).round_ties_even() as usize * factor;
        let (mut out_h, mut out_w) = (round(height), round(width));
        let area = (height * width) as f64;
        if out_h * out_w > self.max_pixels {
            let beta = (area / self.max_pixels as f64).sqrt();
            let shrink = |side: usize| ((side as f64 / beta / factor as f64).floor() as usize * factor).max(factor);
            (out_h, out_w) = (shrink(height), shrink(width));
        } else if out_h * out_w < self.min_pixels {
            let beta = (self.min_pixels as f64 / area).sqrt();
            let grow = |side: usize| (side as f64 * beta / factor as f64).ceil() as usize * factor;
            (out_h, out_w) = (grow(height), grow(width));
        }
        let grid = crate::media::Grid { t: 1, h: out_h / self.patch, w: out_w / self.patch };
        let tokens = grid.patches() / (self.merge * self.merge);
        Ok(ImagePlan { width: out_w, height: out_h, grid, tokens })
    }

    /// Values of one patch: channels x frames x side x side.
    pub const fn patch_values(&self) -> usize {
        3 * self.temporal_patch * self.patch * self.patch
    }
}

/// How a clip's length reaches the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioPadding {
    /// Only real frames (Qwen2.5-Omni masks the rest away).
    None,
    /// Silence up to whole windows of this many frames (Whisper: 3000).
    Window(usize),
}

/// Everything the audio stage must know to make [`crate::media::LogMel`].
#[derive(Debug, Clone, PartialEq)]
pub struct AudioProcessor {
    /// Samples a second.
    pub sample_rate: usize,
    /// Samples in a Fourier window.
    pub fft: usize,
    /// Samples between frames.
    pub hop: usize,
    /// Mel bands (Slaney scale and normalisation, 0 Hz to half the sample rate).
    pub bins: usize,
    /// Padding.
    pub padding: AudioPadding,
    /// Most seconds the model takes in one clip; longer ones are refused or, for transcription, cut into windows.
    pub max_seconds: f64,
    /// Frames that become one prompt token count, by [`AudioProcessor::tokens`].
    pub tokens: AudioTokens,
}

/// How many prompt tokens a clip takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioTokens {
    /// Convolution of stride 2, then pooling by 2: `((frames - 1) / 2 + 1 - 2) / 2 + 1`.
    QwenOmni,
    /// None: the encoder is attended to, not spliced into the prompt.
    CrossAttention,
}

impl AudioProcessor {
    /// Prompt tokens of a clip of this many frames.
    pub fn tokens(&self, frames: usize) -> usize {
        match self.tokens {
            AudioTokens::QwenOmni => {
                let convolved = frames.saturating_sub(1) / 2 + 1;
                if convolved < 2 { 0 } else { (convolved - 2) / 2 + 1 }
            }
            AudioTokens::CrossAttention => 0,
        }
    }
}

/// Whisper's special tokens and decoding rules, from the generation config.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TranscriptionCard {
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|endoftext|>`.
    pub end: u32,
    /// `<|transcribe|>`; `None` in English-only models.
    pub transcribe: Option<u32>,
    /// `<|translate|>`; `None` in English-only models.
    pub translate: Option<u32>,
    /// `<|notimestamps|>`.
    pub no_timestamps: u32,
    /// `<|nospeech|>` or `<|nocaptions|>`.
    pub no_speech: Option<u32>,
    /// `<|startofprev|>`.
    pub previous: Option<u32>,
    /// First timestamp token (`<|0.00|>`); the n-th stands for `n * 0.02` seconds.
    pub first_timestamp: u32,
    /// Language codes and their tokens; empty in English-only models.
    pub languages: Vec<(String, u32)>,
    /// Never produced.
    pub suppress: Vec<u32>,
    /// Not produced as the first token.
    pub begin_suppress: Vec<u32>,
    /// Largest first timestamp, in timestamp steps.
    pub max_initial_timestamp: u32,
    /// Most tokens of one window, prompt included.
    pub max_length: usize,
}
