//! The table of a checkpoint's tensors: which file, which bytes, which shape, which storage.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use weft_kernels::weights::{WeightData, WeightFormat};

use super::files::{Bytes, malformed};
use crate::error::{EngineError, ErrorKind, Result};

/// How a tensor's elements are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Storage {
    Known(WeightFormat),
    /// Something weights never use (integers, 64-bit floats), by its name in the file.
    Other(String),
}

/// One tensor.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Number of the file in [`Tensors::files`].
    pub(super) file: usize,
    pub(super) storage: Storage,
    pub(super) shape: Vec<usize>,
    pub(super) range: Range<usize>,
    /// Rows were interleaved head by head for llama.cpp's rotary layout; this many heads.
    pub(super) interleaved_heads: Option<usize>,
}

impl Entry {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, &size| product.saturating_mul(size as u64))
    }
}

/// All tensors, by the name that families use.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    /// Label and bytes of every file.
    pub(super) files: Vec<(String, Bytes)>,
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Tensors {
    /// Adds a tensor; two of one name are an error.
    pub(super) fn add(&mut self, name: String, entry: Entry) -> Result<()> {
        let label = self.files[entry.file].0.clone();
        match self.entries.insert(name.clone(), entry) {
            None => Ok(()),
            Some(_) => Err(malformed(&label, &format!("holds tensor {name}, which was there before"))),
        }
    }

    /// Gives tensors the names that their family uses, and drops those it has none for.
    pub(super) fn rename(&mut self, name_of: impl Fn(String) -> Option<String>) -> Result<()> {
        for (name, entry) in std::mem::take(&mut self.entries) {
            if let Some(name) = name_of(name) {
                self.add(name, entry)?;
            }
        }
        Ok(())
    }

    /// Where tensors are looked for, for error texts.
    fn place(&self) -> String {
        match self.files.as_slice() {
            [] => "the checkpoint".to_owned(),
            [(label, _)] => label.clone(),
            [(label, _), rest @ ..] => format!("{label} and {} more files", rest.len()),
        }
    }

    pub(super) fn get(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let remedy = "the checkpoint is incomplete or of another family than its config says";
            malformed(&self.place(), &format!("has no tensor {name}; {remedy}"))
        })
    }

    /// The elements of a tensor as a matrix; dimensions after the first are folded into columns.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<WeightData<'_>> {
        let entry = self.get(name)?;
        let (label, bytes) = &self.files[entry.file];
        let inner = entry.shape.get(1..).unwrap_or_default();
        let folded = inner.iter().fold(1usize, |product, &size| product.saturating_mul(size));
        if entry.shape.first() != Some(&rows) || folded != cols {
            let got = &entry.shape;
            return Err(malformed(label, &format!("holds tensor {name} of shape {got:?}, expected [{rows}, {cols}]")));
        }
        let format = self.format(name)?;
        if !cols.is_multiple_of(format.block_elements()) {
            let detail = format!("holds tensor {name} with {cols} columns, no multiple of its {format:?} blocks");
            return Err(malformed(label, &detail));
        }
        let raw = &bytes[entry.range.clone()];
        let bytes = match entry.interleaved_heads {
            Some(heads) => Cow::Owned(deinterleave(raw, heads, rows)),
            None => Cow::Borrowed(raw),
        };
        Ok(WeightData { rows, cols, format, bytes })
    }

    /// A vector as `f32`.
    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let entry = self.get(name)?;
        let (label, bytes) = &self.files[entry.file];
        if entry.shape != [len] {
            let got = &entry.shape;
            return Err(malformed(label, &format!("holds tensor {name} of shape {got:?}, expected [{len}]")));
        }
        let raw = &bytes[entry.range.clone()];
        let raw = match entry.interleaved_heads {
            Some(heads) => Cow::Owned(deinterleave(raw, heads, len)),
            None => Cow::Borrowed(raw),
        };
        floats(self.format(name)?, &raw).ok_or_else(|| {
            let detail = format!("{label} holds vector {name} in a quantised format; vectors must be float");
            EngineError::new(ErrorKind::Unsupported, detail)
        })
    }

    fn format(&self, name: &str) -> Result<WeightFormat> {
        let entry = self.get(name)?;
        match &entry.storage {
            Storage::Known(format) => Ok(*format),
            Storage::Other(kind) => {
                let label = &self.files[entry.file].0;
                let remedy = "convert the checkpoint to F32, F16 or BF16";
                let detail = format!("{label} holds tensor {name} as {kind}, which weights cannot have; {remedy}");
                Err(EngineError::new(ErrorKind::Unsupported, detail))
            }
        }
    }
}

/// Elements of a dense format as `f32`; `None` for a quantised one.
pub(super) fn floats(format: WeightFormat, bytes: &[u8]) -> Option<Vec<f32>> {
    match format {
        WeightFormat::F32 => Some(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        WeightFormat::F16 => Some(bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()),
        WeightFormat::BF16 => {
            Some(bytes.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect())
        }
        _ => None,
    }
}

/// Undoes llama.cpp's row order of query and key products.
///
/// Rotate-half rotary joins elements `j` and `j + half` of a head, llama.cpp's joins neighbours; its converter therefore
/// stores row `j * half + i` of a head (`j` in 0..2) at `2 * i + j`. A row is a whole number of blocks, so quantised rows
/// move as they are.
fn deinterleave(raw: &[u8], heads: usize, rows: usize) -> Vec<u8> {
    let stride = raw.len() / rows.max(1);
    let head_rows = rows / heads.max(1);
    let half = head_rows / 2;
    let mut out = Vec::with_capacity(raw.len());
    for row in 0..rows {
        let (head, within) = (row / head_rows, row % head_rows);
        let stored = head * head_rows + 2 * (within % half) + within / half;
        out.extend_from_slice(&raw[stored * stride..][..stride]);
    }
    out
}
