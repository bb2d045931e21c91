//! Prices: what media and text will cost the device, from their headers and lengths alone. Nothing is decoded.

use std::time::Duration;

use weft_engine::card::{AudioPadding, AudioProcessor};
use weft_engine::handle::Model;

use super::Service;
use crate::audio::AudioFacts;
use crate::error::{Result, StageError};
use crate::image::ImageFacts;

/// What a medium will cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MediumPrice {
    /// Prompt tokens it stands for.
    pub tokens: usize,
    /// Time of its encoder, alone on the device.
    pub encode: Duration,
}

/// What a prompt and its answer will cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextPrice {
    /// Time to bring the prompt into the cache, alone on the device.
    pub prefill: Duration,
    /// Time of a decode step of this answer alone.
    pub step: Duration,
    /// A token's share of a step that the batch fills.
    pub share: Duration,
    /// KV pages from start to end.
    pub pages: usize,
    /// KV pages that there are.
    pub total_pages: usize,
}

impl Service {
    /// Price of a picture of this size for this model.
    pub fn image_price(&self, model: &str, facts: &ImageFacts) -> Result<MediumPrice> {
        let model = &self.served(model)?.model;
        let processor = model.card().image.as_ref();
        let processor = processor.ok_or_else(|| StageError::unsupported("the model does not take pictures"))?;
        let plan = processor.plan(facts.width, facts.height)?;
        Ok(MediumPrice { tokens: plan.tokens, encode: model.picture_time(plan.grid.patches()) })
    }

    /// Price of a clip of this length for this model.
    pub fn audio_price(&self, model: &str, facts: &AudioFacts) -> Result<MediumPrice> {
        let model = &self.served(model)?.model;
        let processor = model.card().audio.as_ref();
        let processor = processor.ok_or_else(|| StageError::unsupported("the model does not take clips"))?;
        let (frames, windows) = frames(processor, facts.length.seconds());
        let encode = model.clip_time(frames).saturating_mul(u32::try_from(windows).unwrap_or(u32::MAX));
        Ok(MediumPrice { tokens: processor.tokens(frames), encode })
    }

    /// Price of an answer of `answer` tokens to a prompt of `prompt` tokens; `batch` sequences fill a step.
    pub fn text_price(&self, model: &str, prompt: usize, answer: usize, batch: usize) -> Result<TextPrice> {
        let model = &self.served(model)?.model;
        let batch = u32::try_from(batch.max(1)).unwrap_or(u32::MAX);
        Ok(TextPrice {
            prefill: model.prompt_time(prompt),
            step: model.step_time(1),
            share: model.step_time(batch as usize) / batch,
            pages: model.pages((prompt + answer).min(model.card().context)),
            total_pages: model.total_pages(),
        })
    }

    /// Most answer tokens of a transcript of this clip: a window's most, for each window.
    pub fn transcript_tokens(&self, model: &str, facts: &AudioFacts) -> Result<usize> {
        let model: &Model = &self.served(model)?.model;
        let card = model.card();
        let Some(rules) = card.transcription.as_ref() else { return Ok(0) };
        let windows = card.audio.as_ref().map_or(1, |processor| frames(processor, facts.length.seconds()).1);
        Ok(windows.saturating_mul(rules.max_length))
    }
}

/// Frames that go through the encoder at once, and how often.
fn frames(processor: &AudioProcessor, seconds: f64) -> (usize, usize) {
    let frames = (seconds.max(0.0) * processor.sample_rate as f64 / processor.hop.max(1) as f64).ceil() as usize;
    match processor.padding {
        AudioPadding::None => (frames, 1),
        AudioPadding::Window(window) => (window, frames.div_ceil(window.max(1)).max(1)),
    }
}
