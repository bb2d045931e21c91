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
pub use self::encoder::WhisperRun;
use super::{KvLayout, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use crate::media::Medium;

/// Whisper: an audio encoder and a text decoder that attends to it.
pub struct Whisper<B: Backend> {
    card: Arc<ModelCard>,
    page_tokens: usize,
    encoder: Encoder<B>,
    decoder: Decoder<B>,
}

impl<B: Backend> Whisper<B> {
    /// See [`super::Loaded::load`].
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        let sizes = WhisperConfig::parse(checkpoint.config_json())?;
        let mut loader = checkpoint.loader(backend, config.precision);
        let encoder = Encoder::load(&mut loader, &sizes)?;
        let decoder = Decoder::load(&mut loader, &sizes)?;
        let tally = loader.finish()?;
        let mut card = checkpoint.card(config, &tally)?;
        let rules =
            card::transcription(&sizes, checkpoint.config_json(), checkpoint.generation_config(), &card.tokenizer)?;
        card.vocabulary = sizes.vocab_size;
        card.context = sizes.max_target_positions;
        card.end_tokens = vec![rules.end];
        card.audio = Some(card::audio(&sizes, checkpoint.preprocessor_config()));
        card.transcription = Some(Arc::new(rules));
        Ok(Self { card: Arc::new(card), page_tokens, encoder, decoder })
    }

    /// What the model is.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    /// Layers of the encoder.
    pub fn encoder_layers(&self) -> usize {
        self.encoder.layers()
    }

    /// Key/value memory it needs: one layout for self and cross pages.
    pub fn kv(&self) -> KvLayout {
        let spec = self.decoder.spec();
        let pages = PageLayout { page_tokens: self.page_tokens, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        KvLayout { layers: self.decoder.layers(), pages, cross: true, element_bytes: size_of::<f32>() }
    }

    /// See [`super::Loaded::positions`]. Only text takes positions: the clip is attended to, not spliced in.
    pub fn positions(&self, parts: &[PromptPart]) -> Positions {
        let text = |part: &PromptPart| if let PromptPart::Text(tokens) = part { *tokens } else { 0 };
        let next = parts.iter().map(text).sum::<usize>() as u32;
        Positions { rows: (0..next).map(|row| [row; 3]).collect(), next }
    }

    /// See [`super::Loaded::begin_encode`]. Refuses what is not exactly one window of log-mel frames.
    pub fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<WhisperRun<B>> {
        self.encoder.begin(backend, media)
    }

    /// See [`super::Loaded::advance`].
    pub fn advance(&self, backend: &B, run: &mut WhisperRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        self.encoder.advance(backend, run, layers)
    }

    /// See [`super::Loaded::advance_piece`].
    pub fn advance_piece(
        &self,
        backend: &B,
        run: &mut WhisperRun<B>,
        piece: super::Piece,
    ) -> Result<Option<Vec<B::Tensor>>> {
        self.encoder.advance_piece(backend, run, piece)
    }

    /// See [`super::Loaded::step`].
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }

    /// See [`super::Loaded::write_cross`].
    pub fn write_cross(&self, backend: &B, encoded: &B::Tensor, slots: &[u32], pages: &mut [B::Pages]) -> Result<()> {
        self.decoder.write_cross(backend, encoded, slots, pages)
    }
}
