//! Text decoders: Llama, SmolLM2, Mistral, Qwen2, Qwen3, Phi-3. Equal to their reference in transformers.

pub(crate) mod config;
mod layer;
pub(crate) mod rotary;
pub(crate) mod stack;

use std::sync::Arc;

use weft_kernels::Backend;

use self::config::{DecoderConfig, Dialect};
use self::stack::Decoder;
use super::{Family, KvLayout, Model, Outline, StepBatch};
use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;

/// A text model.
struct TextModel<B: Backend> {
    card: Arc<ModelCard>,
    decoder: Decoder<B>,
}

/// See [`super::registry`].
pub(super) fn outline(checkpoint: &Checkpoint) -> Result<Outline> {
    Ok(read(checkpoint)?.outline())
}

/// See [`super::registry`].
pub(super) const fn tensor_name(name: String) -> Option<String> {
    Some(name)
}

fn read(checkpoint: &Checkpoint) -> Result<DecoderConfig> {
    let dialect = match checkpoint.family() {
        Family::Qwen2 => Dialect::Qwen2,
        Family::Qwen3 => Dialect::Qwen3,
        Family::Phi3 => Dialect::Phi3,
        _ => Dialect::Llama,
    };
    DecoderConfig::read(&checkpoint.config(), dialect)
}

/// See [`super::Loaded::load`].
pub(super) fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    page_tokens: usize,
) -> Result<Box<dyn Model<B>>> {
    let shape = read(checkpoint)?;
    let (vocabulary, context) = (shape.vocabulary, shape.context);
    let mut loader = checkpoint.loader(backend, config.precision);
    let decoder = Decoder::load(&mut loader, shape, page_tokens)?;
    let tally = loader.finish()?;
    let card = ModelCard { vocabulary, context, ..checkpoint.card(config, &tally)? };
    Ok(Box::new(TextModel { card: Arc::new(card), decoder }))
}

impl<B: Backend> Model<B> for TextModel<B> {
    fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    fn kv(&self) -> KvLayout {
        self.decoder.kv()
    }

    fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        self.decoder.step(backend, batch, pages)
    }
}
