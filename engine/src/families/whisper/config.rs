//! Whisper's `config.json`, resolved: sizes of encoder and decoder, checked against each other.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{EngineError, ErrorKind, Result};

/// Sizes of a Whisper checkpoint; names as in its `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct WhisperConfig {
    pub(crate) vocab_size: usize,
    pub(crate) num_mel_bins: usize,
    pub(crate) d_model: usize,
    pub(crate) encoder_layers: usize,
    pub(crate) decoder_layers: usize,
    pub(crate) encoder_attention_heads: usize,
    pub(crate) decoder_attention_heads: usize,
    pub(crate) encoder_ffn_dim: usize,
    pub(crate) decoder_ffn_dim: usize,
    /// Encoder output rows of one window.
    pub(crate) max_source_positions: usize,
    /// Longest token sequence.
    pub(crate) max_target_positions: usize,
    #[serde(default = "gelu")]
    activation_function: String,
    #[serde(default)]
    scale_embedding: bool,
    #[serde(default = "yes")]
    pub(crate) tie_word_embeddings: bool,
}

fn gelu() -> String {
    "gelu".to_owned()
}

const fn yes() -> bool {
    true
}

impl WhisperConfig {
    /// Frames under one output row of the encoder (the stride of its second convolution).
    pub(crate) const STRIDE: usize = 2;

    /// Reads and checks a `config.json`.
    pub(crate) fn parse(config: &Value) -> Result<Self> {
        let config = Self::deserialize(config).map_err(|error| {
            EngineError::new(ErrorKind::Malformed, format!("config.json of a Whisper model: {error}"))
        })?;
        let unsupported = |what: String| Err(EngineError::new(ErrorKind::Unsupported, what));
        if config.activation_function != "gelu" {
            return unsupported(format!("activation_function {:?}; Whisper uses gelu", config.activation_function));
        }
        if config.scale_embedding {
            return unsupported("scale_embedding of a Whisper model".to_owned());
        }
        for (name, heads) in [("encoder", config.encoder_attention_heads), ("decoder", config.decoder_attention_heads)]
        {
            if heads == 0 || config.d_model % heads != 0 {
                let what = format!("d_model {} does not divide into {heads} {name} heads", config.d_model);
                return Err(EngineError::new(ErrorKind::Malformed, what));
            }
        }
        Ok(config)
    }

    /// Log-mel frames of one window.
    pub(crate) const fn frames(&self) -> usize {
        self.max_source_positions * Self::STRIDE
    }
}
