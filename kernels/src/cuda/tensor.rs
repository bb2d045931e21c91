//! Tensors, weights and pages on the device.

use std::rc::Rc;

use super::Activations;
use super::device::{Block, Device};
use super::launch::Parameter;
use super::staging::Staging;
use crate::error::Result;
use crate::quant;
use crate::shapes::PageLayout;
use crate::weights::{WeightData, WeightFormat};

/// A matrix on the device; cloning shares the elements.
#[derive(Clone)]
pub struct CudaTensor {
    block: Rc<Block>,
    rows: usize,
    cols: usize,
    /// Element type: that of activations, or float32 for rotary tables and logits.
    elements: Activations,
}

impl CudaTensor {
    pub(super) fn new(block: Block, (rows, cols): (usize, usize), elements: Activations) -> Self {
        Self { block: Rc::new(block), rows, cols, elements }
    }

    pub(super) fn reshaped(&self, rows: usize, cols: usize) -> Self {
        Self { block: self.block.clone(), rows, cols, elements: self.elements }
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    pub(super) fn address(&self) -> u64 {
        self.block.address()
    }

    pub(super) const fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    pub(super) const fn cols(&self) -> usize {
        self.cols
    }

    pub(super) const fn count(&self) -> usize {
        self.rows * self.cols
    }

    pub(super) const fn elements(&self) -> Activations {
        self.elements
    }

    pub(super) const fn bytes(&self) -> usize {
        self.count() * self.elements.bytes()
    }
}

/// What kernels know of a weight: `Weight` in `prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct WeightParameter {
    pub(super) data: u64,
    pub(super) scales: u64,
    pub(super) outputs: u32,
    pub(super) inputs: u32,
    pub(super) format: u32,
    pub(super) group_shift: u32,
}

// SAFETY: `repr(C)`, four words.
#[expect(unsafe_code, reason = "a kernel parameter")]
unsafe impl Parameter for WeightParameter {}

/// How elements lie on the device; the numbers are those of `Format` in `prelude.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    Codes4 = 3,
    Codes8 = 4,
}

/// A weight matrix on the device.
///
/// Quantised formats keep their codes (4 bits, or 8 for everything wider) apart from scale and offset in float32, a pair
/// for 32 elements (16 in Q6_K): aligned loads for a little more memory.
pub struct CudaWeight {
    data: Block,
    scales: Option<Block>,
    storage: Storage,
    rows: usize,
    cols: usize,
    group_shift: u32,
    /// Rows and columns rounded up to eight, padded with zeros: what large products want where the shape is odd.
    aligned: Option<Block>,
}

impl CudaWeight {
    /// Operands were checked.
    pub(super) fn new(
        device: &Rc<Device>,
        staging: &mut Staging,
        data: &WeightData<'_>,
        activations: Activations,
    ) -> Result<Self> {
        let (rows, cols) = (data.rows, data.cols);
        let storage = storage(data.format, activations);
        let elements = rows * cols;
        let bytes = match storage {
            Storage::F32 => elements * 4,
            Storage::F16 | Storage::Bf16 => elements * 2,
            Storage::Codes4 => elements / 2,
            Storage::Codes8 => elements,
        };
        let block = device.lasting("weight", bytes)?;
        let mut weight = Self { data: block, scales: None, storage, rows, cols, group_shift: 0, aligned: None };
        let given = &*data.bytes;
        match (storage, data.format) {
            (Storage::F32, _) | (Storage::F16, _) | (Storage::Bf16, WeightFormat::BF16) => {
                staging.bulk(&weight.data, bytes, |at, piece| piece.copy_from_slice(&given[at..at + piece.len()]))?;
            }
            (Storage::Bf16, WeightFormat::F32) => staging.bulk(&weight.data, bytes, |at, piece| {
                for (to, from) in piece.as_chunks_mut::<2>().0.iter_mut().zip(given[2 * at..].as_chunks::<4>().0) {
                    *to = half::bf16::from_f32(f32::from_le_bytes(*from)).to_le_bytes();
                }
            })?,
            (Storage::Bf16, _) => staging.bulk(&weight.data, bytes, |at, piece| {
                for (to, from) in piece.as_chunks_mut::<2>().0.iter_mut().zip(given[at..].as_chunks::<2>().0) {
                    *to = half::bf16::from_f32(half::f16::from_le_bytes(*from).to_f32()).to_le_bytes();
                }
            })?,
            (Storage::Codes4 | Storage::Codes8, format) => weight.pack(device, staging, format, given)?,
        }
        Ok(weight)
    }

    /// Takes blocks apart into codes and scales.
    fn pack(&mut self, device: &Rc<Device>, staging: &mut Staging, format: WeightFormat, given: &[u8]) -> Result<()> {
        let elements = self.rows * self.cols;
        let per_group = if format == WeightFormat::Q6K { 16 } else { 32 };
        self.group_shift = if per_group == 16 { 4 } else { 5 };
        let mut codes = Vec::with_capacity(self.data.bytes());
        let mut scales: Vec<f32> = Vec::with_capacity(2 * elements / per_group);
        for block in given.chunks_exact(format.block_bytes()) {
            for sub in 0..format.block_elements() / 32 {
                let read = quant::read(format, block, sub);
                let offset = match self.storage {
                    Storage::Codes4 => {
                        codes.extend(read.code.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
                        read.min - read.scale[0] * f32::from(read.zero)
                    }
                    _ => {
                        codes.extend(read.code.map(|code| code.wrapping_sub(read.zero)));
                        read.min
                    }
                };
                for &scale in &read.scale[..32 / per_group] {
                    scales.extend([scale, offset]);
                }
            }
        }
        let scale_bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let block = device.lasting("weight", scale_bytes.len())?;
        staging.bulk(&self.data, codes.len(), |at, piece| piece.copy_from_slice(&codes[at..at + piece.len()]))?;
        staging.bulk(&block, scale_bytes.len(), |at, piece| {
            piece.copy_from_slice(&scale_bytes[at..at + piece.len()]);
        })?;
        self.scales = Some(block);
        Ok(())
    }

    pub(super) const fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Keeps a padded copy for large products.
    pub(super) fn align(&mut self, copy: Block) {
        self.aligned = Some(copy);
    }

    /// The copy of [`CudaWeight::align`].
    pub(super) const fn aligned(&self) -> Option<&Block> {
        self.aligned.as_ref()
    }

    pub(super) const fn storage(&self) -> Storage {
        self.storage
    }

    pub(super) fn parameter(&self) -> WeightParameter {
        WeightParameter {
            data: self.data.address(),
            scales: self.scales.as_ref().map_or(0, Block::address),
            outputs: self.rows as u32,
            inputs: self.cols as u32,
            format: self.storage as u32,
            group_shift: self.group_shift,
        }
    }
}

/// Dense weights of a bf16 backend are bf16; a float32 backend keeps what it is given.
const fn storage(format: WeightFormat, activations: Activations) -> Storage {
    match (format, activations) {
        (WeightFormat::F32, Activations::F32) => Storage::F32,
        (WeightFormat::F16, Activations::F32) => Storage::F16,
        (WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16, _) => Storage::Bf16,
        (WeightFormat::Q4_0 | WeightFormat::Q4_1 | WeightFormat::Q4K, _) => Storage::Codes4,
        _ => Storage::Codes8,
    }
}

/// Key/value pages of one layer: `[page][kv_head][slot][head_dim]`, keys and values apart.
pub struct CudaPages {
    pub(super) keys: Block,
    pub(super) values: Block,
    pub(super) layout: PageLayout,
    pub(super) count: usize,
}
