//! Qwen2.5-Omni thinker: vision tower, audio tower and a text decoder with multi-section rotary positions.
//!
//! The reference is `transformers/models/qwen2_5_omni`. Video, and sound inside video, are not taken.

mod audio;
mod config;

use std::sync::Arc;

use weft_kernels::Backend;

use self::audio::AudioTower;
use self::config::OmniConfig;
use super::decoder::stack::Decoder;
use super::qwen_vision::{self, VisionTower};
use super::{EncoderRun, KvLayout, Model, Outline, Positions, PromptPart, StepBatch};
use crate::card::{AudioProcessor, AudioTokens, ImageProcessor, ModelCard};
use crate::checkpoint::{Checkpoint, processors};
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::ModelConfig;
use crate::media::Medium;

/// The thinker.
struct Omni<B: Backend> {
    card: Arc<ModelCard>,
    vision: VisionTower<B>,
    audio: AudioTower<B>,
    decoder: Decoder<B>,
    merge: usize,
    positions_per_second: u32,
}

/// A full Omni checkpoint also holds the parts that speak; the thinker lies under a prefix of its own.
pub(super) fn tensor_name(name: String) -> Option<String> {
    let speaks = name.starts_with("talker.") || name.starts_with("token2wav.");
    (!speaks).then(|| name.strip_prefix("thinker.").map(str::to_owned).unwrap_or(name))
}

/// See [`super::registry`].
pub(super) fn outline(checkpoint: &Checkpoint) -> Result<Outline> {
    let shape = OmniConfig::read(&checkpoint.config())?;
    let (image, audio) = processors(checkpoint, &shape)?;
    Ok(Outline { image: Some(image), audio: Some(audio), ..shape.text.outline() })
}

/// See [`super::Loaded::load`].
pub(super) fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    page_tokens: usize,
) -> Result<Box<dyn Model<B>>> {
    let shape = OmniConfig::read(&checkpoint.config())?;
    let OmniConfig { image_token, audio_token, positions_per_second, .. } = shape;
    let merge = shape.vision.merge;
    let (image, audio) = processors(checkpoint, &shape)?;
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
    Ok(Box::new(Omni { card: Arc::new(card), vision, audio: audio_tower, decoder, merge, positions_per_second }))
}

/// Reads both processors and holds them against the towers they feed.
fn processors(checkpoint: &Checkpoint, shape: &OmniConfig) -> Result<(ImageProcessor, AudioProcessor)> {
    let image = qwen_vision::processor(checkpoint, &shape.vision)?;
    let (file, config) = (checkpoint.preprocessor_file(), checkpoint.preprocessor_config());
    let audio = processors::audio(file, config, processors::Padding::None, AudioTokens::QwenOmni)?;
    let audio = audio.ok_or_else(|| processors::missing(file, "feature extractor"))?;
    if audio.bins != shape.audio.bins {
        let detail = format!("{file} prepares other mel bands than config.json's tower takes");
        return Err(EngineError::new(ErrorKind::Malformed, detail));
    }
    Ok((image, audio))
}

impl<B: Backend> Model<B> for Omni<B> {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn kv(&self) -> KvLayout {
        self.decoder.kv()
    }

    fn encoder_layers(&self) -> [usize; 2] {
        [self.vision.layers(), self.audio.layers()]
    }

    fn positions(&self, parts: &[PromptPart]) -> Positions {
        qwen_vision::positions(parts, self.merge, self.positions_per_second)
    }

    fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }

    fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        match media.first() {
            Some(Medium::Image(_)) => self.vision.begin(backend, &super::pictures(media)?),
            Some(Medium::Audio(_)) => self.audio.begin(backend, &super::clips(media)?),
            None => Err(EngineError::new(ErrorKind::Internal, "an encoder run takes at least one medium")),
        }
    }
}
