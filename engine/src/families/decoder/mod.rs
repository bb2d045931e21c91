//! Text decoders: Llama, SmolLM2, Mistral, Qwen2, Qwen3.

use std::marker::PhantomData;
use std::sync::Arc;

use weft_kernels::Backend;

use super::{KvLayout, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;

/// A text model.
pub struct TextModel<B: Backend> {
    device: PhantomData<B>,
}

impl<B: Backend> TextModel<B> {
    /// See [`super::Loaded::load`].
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        let _ = (backend, checkpoint, config, page_tokens);
        todo!()
    }

    /// What the model is.
    pub fn card(&self) -> &Arc<ModelCard> {
        todo!()
    }

    /// Key/value memory it needs.
    pub fn kv(&self) -> KvLayout {
        todo!()
    }

    /// See [`super::Loaded::positions`].
    pub fn positions(&self, parts: &[PromptPart]) -> Positions {
        let _ = parts;
        todo!()
    }

    /// See [`super::Loaded::step`].
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        let _ = (backend, batch, pages);
        todo!()
    }
}
