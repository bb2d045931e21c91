//! Qwen2-VL and Qwen2.5-VL: a vision tower and a text decoder with multi-section rotary positions.
//!
//! The reference is `transformers/models/qwen2_vl` and `qwen2_5_vl`. Video is not taken.

use std::sync::Arc;

use weft_kernels::Backend;

use super::decoder::config::{DecoderConfig, Dialect};
use super::decoder::stack::Decoder;
use super::qwen_vision::config::{Generation, VisionConfig};
use super::qwen_vision::{self, VisionTower};
use super::{EncoderRun, Family, KvLayout, Model, Outline, Positions, PromptPart, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;
use crate::media::Medium;

/// Tower and decoder.
struct QwenVl<B: Backend> {
    card: Arc<ModelCard>,
    vision: VisionTower<B>,
    decoder: Decoder<B>,
    merge: usize,
}

/// The config, resolved.
struct QwenVlConfig {
    vision: VisionConfig,
    text: DecoderConfig,
    image_token: u32,
}

impl QwenVlConfig {
    fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let config = checkpoint.config();
        let generation = if checkpoint.family() == Family::Qwen2Vl { Generation::Two } else { Generation::TwoFive };
        // Older configs hold the decoder's fields at the top.
        let mut text = match config.object("text_config")? {
            Some(fields) => DecoderConfig::read(&fields, Dialect::Qwen2)?,
            None => DecoderConfig::read(&config, Dialect::Qwen2)?,
        };
        text.tied = config.flag("tie_word_embeddings")?.or(text.tied);
        let vision = VisionConfig::read(&config.required("vision_config")?, generation)?;
        if vision.out != text.hidden {
            let expected = format!("of a width that fits the decoder's hidden_size ({})", text.hidden);
            return Err(config.wrong("vision_config", &expected));
        }
        let image_token = config.token("image_token_id")?.ok_or_else(|| config.wrong("image_token_id", "there"))?;
        Ok(Self { vision, text, image_token })
    }
}

/// Files of different age call the decoder `model` or `model.language_model`, the tower `visual` or `model.visual`.
pub(super) fn tensor_name(name: String) -> Option<String> {
    Some(match name.strip_prefix("model.") {
        Some(tower) if tower.starts_with("visual.") => tower.to_owned(),
        Some(decoder) if decoder.starts_with("language_model.") => decoder.replacen("language_model", "model", 1),
        _ => name,
    })
}

/// See [`super::registry`].
pub(super) fn outline(checkpoint: &Checkpoint) -> Result<Outline> {
    let shape = QwenVlConfig::read(checkpoint)?;
    let image = qwen_vision::processor(checkpoint, &shape.vision)?;
    Ok(Outline { image: Some(image), ..shape.text.outline() })
}

/// See [`super::Loaded::load`].
pub(super) fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    page_tokens: usize,
) -> Result<Box<dyn Model<B>>> {
    let QwenVlConfig { vision, text, image_token } = QwenVlConfig::read(checkpoint)?;
    let image = qwen_vision::processor(checkpoint, &vision)?;
    let (vocabulary, context, merge) = (text.vocabulary, text.context, vision.merge);
    let mut loader = checkpoint.loader(backend, config.precision);
    let vision = VisionTower::load(&mut loader, vision)?;
    let decoder = Decoder::load(&mut loader, text, page_tokens)?;
    let tally = loader.finish()?;
    let card = ModelCard {
        vocabulary,
        context,
        image: Some(image),
        image_token: Some(image_token),
        ..checkpoint.card(config, &tally)?
    };
    Ok(Box::new(QwenVl { card: Arc::new(card), vision, decoder, merge }))
}

impl<B: Backend> Model<B> for QwenVl<B> {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn kv(&self) -> KvLayout {
        self.decoder.kv()
    }

    fn encoder_layers(&self) -> [usize; 2] {
        [self.vision.layers(), 0]
    }

    fn positions(&self, parts: &[PromptPart]) -> Positions {
        // A still picture is one frame; no time passes in it.
        qwen_vision::positions(parts, self.merge, 1)
    }

    fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        self.vision.begin(backend, &super::pictures(media)?)
    }

    fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }
}
