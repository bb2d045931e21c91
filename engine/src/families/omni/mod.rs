//! Qwen2.5-Omni thinker: vision tower, audio tower and a text decoder with multi-section rotary positions.
//!
//! The reference is `transformers/models/qwen2_5_omni`. Video, and sound inside video, are not taken.

pub mod audio;
mod config;
mod positions;
pub mod vision;
mod windows;

use std::sync::Arc;

use weft_kernels::Backend;

use super::decoder::stack::Decoder;
use super::{EncoderRun, KvLayout, Positions, PromptPart, StepBatch};
use crate::card::{AudioTokens, ModelCard};
use crate::checkpoint::{Checkpoint, processors};
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::ModelConfig;
use crate::media::{LogMel, Medium, Patches};
use audio::AudioTower;
pub(crate) use config::OmniConfig;
use vision::VisionTower;

/// The thinker.
pub struct Omni<B: Backend> {
    card: Arc<ModelCard>,
    vision: VisionTower<B>,
    audio: AudioTower<B>,
    decoder: Decoder<B>,
    merge: usize,
    positions_per_second: u32,
}

impl<B: Backend> Omni<B> {
    /// See [`super::Loaded::load`].
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        let shape = OmniConfig::read(&checkpoint.config())?;
        let OmniConfig { image_token, audio_token, positions_per_second, .. } = shape;
        let merge = shape.vision.merge;
        let (image, audio) = Self::processors(checkpoint, &shape)?;
        let (vocabulary, context) = (shape.text.vocabulary, shape.text.context);
        let mut loader = checkpoint.loader(backend, config.precision);
        let vision = VisionTower::load(&mut loader, shape.vision)?;
        let audio_tower = AudioTower::load(&mut loader, shape.audio)?;
        let decoder = Decoder::load(&mut loader, shape.text, page_tokens)?;
        let tally = loader.finish()?;
        let card = ModelCard {
            vocabulary,
            context,
            image: Some(image),
            audio: Some(audio),
            image_token: Some(image_token),
            audio_token: Some(audio_token),
            ..checkpoint.card(config, &tally)?
        };
        Ok(Self { card: Arc::new(card), vision, audio: audio_tower, decoder, merge, positions_per_second })
    }

    /// Reads both processors and holds them against the towers they feed.
    fn processors(
        checkpoint: &Checkpoint,
        shape: &OmniConfig,
    ) -> Result<(crate::card::ImageProcessor, crate::card::AudioProcessor)> {
        let (file, config) = (checkpoint.preprocessor_file(), checkpoint.preprocessor_config());
        let missing = |what: &str| {
            let detail = format!("{file} has no {what}; fetch the model's preprocessor_config.json");
            EngineError::new(ErrorKind::Malformed, detail)
        };
        let image = processors::image(file, config)?.ok_or_else(|| missing("image processor"))?;
        let audio = processors::audio(file, config, processors::Padding::None, AudioTokens::QwenOmni)?
            .ok_or_else(|| missing("feature extractor"))?;
        let vision = &shape.vision;
        let eyes =
            (image.patch, image.temporal_patch, image.merge) == (vision.patch, vision.temporal_patch, vision.merge);
        if !eyes || audio.bins != shape.audio.bins {
            let detail = format!("{file} prepares other patches or mel bands than config.json's towers take");
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        Ok((image, audio))
    }

    /// What the model is.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    /// Key/value memory it needs.
    pub fn kv(&self) -> KvLayout {
        self.decoder.kv()
    }

    /// See [`super::Loaded::positions`].
    pub fn positions(&self, parts: &[PromptPart]) -> Positions {
        positions::positions(parts, self.merge, self.positions_per_second)
    }

    /// See [`super::Loaded::step`].
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }

    /// See [`super::Loaded::begin_encode`].
    pub fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        let pictures: Vec<&Patches> =
            media.iter().filter_map(|m| if let Medium::Image(p) = m { Some(p) } else { None }).collect();
        let clips: Vec<&LogMel> =
            media.iter().filter_map(|m| if let Medium::Audio(c) = m { Some(c) } else { None }).collect();
        match (pictures.is_empty(), clips.is_empty()) {
            (false, true) => Ok(EncoderRun::Vision(self.vision.begin(backend, &pictures)?)),
            (true, false) => Ok(EncoderRun::Audio(self.audio.begin(backend, &clips)?)),
            _ => Err(EngineError::new(ErrorKind::Internal, "an encoder run takes media of one tower, at least one")),
        }
    }

    /// The vision tower.
    pub fn vision(&self) -> &VisionTower<B> {
        &self.vision
    }

    /// The audio tower.
    pub fn audio(&self) -> &AudioTower<B> {
        &self.audio
    }
}
