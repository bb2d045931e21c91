//! The GGUF container: metadata and tensor table (ggml's `docs/gguf.md`, versions 2 and 3, little-endian).
//!
//! Every count is held against the bytes that are left before anything is allocated.

use std::collections::BTreeMap;
use std::ops::Range;

use weft_kernels::weights::WeightFormat;

use super::files::malformed;
use crate::error::{EngineError, ErrorKind, Result};

const MAGIC: &[u8; 4] = b"GGUF";
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A metadata value. Integers of all widths are one kind, floats another.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// One tensor of the table, dimensions outermost first (rows, columns).
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) format: WeightFormat,
    /// Bytes in the file.
    pub(super) range: Range<usize>,
}

/// A read container.
#[derive(Debug)]
pub(super) struct Gguf {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: Vec<Tensor>,
}

/// Reads the header of a file; `label` names it in errors.
pub(super) fn read(label: &str, bytes: &[u8]) -> Result<Gguf> {
    let mut reader = Reader { label, bytes, at: 0 };
    if reader.take(4)? != MAGIC {
        return Err(malformed(label, "is no GGUF file; give a .gguf file or a folder with config.json"));
    }
    let version = reader.u32()?;
    if !matches!(version, 2 | 3) {
        let detail = format!("{label} is GGUF version {version}; versions 2 and 3 are read, convert it");
        return Err(EngineError::new(ErrorKind::Unsupported, detail));
    }
    let tensor_count = reader.count(24)?;
    let pair_count = reader.count(13)?;
    let mut metadata = BTreeMap::new();
    for _ in 0..pair_count {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind)?;
        metadata.insert(key, value);
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::Integer(n)) => u64::try_from(*n).unwrap_or(0),
        Some(_) => 0,
    };
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(malformed(label, "has an impossible general.alignment; fetch it again"));
    }
    let mut raw = Vec::new();
    for _ in 0..tensor_count {
        raw.push(reader.tensor()?);
    }
    let start = (reader.at as u64).next_multiple_of(alignment);
    let tensors = raw.into_iter().map(|tensor| tensor.place(label, start, bytes.len())).collect::<Result<_>>()?;
    Ok(Gguf { metadata, tensors })
}

/// A table entry before its bytes are known to be there.
struct RawTensor {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    offset: u64,
}

impl RawTensor {
    fn place(self, label: &str, start: u64, len: usize) -> Result<Tensor> {
        let name = &self.name;
        let format = format_of(self.kind).ok_or_else(|| {
            let known = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";
            let detail = format!("{label} stores tensor {name} as ggml type {}; supported are {known}", self.kind);
            EngineError::new(ErrorKind::Unsupported, detail)
        })?;
        let bytes = || -> Option<Range<usize>> {
            let row = *self.shape.last()?;
            let rows = self.shape[..self.shape.len() - 1].iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
            if !row.is_multiple_of(format.block_elements()) {
                return None;
            }
            let size = rows.checked_mul(row / format.block_elements())?.checked_mul(format.block_bytes())?;
            let from = usize::try_from(start.checked_add(self.offset)?).ok()?;
            let to = from.checked_add(size)?;
            (to <= len).then_some(from..to)
        };
        let range = bytes().ok_or_else(|| {
            let shape = &self.shape;
            malformed(label, &format!("ends before tensor {name} {shape:?} does; it is truncated, fetch it again"))
        })?;
        Ok(Tensor { name: self.name, shape: self.shape, format, range })
    }
}

const fn format_of(kind: u32) -> Option<WeightFormat> {
    Some(match kind {
        0 => WeightFormat::F32,
        1 => WeightFormat::F16,
        2 => WeightFormat::Q4_0,
        3 => WeightFormat::Q4_1,
        6 => WeightFormat::Q5_0,
        7 => WeightFormat::Q5_1,
        8 => WeightFormat::Q8_0,
        12 => WeightFormat::Q4K,
        13 => WeightFormat::Q5K,
        14 => WeightFormat::Q6K,
        30 => WeightFormat::BF16,
        _ => return None,
    })
}

struct Reader<'a> {
    label: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn broken(&self, detail: &str) -> EngineError {
        malformed(self.label, &format!("{detail} at byte {}; it is truncated or damaged, fetch it again", self.at))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.broken("ends in the middle of its header"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take gives as many bytes as asked"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of items that take at least `least` bytes each.
    fn count(&mut self, least: usize) -> Result<usize> {
        let count = self.u64()?;
        let room = (self.bytes.len() - self.at) / least;
        match usize::try_from(count) {
            Ok(count) if count <= room => Ok(count),
            _ => Err(self.broken(&format!("announces {count} items where {room} have room"))),
        }
    }

    fn text(&mut self) -> Result<String> {
        let len = self.count(1)?;
        // Some converters wrote vocabulary pieces that are not whole characters.
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 | 1 | 2 | 3 | 4 | 5 | 10 | 11 => Value::Integer(self.integer(kind)?),
            6 | 12 => Value::Float(self.float(kind)?),
            7 => Value::Bool(self.bool()?),
            8 => Value::Text(self.text()?),
            9 => return self.values(),
            _ => return Err(self.broken(&format!("has a value of unknown type {kind}"))),
        })
    }

    fn values(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            _ => return Err(self.broken(&format!("has an array of type {kind}"))),
        };
        let count = self.count(least)?;
        let mut values = match kind {
            6 | 12 => Value::Floats(Vec::with_capacity(count)),
            7 => Value::Bools(Vec::with_capacity(count)),
            8 => Value::Texts(Vec::with_capacity(count)),
            _ => Value::Integers(Vec::with_capacity(count)),
        };
        for _ in 0..count {
            match &mut values {
                Value::Floats(list) => list.push(self.float(kind)? as f32),
                Value::Bools(list) => list.push(self.bool()?),
                Value::Texts(list) => list.push(self.text()?),
                Value::Integers(list) => {
                    let wide = self.integer(kind)?;
                    list.push(i64::try_from(wide).map_err(|_| self.broken("has an integer that is too large"))?);
                }
                _ => return Err(self.broken("has an array of no known type")),
            }
        }
        Ok(values)
    }

    fn integer(&mut self, kind: u32) -> Result<i128> {
        Ok(match kind {
            0 => i128::from(u8::from_le_bytes(self.array()?)),
            1 => i128::from(i8::from_le_bytes(self.array()?)),
            2 => i128::from(u16::from_le_bytes(self.array()?)),
            3 => i128::from(i16::from_le_bytes(self.array()?)),
            4 => i128::from(self.u32()?),
            5 => i128::from(i32::from_le_bytes(self.array()?)),
            10 => i128::from(self.u64()?),
            _ => i128::from(i64::from_le_bytes(self.array()?)),
        })
    }

    fn float(&mut self, kind: u32) -> Result<f64> {
        Ok(if kind == 6 { f64::from(f32::from_le_bytes(self.array()?)) } else { f64::from_le_bytes(self.array()?) })
    }

    fn bool(&mut self) -> Result<bool> {
        Ok(self.take(1)?[0] != 0)
    }

    fn tensor(&mut self) -> Result<RawTensor> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if dimensions == 0 || dimensions > MAX_DIMENSIONS {
            return Err(self.broken(&format!("gives tensor {name} {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64()?;
            shape.push(usize::try_from(size).map_err(|_| self.broken("has a dimension that is too large"))?);
        }
        shape.reverse();
        Ok(RawTensor { name, shape, kind: self.u32()?, offset: self.u64()? })
    }
}
