//! What the binary carries: the embedded model, sample media and the pipelines that go with them.

use weft_pipelines::config::{ModelEntry, ModelSource};

/// Name under which the embedded model is served.
pub const MODEL_NAME: &str = "tiny-omni";

/// Said wherever the embedded model answers.
pub const PLACEHOLDER_NOTICE: &str =
    "The embedded model has random weights: the path is real, its answers are not meaningful yet.";

/// A picture to try.
pub const SAMPLE_IMAGE: &[u8] = include_bytes!("../../samples/media/shop.png");

/// A spoken clip to try.
pub const SAMPLE_AUDIO: &[u8] = include_bytes!("../../samples/media/question.wav");

/// Times of work on one H200, for simulations.
pub const H200_COSTS: &str = include_str!("../../samples/bench/h200.json");

/// Two minutes of mixed traffic, for simulations.
pub const MIXED_TRACE: &str = include_str!("../../samples/bench/mixed-120s.jsonl");

macro_rules! model_files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("../../samples/models/tiny-omni/", $name)) as &[u8])),*]
    };
}

/// Files of the embedded model, by name.
pub const MODEL_FILES: &[(&str, &[u8])] = model_files![
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "processor_config.json",
    "chat_template.jinja",
];

/// The embedded model.
pub fn model() -> ModelEntry {
    ModelEntry {
        name: MODEL_NAME.to_owned(),
        source: ModelSource::Embedded(MODEL_FILES),
        float32: false,
        placeholder: true,
    }
}
