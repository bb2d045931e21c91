//! What a checkpoint holds and needs, read from its headers without touching a weight.

use std::collections::BTreeMap;

use weft_engine::card::{AudioTokens, Family};
use weft_engine::checkpoint::Checkpoint;
use weft_engine::families::Outline;
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
    let outline = checkpoint.outline()?;
    Ok(CheckpointFacts {
        family: checkpoint.family(),
        parts: parts.into_iter().map(|(name, (parameters, bytes))| (name.to_owned(), parameters, bytes)).collect(),
        dtypes,
        vocabulary: outline.vocabulary,
        context: outline.context,
        kv_bytes_per_token: outline.kv_bytes_per_token,
        token_costs: token_costs(&outline),
    })
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

/// Prompt tokens of usual media, where media are spliced into the prompt.
fn token_costs(outline: &Outline) -> Vec<(String, usize)> {
    let mut costs = Vec::new();
    if let Some(image) = &outline.image {
        for (width, height) in [(640, 480), (1920, 1080), (4000, 3000)] {
            if let Ok(plan) = image.plan(width, height) {
                costs.push((format!("{width}x{height} picture"), plan.tokens));
            }
        }
    }
    let spliced = outline.audio.as_ref().filter(|audio| audio.tokens != AudioTokens::CrossAttention);
    if let Some(audio) = spliced {
        for seconds in [10, 60] {
            costs.push((format!("{seconds} s clip"), audio.tokens(seconds * audio.sample_rate / audio.hop.max(1))));
        }
    }
    costs
}
