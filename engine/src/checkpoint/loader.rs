//! Takes tensors from a checkpoint to a device and keeps the account of their names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::weights::{WeightData, WeightFormat};

use super::Checkpoint;
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::Precision;

/// Rows that are dequantised at once.
const DEQUANTISED_ROWS: usize = 1024;

/// What was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Elements.
    pub parameters: u64,
    /// Bytes on the device.
    pub bytes: u64,
    /// Storage of most elements, for people (`bf16`, `q4_1`).
    pub dtype: String,
}

/// Uploads tensors by name; [`Loader::finish`] refuses a checkpoint with tensors that nobody asked for.
pub struct Loader<'a, B: Backend> {
    checkpoint: &'a Checkpoint,
    backend: &'a B,
    precision: Precision,
    taken: BTreeSet<String>,
    elements: BTreeMap<&'static str, u64>,
    bytes: u64,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub(super) fn new(checkpoint: &'a Checkpoint, backend: &'a B, precision: Precision) -> Self {
        Self { checkpoint, backend, precision, taken: BTreeSet::new(), elements: BTreeMap::new(), bytes: 0 }
    }

    /// The device.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// Whether the checkpoint has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(name)
    }

    /// The matrix `name` of `rows` outputs and `cols` inputs.
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize) -> Result<B::Weight> {
        let data = self.checkpoint.weight(name, rows, cols)?;
        self.taken.insert(name.to_owned());
        self.upload(data)
    }

    /// These rows of the matrix `name`, which has `all` rows.
    pub fn weight_rows(&mut self, name: &str, all: usize, rows: Range<usize>, cols: usize) -> Result<B::Weight> {
        let data = self.checkpoint.weight(name, all, cols)?;
        self.taken.insert(name.to_owned());
        let stride = data.bytes.len() / all.max(1);
        let bytes = Cow::Borrowed(&data.bytes[rows.start * stride..rows.end * stride]);
        self.upload(WeightData { rows: rows.len(), bytes, ..data })
    }

    /// These elements of the vector `name`, which has `all`, as one row.
    pub fn vector_part(&mut self, name: &str, all: usize, part: Range<usize>) -> Result<B::Tensor> {
        let values = self.checkpoint.vector(name, all)?;
        self.taken.insert(name.to_owned());
        let values = &values[part];
        self.count(WeightFormat::F32, values);
        Ok(self.backend.upload(1, values.len(), values)?)
    }

    /// A bias or norm weight, as one row.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<B::Tensor> {
        let values = self.checkpoint.vector(name, len)?;
        self.taken.insert(name.to_owned());
        self.count(WeightFormat::F32, &values);
        Ok(self.backend.upload(1, len, &values)?)
    }

    /// A bias that is there when `present`.
    pub fn bias(&mut self, name: &str, len: usize, present: bool) -> Result<Option<B::Tensor>> {
        present.then(|| self.vector(name, len)).transpose()
    }

    /// A matrix as activations (learned positions).
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<B::Tensor> {
        let data = self.checkpoint.weight(name, rows, cols)?;
        self.taken.insert(name.to_owned());
        let values = self.dense(&data)?;
        self.count(WeightFormat::F32, &values);
        Ok(self.backend.upload(rows, cols, &values)?)
    }

    /// The kernel of a 1-D convolution, stored `[outputs, channels, kernel]`, in the layout of [`Backend::conv1d`]
    /// (kernel position major).
    pub fn conv1d(&mut self, name: &str, outputs: usize, channels: usize, kernel: usize) -> Result<B::Weight> {
        let data = self.checkpoint.weight(name, outputs, channels * kernel)?;
        self.taken.insert(name.to_owned());
        if data.format.block_elements() != 1 {
            let detail = format!("convolution {name} is quantised; convolutions must be float");
            return Err(EngineError::new(ErrorKind::Unsupported, detail));
        }
        let size = data.format.block_bytes();
        let mut bytes = Vec::with_capacity(data.bytes.len());
        for output in data.bytes.chunks_exact(channels * kernel * size) {
            for position in 0..kernel {
                for channel in 0..channels {
                    bytes.extend_from_slice(&output[(channel * kernel + position) * size..][..size]);
                }
            }
        }
        self.upload(WeightData { bytes: Cow::Owned(bytes), ..data })
    }

    /// Counts a tensor as known although the forward pass does not use it.
    pub fn ignore(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// Ends the loading: a tensor nobody asked for is an error that names it.
    pub fn finish(self) -> Result<Tally> {
        self.checkpoint.refuse_surplus(&self.taken)?;
        let most = self.elements.iter().max_by_key(|(_, count)| **count);
        Ok(Tally {
            parameters: self.elements.values().sum(),
            bytes: self.bytes,
            dtype: most.map(|(name, _)| (*name).to_owned()).unwrap_or_default(),
        })
    }

    fn count(&mut self, format: WeightFormat, values: &[f32]) {
        *self.elements.entry(format_name(format)).or_default() += values.len() as u64;
        self.bytes += size_of_val(values) as u64;
    }

    fn upload(&mut self, data: WeightData<'_>) -> Result<B::Weight> {
        let data = match self.precision {
            Precision::Stored => data,
            Precision::Float32 => self.as_float32(data)?,
        };
        *self.elements.entry(format_name(data.format)).or_default() += (data.rows * data.cols) as u64;
        self.bytes += data.bytes.len() as u64;
        Ok(self.backend.weight(&data)?)
    }

    fn as_float32<'d>(&self, data: WeightData<'d>) -> Result<WeightData<'d>> {
        if data.format == WeightFormat::F32 {
            return Ok(data);
        }
        let values = self.dense(&data)?;
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(WeightData { format: WeightFormat::F32, bytes: Cow::Owned(bytes), ..data })
    }

    /// Elements as `f32`. Quantised rows go through the backend's own table lookup, which is its dequantiser.
    fn dense(&self, data: &WeightData<'_>) -> Result<Vec<f32>> {
        if let Some(values) = super::tensors::floats(data.format, &data.bytes) {
            return Ok(values);
        }
        let table = self.backend.weight(data)?;
        let mut values = Vec::with_capacity(data.rows * data.cols);
        let rows: Vec<u32> = (0..data.rows as u32).collect();
        for rows in rows.chunks(DEQUANTISED_ROWS) {
            values.extend(self.backend.download(&self.backend.embed(&table, rows)?)?);
        }
        Ok(values)
    }
}

/// Name of a format for people.
pub(super) const fn format_name(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F32 => "f32",
        WeightFormat::F16 => "f16",
        WeightFormat::BF16 => "bf16",
        WeightFormat::Q4_0 => "q4_0",
        WeightFormat::Q4_1 => "q4_1",
        WeightFormat::Q5_0 => "q5_0",
        WeightFormat::Q5_1 => "q5_1",
        WeightFormat::Q8_0 => "q8_0",
        WeightFormat::Q4K => "q4_k",
        WeightFormat::Q5K => "q5_k",
        WeightFormat::Q6K => "q6_k",
    }
}
