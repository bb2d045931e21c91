//! Text decoders: Llama, SmolLM2, Mistral, Qwen2, Qwen3. Equal to their reference in transformers.

pub mod config;
mod layer;
pub(crate) mod rotary;
pub(crate) mod stack;

use std::sync::Arc;

use weft_kernels::Backend;

use super::{KvLayout, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use config::DecoderConfig;
use stack::Decoder;

/// A text model.
pub struct TextModel<B: Backend> {
    card: Arc<ModelCard>,
    decoder: Decoder<B>,
}

impl<B: Backend> TextModel<B> {
    /// See [`super::Loaded::load`].
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        let shape = DecoderConfig::read(&checkpoint.config(), checkpoint.family())?;
        let mut loader = checkpoint.loader(backend, config.precision);
        let decoder = Decoder::load(&mut loader, shape, page_tokens)?;
        let tally = loader.finish()?;
        let shape = decoder.config();
        let card =
            ModelCard { vocabulary: shape.vocabulary, context: shape.context, ..checkpoint.card(config, &tally)? };
        Ok(Self { card: Arc::new(card), decoder })
    }

    /// What the model is.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    /// Key/value memory it needs.
    pub fn kv(&self) -> KvLayout {
        self.decoder.kv()
    }

    /// Consecutive numbers; a text model has no media.
    pub fn positions(&self, parts: &[PromptPart]) -> Positions {
        let tokens = parts.iter().map(|part| match part {
            PromptPart::Text(tokens) => *tokens,
            PromptPart::Image(_) | PromptPart::Audio(_) => 0,
        });
        let next = tokens.sum::<usize>() as u32;
        Positions { rows: (0..next).map(|position| [position; 3]).collect(), next }
    }

    /// See [`super::Loaded::step`].
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }
}
