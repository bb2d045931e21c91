//! The thinker's config, resolved: both towers, the decoder, and the tokens that stand for media.

use weft_kernels::shapes::Activation;

use crate::checkpoint::Fields;
use crate::error::Result;
use crate::families::decoder::config::{DecoderConfig, Dialect, activation};
use crate::families::qwen_vision::config::{Generation, VisionConfig};

/// The whole thinker.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OmniConfig {
    pub(crate) vision: VisionConfig,
    pub(crate) audio: AudioConfig,
    pub(crate) text: DecoderConfig,
    pub(crate) image_token: u32,
    pub(crate) audio_token: u32,
    /// Temporal positions a second of a picture sequence takes.
    pub(crate) positions_per_second: u32,
}

/// The audio tower.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AudioConfig {
    pub(crate) layers: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) inner: usize,
    pub(crate) bins: usize,
    pub(crate) out: usize,
    /// Mel frames in a chunk (twice `n_window`).
    pub(crate) chunk: usize,
    pub(crate) activation: Activation,
}

impl OmniConfig {
    /// Reads a thinker's config, or the thinker's part of a full Omni config.
    pub(crate) fn read(config: &Fields<'_>) -> Result<Self> {
        let thinker = config.object("thinker_config")?.unwrap_or_else(|| config.clone());
        let token = |new: &str, old: &str| -> Result<u32> {
            match thinker.token(new)? {
                Some(id) => Ok(id),
                None => thinker.token(old)?.ok_or_else(|| thinker.wrong(old, "there")),
            }
        };
        let mut text = DecoderConfig::read(&thinker.required("text_config")?, Dialect::Qwen2)?;
        text.tied = thinker.flag("tie_word_embeddings")?.or(text.tied);
        let vision = VisionConfig::read(&thinker.required("vision_config")?, Generation::Omni)?;
        let audio = AudioConfig::read(&thinker.required("audio_config")?)?;
        for (part, out) in [("vision_config.out_hidden_size", vision.out), ("audio_config.output_dim", audio.out)] {
            if out != text.hidden {
                return Err(thinker.wrong(part, &format!("the decoder's hidden_size ({})", text.hidden)));
            }
        }
        Ok(Self {
            vision,
            audio,
            text,
            image_token: token("image_token_id", "image_token_index")?,
            audio_token: token("audio_token_id", "audio_token_index")?,
            positions_per_second: thinker.opt_size("position_id_per_seconds")?.unwrap_or(25) as u32,
        })
    }
}

impl AudioConfig {
    fn read(fields: &Fields<'_>) -> Result<Self> {
        let width = fields.size("d_model")?;
        let heads = fields.size("encoder_attention_heads")?;
        if !width.is_multiple_of(heads) || !width.is_multiple_of(2) || width < 4 {
            return Err(fields.wrong("d_model", "an even multiple of encoder_attention_heads"));
        }
        let half_chunk = fields.opt_size("n_window")?.unwrap_or(100);
        let positions = fields.opt_size("max_source_positions")?.unwrap_or(1500);
        if half_chunk > positions {
            return Err(fields.wrong("n_window", &format!("within max_source_positions ({positions})")));
        }
        Ok(Self {
            layers: fields.size("encoder_layers")?,
            width,
            heads,
            inner: fields.size("encoder_ffn_dim")?,
            bins: fields.size("num_mel_bins")?,
            out: fields.size("output_dim")?,
            chunk: 2 * half_chunk,
            activation: match fields.get("activation_function") {
                None => Activation::Gelu,
                Some(_) => activation(fields, "activation_function")?,
            },
        })
    }
}
