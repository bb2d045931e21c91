//! Safetensors files: one, or shards listed by an index.

use std::collections::BTreeSet;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use weft_kernels::weights::WeightFormat;

use super::files::{Files, malformed};
use super::tensors::{Entry, Storage, Tensors};
use crate::error::{EngineError, ErrorKind, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Reads the headers of all weight files.
pub(super) fn read(files: &Files) -> Result<Tensors> {
    let mut tensors = Tensors::default();
    let index = files.json(INDEX)?;
    match &index {
        Some(index) => {
            let listed = weight_map(files, index)?;
            let shards: BTreeSet<&str> = listed.iter().map(|(_, file)| *file).collect();
            for shard in shards {
                read_file(files, shard, &mut tensors)?;
            }
            check_index(files, &listed, &tensors)?;
        }
        None => read_file(files, &single_name(files)?, &mut tensors)?,
    }
    Ok(tensors)
}

/// The only weight file of a folder without an index.
fn single_name(files: &Files) -> Result<String> {
    let mut names: Vec<String> = files.names().into_iter().filter(|n| n.ends_with(".safetensors")).collect();
    if names.iter().any(|name| name == SINGLE) {
        return Ok(SINGLE.to_owned());
    }
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(name),
        (None, _) => {
            let detail = format!("{} is missing; fetch the weights, or give a .gguf file", files.label(SINGLE));
            Err(EngineError::new(ErrorKind::NotFound, detail))
        }
        (Some(_), false) => {
            Err(malformed(&files.label(INDEX), "is missing although the weights come in several files"))
        }
    }
}

fn weight_map<'a>(files: &Files, index: &'a Value) -> Result<Vec<(&'a str, &'a str)>> {
    let broken = || malformed(&files.label(INDEX), "has no weight_map from tensor names to file names; fetch it again");
    let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(broken)?;
    map.iter().map(|(name, file)| Ok((name.as_str(), file.as_str().ok_or_else(broken)?))).collect()
}

fn check_index(files: &Files, listed: &[(&str, &str)], tensors: &Tensors) -> Result<()> {
    for (name, file) in listed {
        let held = tensors.entries.get(*name).map(|entry| &tensors.files[entry.file].0);
        if held != Some(&files.label(file)) {
            let detail = format!("says that {file} holds tensor {name}, but it does not; fetch both again");
            return Err(malformed(&files.label(INDEX), &detail));
        }
    }
    Ok(())
}

fn read_file(files: &Files, name: &str, tensors: &mut Tensors) -> Result<()> {
    let label = files.label(name);
    let bytes = files.find(name)?.ok_or_else(|| {
        EngineError::new(ErrorKind::NotFound, format!("{label} is missing although the index lists it; fetch it"))
    })?;
    let (header, metadata) = SafeTensors::read_metadata(&bytes)
        .map_err(|error| malformed(&label, &format!("is truncated or damaged ({error}); fetch it again")))?;
    let start = header + size_of::<u64>();
    let file = tensors.files.len();
    tensors.files.push((label, bytes));
    for (name, info) in metadata.tensors() {
        let storage = match info.dtype {
            Dtype::F32 => Storage::Known(WeightFormat::F32),
            Dtype::F16 => Storage::Known(WeightFormat::F16),
            Dtype::BF16 => Storage::Known(WeightFormat::BF16),
            other => Storage::Other(format!("{other:?}")),
        };
        let range = start + info.data_offsets.0..start + info.data_offsets.1;
        let entry = Entry { file, storage, shape: info.shape.clone(), range, interleaved_heads: None };
        tensors.add(name, entry)?;
    }
    Ok(())
}
