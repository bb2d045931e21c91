//! Qwen2.5-Omni thinker: vision tower, audio tower and text decoder.

pub mod audio;
pub mod vision;

use std::marker::PhantomData;
use std::sync::Arc;

use weft_kernels::Backend;

use super::{EncoderRun, KvLayout, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use crate::media::Medium;

/// The thinker.
pub struct Omni<B: Backend> {
    device: PhantomData<B>,
}

impl<B: Backend> Omni<B> {
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

    /// See [`super::Loaded::begin_encode`].
    pub fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        let _ = (backend, media);
        todo!()
    }

    /// The vision tower.
    pub fn vision(&self) -> &vision::VisionTower<B> {
        todo!()
    }

    /// The audio tower.
    pub fn audio(&self) -> &audio::AudioTower<B> {
        todo!()
    }
}
