//! What is in a checkpoint, from its headers alone (`weft models show`).

use std::collections::BTreeMap;

use super::decoder::config::DecoderConfig;
use super::omni::OmniConfig;
use crate::card::Family;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// A checkpoint at a glance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Family.
    pub family: Family,
    /// Towers, decoder, head.
    pub parts: Vec<Part>,
    /// Longest sequence.
    pub context: usize,
    /// Bytes of keys and values a token takes on the device.
    pub kv_bytes_per_token: usize,
}

/// One part of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// Name, as tensors spell it (`visual`, `audio_tower`, `model`).
    pub name: String,
    /// Tensors.
    pub tensors: usize,
    /// Elements.
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// Bytes of each storage.
    pub dtypes: BTreeMap<String, u64>,
}

impl Summary {
    /// Elements of all parts.
    pub fn parameters(&self) -> u64 {
        self.parts.iter().map(|part| part.parameters).sum()
    }

    /// Bytes of all parts in the files.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

impl Checkpoint {
    /// Family, tensors by part, context and memory a token, without loading a weight.
    pub fn summary(&self) -> Result<Summary> {
        let config = self.config();
        let (context, kv_bytes_per_token) = match self.family() {
            Family::QwenOmni => {
                let text = OmniConfig::read(&config)?.text;
                (text.context, text.kv_token_bytes())
            }
            Family::Whisper => {
                let (layers, width) = (config.size("decoder_layers")?, config.size("d_model")?);
                (config.size("max_target_positions")?, 2 * 4 * layers * width)
            }
            family @ (Family::Llama | Family::Qwen2 | Family::Qwen3) => {
                let text = DecoderConfig::read(&config, family)?;
                (text.context, text.kv_token_bytes())
            }
        };
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        for tensor in self.tensor_sizes() {
            let name = self.part_of(tensor.name);
            let part = parts.entry(name.clone()).or_insert_with(|| Part { name, ..Part::default() });
            part.tensors += 1;
            part.parameters += tensor.parameters;
            part.bytes += tensor.bytes;
            *part.dtypes.entry(tensor.dtype).or_default() += tensor.bytes;
        }
        Ok(Summary { family: self.family(), parts: parts.into_values().collect(), context, kv_bytes_per_token })
    }

    /// The first element of a tensor's name, the first two in Whisper (`model.encoder`, `model.decoder`).
    fn part_of(&self, tensor: &str) -> String {
        let elements = if self.family() == Family::Whisper { 2 } else { 1 };
        tensor.split('.').take(elements).collect::<Vec<_>>().join(".")
    }
}
