//! Whisper.

use std::marker::PhantomData;
use std::sync::Arc;

use weft_kernels::Backend;

use super::{KvLayout, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use crate::media::Medium;

/// Whisper: an audio encoder and a text decoder that attends to it.
pub struct Whisper<B: Backend> {
    device: PhantomData<B>,
}

impl<B: Backend> Whisper<B> {
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

    /// See [`super::Loaded::begin_encode`].
    pub fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<WhisperRun<B>> {
        let _ = (backend, media);
        todo!()
    }

    /// See [`super::Loaded::advance`].
    pub fn advance(&self, backend: &B, run: &mut WhisperRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        let _ = (backend, run, layers);
        todo!()
    }

    /// See [`super::Loaded::step`].
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        let _ = (backend, batch, pages);
        todo!()
    }

    /// See [`super::Loaded::write_cross`].
    pub fn write_cross(&self, backend: &B, encoded: &B::Tensor, slots: &[u32], pages: &mut [B::Pages]) -> Result<()> {
        let _ = (backend, encoded, slots, pages);
        todo!()
    }
}

/// Work of Whisper's encoder that can stop after any layer.
pub struct WhisperRun<B: Backend> {
    hidden: PhantomData<B>,
}

impl<B: Backend> WhisperRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        todo!()
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        todo!()
    }
}
