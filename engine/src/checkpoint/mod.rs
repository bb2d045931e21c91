//! Checkpoints: where weights, configs, tokenizers and templates come from.
//!
//! A checkpoint is a folder in the Hugging Face layout, a GGUF file, or the same files in memory. Whatever it is, families
//! see Hugging Face names and a Hugging Face config: GGUF is translated at this door. Loading is strict: a missing,
//! surplus or misshapen tensor is an error that names it. Files are hostile until proven otherwise: no header makes this
//! module allocate more than a small multiple of the bytes that are there.

pub mod fields;
mod files;
mod gguf;
mod gguf_names;
pub mod loader;
pub mod processors;
mod safetensors;
mod tensors;
mod texts;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use weft_kernels::Backend;
use weft_kernels::weights::WeightData;

use crate::card::{Family, GenerationDefaults, ModelCard, TokenizerSource};
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::{ModelConfig, ModelSource, Precision};

pub use fields::Fields;
pub use loader::{Loader, Tally};

use files::{Files, malformed};
use tensors::{Storage, Tensors};

/// An opened checkpoint: files mapped, headers and configs read, no weight touched yet.
#[derive(Debug)]
pub struct Checkpoint {
    family: Family,
    /// How errors call the config.
    config_file: String,
    config: Value,
    generation: Value,
    processor_file: String,
    processor: Value,
    tokenizer: TokenizerSource,
    chat_template: Option<String>,
    template_tokens: Vec<(String, String)>,
    tensors: Tensors,
}

impl Checkpoint {
    /// Opens a checkpoint and reads its headers, configs, tokenizer and template.
    pub fn open(source: &ModelSource) -> Result<Self> {
        let files = Files::open(source)?;
        match files.gguf() {
            Some(name) => Self::open_gguf(&files, &name),
            None => Self::open_folder(&files),
        }
    }

    fn open_gguf(files: &Files, name: &str) -> Result<Self> {
        let label = files.label(name);
        let bytes = files.find(name)?.ok_or_else(|| malformed(&label, "is missing"))?;
        let gguf = gguf_names::translate(label.clone(), bytes)?;
        Ok(Self {
            family: family_of(&label, &gguf.config)?,
            config_file: label.clone(),
            config: gguf.config,
            generation: gguf.generation,
            processor_file: label,
            processor: json!({}),
            tokenizer: TokenizerSource::Gguf(Arc::new(gguf.vocabulary)),
            chat_template: gguf.chat_template,
            template_tokens: gguf.template_tokens,
            tensors: gguf.tensors,
        })
    }

    fn open_folder(files: &Files) -> Result<Self> {
        let config_file = files.label("config.json");
        let config = files.json("config.json")?.ok_or_else(|| {
            let remedy = "give a folder in the Hugging Face layout (config.json, *.safetensors, tokenizer.json)";
            EngineError::new(ErrorKind::NotFound, format!("{config_file} is missing; {remedy} or a .gguf file"))
        })?;
        let family = family_of(&config_file, &config)?;
        let tokenizer_config = files.json("tokenizer_config.json")?.unwrap_or_else(|| json!({}));
        // transformers 5 writes the second, all before it the first.
        let processor_name = match files.find("preprocessor_config.json")? {
            Some(_) => "preprocessor_config.json",
            None => "processor_config.json",
        };
        let mut tensors = safetensors::read(files)?;
        tensors.rename(|name| family.tensor_name(name))?;
        Ok(Self {
            family,
            generation: files.json("generation_config.json")?.unwrap_or_else(|| json!({})),
            processor_file: files.label(processor_name),
            processor: files.json(processor_name)?.unwrap_or_else(|| json!({})),
            tokenizer: texts::tokenizer(files)?,
            chat_template: texts::chat_template(files, &tokenizer_config)?,
            template_tokens: texts::template_tokens(files, &tokenizer_config)?,
            config_file,
            config,
            tensors,
        })
    }

    /// The family its config names.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// `config.json` (made from the metadata for a GGUF file).
    pub const fn config_json(&self) -> &Value {
        &self.config
    }

    /// Typed access to [`Checkpoint::config_json`].
    pub fn config(&self) -> Fields<'_> {
        Fields::new(&self.config_file, &self.config)
    }

    /// `generation_config.json`; an empty object when there is none.
    pub const fn generation_config(&self) -> &Value {
        &self.generation
    }

    /// `preprocessor_config.json` or `processor_config.json`; an empty object when there is none.
    pub const fn preprocessor_config(&self) -> &Value {
        &self.processor
    }

    /// How error texts call the file of [`Checkpoint::preprocessor_config`].
    pub fn preprocessor_file(&self) -> &str {
        &self.processor_file
    }

    /// The tokenizer.
    pub const fn tokenizer(&self) -> &TokenizerSource {
        &self.tokenizer
    }

    /// The card with everything that does not depend on the family: name, sizes, tokenizer, template, end tokens.
    /// `vocabulary`, `context`, `image`, `audio`, their tokens and `transcription` are for the family to fill in.
    pub fn card(&self, config: &ModelConfig, tally: &Tally) -> Result<ModelCard> {
        Ok(ModelCard {
            name: config.name.clone(),
            family: self.family,
            parameters: tally.parameters,
            dtype: tally.dtype.clone(),
            weight_bytes: tally.bytes,
            vocabulary: 0,
            context: 0,
            end_tokens: self.end_tokens()?,
            image: None,
            audio: None,
            image_token: None,
            audio_token: None,
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            template_tokens: self.template_tokens.clone(),
            transcription: None,
            generation: self.generation_defaults()?,
        })
    }

    /// From the generation config, else the config (never its `text_config`, whose ids are often unrelated defaults), else
    /// the tokenizer's own end token.
    fn end_tokens(&self) -> Result<Vec<u32>> {
        let generation = Fields::new("generation_config.json", &self.generation).tokens("eos_token_id")?;
        if !generation.is_empty() {
            return Ok(generation);
        }
        let config = self.config();
        let own = config.tokens("eos_token_id")?;
        let nested = config.object("thinker_config")?.map(|thinker| thinker.tokens("eos_token_id")).transpose()?;
        let stated = if own.is_empty() { nested.unwrap_or_default() } else { own };
        if !stated.is_empty() {
            return Ok(stated);
        }
        Ok(self.tokenizer_end().into_iter().collect())
    }

    fn tokenizer_end(&self) -> Option<u32> {
        let text = &self.template_tokens.iter().find(|(name, _)| name == "eos_token")?.1;
        let TokenizerSource::Json(bytes) = &self.tokenizer else { return None };
        let tokenizer: Value = serde_json::from_slice(bytes).ok()?;
        let added = tokenizer["added_tokens"].as_array()?;
        let token = added.iter().find(|token| token["content"] == Value::String(text.clone()))?;
        u32::try_from(token["id"].as_u64()?).ok()
    }

    fn generation_defaults(&self) -> Result<GenerationDefaults> {
        let fields = Fields::new("generation_config.json", &self.generation);
        let number = |key: &str| Ok::<_, EngineError>(fields.number(key)?.map(|value| value as f32));
        // `do_sample: false` makes the rest of the sampling fields meaningless.
        let sampled = fields.flag("do_sample")?.unwrap_or(true);
        Ok(GenerationDefaults {
            temperature: number("temperature")?.filter(|_| sampled),
            top_k: fields.opt_size("top_k").ok().flatten().map(|k| k as u32).filter(|_| sampled),
            top_p: number("top_p")?.filter(|_| sampled),
            repetition_penalty: number("repetition_penalty")?,
        })
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.entries.contains_key(name)
    }

    /// A matrix as it lies in the file; further dimensions of a tensor are folded into the columns.
    pub fn weight(&self, name: &str, rows: usize, cols: usize) -> Result<WeightData<'_>> {
        self.tensors.matrix(name, rows, cols)
    }

    /// A vector as `f32`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.tensors.vector(name, len)
    }

    /// Loads tensors onto a device and keeps the account of names.
    pub fn loader<'a, B: Backend>(&'a self, backend: &'a B, precision: Precision) -> Loader<'a, B> {
        Loader::new(self, backend, precision)
    }

    /// Name, elements, bytes and storage of every tensor.
    pub fn tensor_sizes(&self) -> impl Iterator<Item = TensorSize<'_>> {
        self.tensors.entries.iter().map(|(name, entry)| TensorSize {
            name,
            parameters: entry.elements(),
            bytes: entry.range.len() as u64,
            dtype: match &entry.storage {
                Storage::Known(format) => loader::format_name(*format).to_owned(),
                Storage::Other(kind) => kind.clone(),
            },
        })
    }

    fn refuse_surplus(&self, taken: &BTreeSet<String>) -> Result<()> {
        let mut surplus = self.tensors.entries.iter().filter(|(name, _)| !taken.contains(*name) && !is_buffer(name));
        let Some((name, entry)) = surplus.next() else { return Ok(()) };
        let label = &self.tensors.files[entry.file].0;
        let more = match surplus.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let remedy = "the file does not belong to this config, or this family has parts that are not supported";
        Err(malformed(label, &format!("holds tensor {name}{more} that the model has no place for; {remedy}")))
    }
}

/// One tensor's sizes, for people.
#[derive(Debug, Clone)]
pub struct TensorSize<'a> {
    /// Name, as families call it.
    pub name: &'a str,
    /// Elements.
    pub parameters: u64,
    /// Bytes in the file.
    pub bytes: u64,
    /// Storage.
    pub dtype: String,
}

/// Tables that older exporters saved although they follow from the config.
fn is_buffer(name: &str) -> bool {
    name.ends_with(".inv_freq") || name.ends_with(".positional_embedding.positional_embedding")
}

fn family_of(file: &str, config: &Value) -> Result<Family> {
    let Some(kind) = Fields::new(file, config).text("model_type")? else {
        return Err(malformed(file, "has no field model_type; fetch it again"));
    };
    Family::of(kind).ok_or_else(|| {
        let known = Family::MODEL_TYPES.join(", ");
        let detail = format!("{file} has model_type {kind}, which is not supported; supported are {known}");
        EngineError::new(ErrorKind::Unsupported, detail)
    })
}
