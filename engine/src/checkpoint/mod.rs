//! Checkpoints: where weights, configs, tokenizers and templates come from.
//!
//! A checkpoint is a folder in the Hugging Face layout, a GGUF file, or the same files in memory. Whatever it is, families
//! see Hugging Face names and a Hugging Face config: GGUF is translated at this door. Loading is strict: a missing,
//! surplus or misshapen tensor is an error that names it.

pub mod loader;

use serde_json::Value;
use weft_kernels::Backend;
use weft_kernels::weights::WeightData;

use crate::card::{Family, ModelCard, TokenizerSource};
use crate::error::Result;
use crate::handle::{ModelConfig, ModelSource, Precision};

pub use loader::{Loader, Tally};

/// An opened checkpoint: files mapped, headers and configs read, no weight touched yet.
#[derive(Debug)]
pub struct Checkpoint {}

impl Checkpoint {
    /// Opens a checkpoint and reads its headers.
    pub fn open(source: &ModelSource) -> Result<Self> {
        let _ = source;
        todo!()
    }

    /// The family its config names.
    pub fn family(&self) -> Family {
        todo!()
    }

    /// `config.json` (made from the metadata for a GGUF file).
    pub fn config_json(&self) -> &Value {
        todo!()
    }

    /// `generation_config.json`; an empty object when there is none.
    pub fn generation_config(&self) -> &Value {
        todo!()
    }

    /// `preprocessor_config.json` (or `processor_config.json`); an empty object when there is none.
    pub fn preprocessor_config(&self) -> &Value {
        todo!()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Result<TokenizerSource> {
        todo!()
    }

    /// The card with everything that does not depend on the family: name, sizes, tokenizer, template, end tokens.
    /// `vocabulary`, `context`, `image`, `audio` and `transcription` are for the family to fill in.
    pub fn card(&self, config: &ModelConfig, tally: &Tally) -> Result<ModelCard> {
        let _ = (config, tally);
        todo!()
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        let _ = name;
        todo!()
    }

    /// A matrix as it lies in the file; further dimensions of a tensor are folded into the columns.
    pub fn weight(&self, name: &str, rows: usize, cols: usize) -> Result<WeightData<'_>> {
        let _ = (name, rows, cols);
        todo!()
    }

    /// A vector as `f32`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let _ = (name, len);
        todo!()
    }

    /// Loads tensors onto a device and keeps the account of names.
    pub fn loader<'a, B: Backend>(&'a self, backend: &'a B, precision: Precision) -> Loader<'a, B> {
        let _ = (backend, precision);
        todo!()
    }
}
