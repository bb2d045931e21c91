//! Whisper: an audio encoder and a text decoder that attends to its output.
//!
//! Owns the two towers and the card. Knows no scheduler and no transcription algorithm (that is [`crate::transcribe`]).
//! Equal to transformers' `WhisperForConditionalGeneration` on the same weights.

mod card;
mod config;
mod decoder;
mod encoder;
mod layers;

use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::PageLayout;

use self::config::WhisperConfig;
use self::decoder::Decoder;
use self::encoder::Encoder;
use super::{EncoderRun, KvLayout, Model, Outline, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use crate::media::Medium;

/// Whisper: an audio encoder and a text decoder that attends to it.
struct Whisper<B: Backend> {
    card: Arc<ModelCard>,
    page_tokens: usize,
    encoder: Encoder<B>,
    decoder: Decoder<B>,
}

/// See [`super::registry`].
pub(super) fn outline(checkpoint: &Checkpoint) -> Result<Outline> {
    let sizes = WhisperConfig::parse(checkpoint.config_json())?;
    Ok(Outline {
        vocabulary: sizes.vocab_size,
        context: sizes.max_target_positions,
        kv_bytes_per_token: 2 * 4 * sizes.decoder_layers * sizes.d_model,
        image: None,
        audio: Some(card::audio(&sizes, checkpoint.preprocessor_config())),
    })
}

/// See [`super::registry`].
pub(super) const fn tensor_name(name: String) -> Option<String> {
    Some(name)
}

/// See [`super::Loaded::load`].
pub(super) fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    page_tokens: usize,
) -> Result<Box<dyn Model<B>>> {
    let sizes = WhisperConfig::parse(checkpoint.config_json())?;
    let mut loader = checkpoint.loader(backend, config.precision);
    let encoder = Encoder::load(&mut loader, &sizes)?;
    let decoder = Decoder::load(&mut loader, &sizes)?;
    let tally = loader.finish()?;
    let mut card = checkpoint.card(config, &tally)?;
    let rules = card::transcription(&sizes, checkpoint.config_json(), checkpoint.generation_config(), &card.tokenizer)?;
    card.vocabulary = sizes.vocab_size;
    card.context = sizes.max_target_positions;
    card.end_tokens = vec![rules.end];
    card.audio = Some(card::audio(&sizes, checkpoint.preprocessor_config()));
    card.transcription = Some(Arc::new(rules));
    Ok(Box::new(Whisper { card: Arc::new(card), page_tokens, encoder, decoder }))
}

impl<B: Backend> Model<B> for Whisper<B> {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    /// One layout for self and cross pages.
    fn kv(&self) -> KvLayout {
        let spec = self.decoder.spec();
        let pages = PageLayout { page_tokens: self.page_tokens, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        KvLayout { layers: self.decoder.layers(), pages, cross: true, element_bytes: size_of::<f32>() }
    }

    fn encoder_layers(&self) -> [usize; 2] {
        [0, self.encoder.layers()]
    }

    /// Refuses what is not exactly one window of log-mel frames.
    fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        self.encoder.begin(backend, media)
    }

    fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }

    fn write_cross(&self, backend: &B, encoded: &B::Tensor, slots: &[u32], pages: &mut [B::Pages]) -> Result<()> {
        self.decoder.write_cross(backend, encoded, slots, pages)
    }
}
