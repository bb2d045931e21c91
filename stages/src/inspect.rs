//! What a checkpoint holds and needs, read from its headers without touching a weight.

use std::collections::BTreeMap;

use serde_json::Value;
use weft_engine::card::{AudioTokens, Family};
use weft_engine::checkpoint::Checkpoint;
use weft_engine::checkpoint::processors::{self, Padding};
use weft_engine::handle::ModelSource;

use crate::error::Result;

/// A checkpoint, described.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointFacts {
    /// Family.
    pub family: Family,
    /// Parameters and bytes by part (`text`, `vision`, `audio`).
    pub parts: Vec<(String, u64, u64)>,
    /// Bytes by storage type, largest first.
    pub dtypes: Vec<(String, u64)>,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Bytes of key/value memory a token takes, in float32.
    pub kv_bytes_per_token: usize,
    /// Prompt tokens of usual media.
    pub token_costs: Vec<(String, usize)>,
}

/// Describes a checkpoint: a folder in the Hugging Face layout, a GGUF file, or files in memory.
pub fn checkpoint(source: &ModelSource) -> Result<CheckpointFacts> {
    let checkpoint = Checkpoint::open(source)?;
    let (mut parts, mut dtypes) = (BTreeMap::<&str, (u64, u64)>::new(), BTreeMap::<String, u64>::new());
    for tensor in checkpoint.tensor_sizes() {
        let part = parts.entry(part(checkpoint.family(), tensor.name)).or_default();
        part.0 += tensor.parameters;
        part.1 += tensor.bytes;
        *dtypes.entry(tensor.dtype).or_default() += tensor.bytes;
    }
    let mut dtypes: Vec<(String, u64)> = dtypes.into_iter().collect();
    dtypes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let text = text_config(checkpoint.config_json());
    let size = |keys: &[&str]| keys.iter().find_map(|key| text[*key].as_u64()).unwrap_or(0) as usize;
    let layers = size(&["num_hidden_layers", "decoder_layers"]);
    let heads = size(&["num_attention_heads", "decoder_attention_heads"]).max(1);
    let kv_heads = size(&["num_key_value_heads"]);
    let width = size(&["hidden_size", "d_model"]);
    let head = if size(&["head_dim"]) > 0 { size(&["head_dim"]) } else { width / heads };
    Ok(CheckpointFacts {
        family: checkpoint.family(),
        parts: parts.into_iter().map(|(name, (parameters, bytes))| (name.to_owned(), parameters, bytes)).collect(),
        dtypes,
        vocabulary: size(&["vocab_size"]),
        context: size(&["max_position_embeddings", "max_target_positions"]),
        kv_bytes_per_token: 2 * 4 * layers * if kv_heads > 0 { kv_heads } else { heads } * head,
        token_costs: token_costs(&checkpoint),
    })
}

/// The part of the config that describes the text decoder.
fn text_config(config: &Value) -> &Value {
    let thinker = config.get("thinker_config").unwrap_or(config);
    thinker.get("text_config").unwrap_or(thinker)
}

fn part(family: Family, name: &str) -> &'static str {
    match family {
        Family::Whisper if name.contains("encoder.") && !name.contains("encoder_attn") => "audio",
        Family::Whisper => "text",
        _ if name.contains("visual.") || name.contains("vision") => "vision",
        _ if name.contains("audio_tower.") => "audio",
        _ => "text",
    }
}

fn token_costs(checkpoint: &Checkpoint) -> Vec<(String, usize)> {
    let (file, config) = (checkpoint.preprocessor_file(), checkpoint.preprocessor_config());
    let mut costs = Vec::new();
    if checkpoint.family() != Family::QwenOmni {
        return costs;
    }
    if let Ok(Some(image)) = processors::image(file, config) {
        for (width, height) in [(640, 480), (1920, 1080), (4000, 3000)] {
            if let Ok(plan) = image.plan(width, height) {
                costs.push((format!("{width}x{height} picture"), plan.tokens));
            }
        }
    }
    if let Ok(Some(audio)) = processors::audio(file, config, Padding::None, AudioTokens::QwenOmni) {
        for seconds in [10, 60] {
            costs.push((format!("{seconds} s clip"), audio.tokens(seconds * audio.sample_rate / audio.hop.max(1))));
        }
    }
    costs
}
