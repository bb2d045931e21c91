//! Block formats of quantised weights: what the bytes of a checkpoint mean, one block at a time.
//!
//! Everything here is naive on purpose: it is the reference for the packed kernels, and the reader through which they
//! repack. Layouts follow ggml (`ggml-quants.c`); [`read`] gives every format as the same [`Codes`].

mod groups256;
mod groups32;

pub(crate) use groups256::scale_and_minimum;

use half::f16;

use crate::error::{KernelError, Result};
use crate::weights::{WeightData, WeightFormat};

/// 32 consecutive elements of a row: element `i` is `scale[i / 16] * (code[i] - zero) + min`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Codes {
    /// Unsigned codes of at most `code_bits` bits.
    pub code: [u8; 32],
    /// The code that stands for zero in formats without a minimum.
    pub zero: u8,
    /// Scale of each half; both are equal except in `Q6K`.
    pub scale: [f32; 2],
    /// Added to every element.
    pub min: f32,
}

impl Codes {
    /// Value of element `i`.
    pub(crate) fn value(&self, i: usize) -> f32 {
        let steps = i32::from(self.code[i]) - i32::from(self.zero);
        let value = self.scale[i / 16] * steps as f32;
        if self.min == 0.0 { value } else { value + self.min }
    }
}

/// Reads elements `32 * sub ..` of one block of a quantised format.
pub(crate) fn read(format: WeightFormat, block: &[u8], sub: usize) -> Codes {
    match format {
        WeightFormat::Q4_0 => groups32::read_q4(block, false),
        WeightFormat::Q4_1 => groups32::read_q4(block, true),
        WeightFormat::Q5_0 => groups32::read_q5(block, false),
        WeightFormat::Q5_1 => groups32::read_q5(block, true),
        WeightFormat::Q8_0 => groups32::read_q8(block),
        WeightFormat::Q4K => groups256::read_q4k(block, sub),
        WeightFormat::Q5K => groups256::read_q5k(block, sub),
        WeightFormat::Q6K => groups256::read_q6k(block, sub),
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {
            unreachable!("dense formats have no blocks")
        }
    }
}

/// Fails unless the bytes are exactly a whole matrix of the stated shape.
pub(crate) fn check(data: &WeightData<'_>) -> Result<()> {
    let WeightData { rows, cols, format, .. } = *data;
    if !cols.is_multiple_of(format.block_elements()) {
        let block = format.block_elements();
        let detail = format!("{format:?} needs a multiple of {block} columns, got {cols}");
        return Err(KernelError::shape("weight", detail));
    }
    let (want, got) = (format.bytes(rows, cols), data.bytes.len());
    if want != got {
        let detail = format!("{rows}x{cols} {format:?} takes {want} bytes, got {got}");
        return Err(KernelError::shape("weight", detail));
    }
    Ok(())
}

/// All elements of a matrix as float32, row-major.
///
/// # Panics
/// When the bytes are not a whole matrix of the stated shape.
pub fn dequantize(data: &WeightData<'_>) -> Vec<f32> {
    if let Err(error) = check(data) {
        panic!("{error}");
    }
    let bytes = data.bytes.iter().as_slice();
    match data.format {
        WeightFormat::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        WeightFormat::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        WeightFormat::BF16 => bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        format => {
            let mut out = Vec::with_capacity(data.rows * data.cols);
            for block in bytes.chunks_exact(format.block_bytes()) {
                for sub in 0..format.block_elements() / 32 {
                    let codes = read(format, block, sub);
                    out.extend((0..32).map(|i| codes.value(i)));
                }
            }
            out
        }
    }
}

/// Rounds a `rows x cols` matrix to a format; the inverse of [`dequantize`] up to rounding.
///
/// Scales are chosen by range, not by a search for the least error: meant for tests and for making small checkpoints.
///
/// # Panics
/// When `values` does not hold `rows * cols` elements or `cols` is not a whole number of blocks.
pub fn quantize(values: &[f32], rows: usize, cols: usize, format: WeightFormat) -> Vec<u8> {
    assert_eq!(values.len(), rows * cols, "a {rows}x{cols} matrix");
    assert!(cols.is_multiple_of(format.block_elements()), "{format:?} with {cols} columns");
    let mut out = Vec::with_capacity(format.bytes(rows, cols));
    match format {
        WeightFormat::F32 => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
        WeightFormat::F16 => values.iter().for_each(|v| out.extend(f16::from_f32(*v).to_le_bytes())),
        WeightFormat::BF16 => values.iter().for_each(|v| out.extend(half::bf16::from_f32(*v).to_le_bytes())),
        _ => {
            for block in values.chunks_exact(format.block_elements()) {
                match format {
                    WeightFormat::Q4_0 => groups32::write_signed(block, 4, &mut out),
                    WeightFormat::Q4_1 => groups32::write_minimum(block, 4, &mut out),
                    WeightFormat::Q5_0 => groups32::write_signed(block, 5, &mut out),
                    WeightFormat::Q5_1 => groups32::write_minimum(block, 5, &mut out),
                    WeightFormat::Q8_0 => groups32::write_q8(block, &mut out),
                    WeightFormat::Q4K => groups256::write_minimum(block, 4, &mut out),
                    WeightFormat::Q5K => groups256::write_minimum(block, 5, &mut out),
                    _ => groups256::write_q6k(block, &mut out),
                }
            }
        }
    }
    out
}

/// Half-precision number at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Appends a number in half precision and returns what a reader will see.
fn put_half(value: f32, out: &mut Vec<u8>) -> f32 {
    let rounded = f16::from_f32(value);
    out.extend(rounded.to_le_bytes());
    rounded.to_f32()
}

/// `1 / x`, or 0 for 0: the factor that turns values into codes.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

#[cfg(test)]
pub(crate) mod tests;
