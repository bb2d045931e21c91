//! What a checkpoint holds and needs, without running it.

use serde::Serialize;

use crate::config::ModelSource;
use crate::error::Result;

/// One part of a model and its size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartReport {
    /// Part (`text`, `vision`, `audio`, `other`).
    pub name: String,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of its weights as stored.
    pub bytes: u64,
}

/// A checkpoint, described.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelReport {
    /// Where it lies.
    pub path: String,
    /// Family.
    pub family: String,
    /// Parameters.
    pub parameters: u64,
    /// Parts.
    pub parts: Vec<PartReport>,
    /// Bytes per storage type.
    pub dtypes: Vec<(String, u64)>,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Bytes of key/value memory a token takes.
    pub kv_bytes_per_token: usize,
    /// Prompt tokens of usual media (`640x480 picture`).
    pub token_costs: Vec<(String, usize)>,
}

impl std::fmt::Display for ModelReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        writeln!(f, "{}", self.path)?;
        writeln!(f, "  family      {}", self.family)?;
        writeln!(f, "  parameters  {:.2} M", self.parameters as f64 / 1e6)?;
        for part in &self.parts {
            writeln!(f, "    {:<9} {:.2} M, {:.1} MiB", part.name, part.parameters as f64 / 1e6, mib(part.bytes))?;
        }
        for (name, bytes) in &self.dtypes {
            writeln!(f, "  stored      {name}: {:.1} MiB", mib(*bytes))?;
        }
        writeln!(f, "  vocabulary  {}", self.vocabulary)?;
        writeln!(f, "  context     {} tokens, {} KV bytes a token", self.context, self.kv_bytes_per_token)?;
        for (what, tokens) in &self.token_costs {
            writeln!(f, "  cost        {what}: {tokens} tokens")?;
        }
        Ok(())
    }
}

/// Describes a checkpoint: a folder, a GGUF file, or files in memory.
pub fn model(source: &ModelSource) -> Result<ModelReport> {
    let facts = weft_stages::inspect::checkpoint(&source.resolved())?;
    let part = |(name, parameters, bytes)| PartReport { name, parameters, bytes };
    let parts: Vec<PartReport> = facts.parts.into_iter().map(part).collect();
    Ok(ModelReport {
        path: match source {
            ModelSource::Path(path) => path.display().to_string(),
            ModelSource::Embedded(_) => "embedded in this binary".to_owned(),
        },
        family: facts.family.name().to_owned(),
        parameters: parts.iter().map(|part| part.parameters).sum(),
        parts,
        dtypes: facts.dtypes,
        vocabulary: facts.vocabulary,
        context: facts.context,
        kv_bytes_per_token: facts.kv_bytes_per_token,
        token_costs: facts.token_costs,
    })
}
