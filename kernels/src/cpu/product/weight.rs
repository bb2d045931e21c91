//! Weights in the form that the kernels read.

use std::fmt;

use half::{bf16, f16};

use super::simd::Level;
use super::{Buffer, dense, quant, quant_pack};
use crate::error::{KernelError, Result};
use crate::quant as formats;
use crate::weights::{WeightData, WeightFormat};

/// A `rows x cols` matrix of which products are taken; rows are outputs.
///
/// It takes about as many bytes as in the checkpoint (at most 3% more, apart from padding the rows to 32), and its
/// values are exactly those of the checkpoint.
pub struct PackedWeight {
    rows: usize,
    cols: usize,
    format: WeightFormat,
    level: Level,
    pub(super) packed: Buffer,
}

/// Evaluates an expression with `$format` standing for the packed format of a quantised [`WeightFormat`].
macro_rules! with_format {
    ($value:expr, $format:ident => $body:expr) => {
        match $value {
            WeightFormat::Q4_0 => {
                type $format = quant::Q4_0;
                $body
            }
            WeightFormat::Q4_1 => {
                type $format = quant::Q4_1;
                $body
            }
            WeightFormat::Q5_0 => {
                type $format = quant::Q5_0;
                $body
            }
            WeightFormat::Q5_1 => {
                type $format = quant::Q5_1;
                $body
            }
            WeightFormat::Q8_0 => {
                type $format = quant::Q8_0;
                $body
            }
            WeightFormat::Q4K => {
                type $format = quant::Q4K;
                $body
            }
            WeightFormat::Q5K => {
                type $format = quant::Q5K;
                $body
            }
            WeightFormat::Q6K => {
                type $format = quant::Q6K;
                $body
            }
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => unreachable!("a dense format"),
        }
    };
}
pub(super) use with_format;

impl PackedWeight {
    /// Packs a matrix for the fastest kernels of this processor.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when the bytes are not a whole matrix of the stated shape, or it is empty.
    pub fn new(data: &WeightData<'_>) -> Result<Self> {
        Self::with_level(data, Level::detect())
    }

    /// Packs a matrix for the kernels of one level: for tests and comparisons.
    ///
    /// # Errors
    /// As [`PackedWeight::new`], and [`KernelError::Unsupported`] when this processor does not have the level.
    #[doc(hidden)]
    pub fn with_level(data: &WeightData<'_>, level: Level) -> Result<Self> {
        use quant::Format as _;
        if !level.available() {
            let detail = format!("this processor does not have {level}");
            return Err(KernelError::Unsupported { op: "weight", detail });
        }
        formats::check(data)?;
        let WeightData { rows, cols, format, ref bytes } = *data;
        if rows == 0 || cols == 0 {
            return Err(KernelError::shape("weight", format!("an empty matrix, {rows}x{cols}")));
        }
        let mut packed;
        match format {
            WeightFormat::F32 => {
                packed = Buffer::zeroed(4 * dense::packed_len(rows, cols));
                dense::pack::<f32>(bytes, cols, packed.elements());
            }
            WeightFormat::F16 => {
                packed = Buffer::zeroed(2 * dense::packed_len(rows, cols));
                dense::pack::<f16>(bytes, cols, packed.elements());
            }
            WeightFormat::BF16 => {
                packed = Buffer::zeroed(2 * dense::packed_len(rows, cols));
                dense::pack::<bf16>(bytes, cols, packed.elements());
            }
            _ => with_format!(format, F => {
                packed = Buffer::zeroed(rows.div_ceil(quant::PANEL) * F::panel_bytes(cols / 32));
                let source = quant_pack::Source { format, cols, bytes };
                quant_pack::pack::<F>(&source, packed.elements());
            }),
        }
        Ok(Self { rows, cols, format, level, packed })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Storage of the checkpoint.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// The kernels it was packed for.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.packed.len()
    }

    /// Row `row`, dequantised, into `cols` floats: an embedding lookup.
    ///
    /// # Panics
    /// When there is no such row or `out` has another length.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row has {} columns", self.cols);
        match self.format {
            WeightFormat::F32 => dense::row_into::<f32>(self.packed.as_elements(), row, out),
            WeightFormat::F16 => dense::row_into::<f16>(self.packed.as_elements(), row, out),
            WeightFormat::BF16 => dense::row_into::<bf16>(self.packed.as_elements(), row, out),
            format => with_format!(format, F => quant_pack::row_into::<F>(self.packed.as_elements(), row, out)),
        }
    }

    /// Outputs that one panel of the packed form holds.
    pub(super) fn panel_rows(&self) -> usize {
        match self.format {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => dense::PANEL,
            _ => quant::PANEL,
        }
    }

    pub(super) fn is_dense(&self) -> bool {
        matches!(self.format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16)
    }
}

impl fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedWeight({}x{} {:?}, {})", self.rows, self.cols, self.format, self.level)
    }
}
