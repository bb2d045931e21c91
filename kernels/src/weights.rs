//! Weight formats: how the elements of a matrix are stored in a checkpoint.

use std::borrow::Cow;

/// Storage of weight elements. Quantised formats are the GGUF block formats of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// 32 elements: half scale, 4-bit signed.
    Q4_0,
    /// 32 elements: half scale and minimum, 4-bit.
    Q4_1,
    /// 32 elements: half scale, 5-bit signed.
    Q5_0,
    /// 32 elements: half scale and minimum, 5-bit.
    Q5_1,
    /// 32 elements: half scale, 8-bit signed.
    Q8_0,
    /// 256 elements in 8 groups: 6-bit scales and minimums, 4-bit.
    Q4K,
    /// 256 elements in 8 groups: 6-bit scales and minimums, 5-bit.
    Q5K,
    /// 256 elements in 16 groups: 8-bit scales, 6-bit signed.
    Q6K,
}

impl WeightFormat {
    /// Elements in one block (1 for dense formats). A row is a whole number of blocks.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a `rows x cols` matrix.
    pub const fn bytes(self, rows: usize, cols: usize) -> usize {
        rows * (cols / self.block_elements()) * self.block_bytes()
    }
}

/// A matrix as it lies in a checkpoint: row-major, rows are outputs.
#[derive(Debug, Clone)]
pub struct WeightData<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Element storage.
    pub format: WeightFormat,
    /// `format.bytes(rows, cols)` little-endian bytes.
    pub bytes: Cow<'a, [u8]>,
}
