//! The vector operations that products are written in, once for every instruction set.
//!
//! The kernels in [`super::dense`] and [`super::quant`] are generic over [`Simd`] and always inlined into the functions
//! of an implementation that carry `#[target_feature]`; that is where one kernel becomes machine code for one level.

use std::fmt;

use super::dense::{DenseTile, Element};
use super::quant::{self, Format, QuantTile};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

pub(super) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

/// An instruction set that products have kernels for.
///
/// Values may differ between levels in the last bits (fused or separate multiply and add); within a level they depend
/// on nothing but the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor can run it.
    pub fn available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest available level.
    pub fn detect() -> Self {
        let best = Self::ALL.into_iter().rev().find(|level| level.available());
        best.unwrap_or(Self::Portable)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

/// Calls the tile made for a number of rows.
macro_rules! rows {
    ($rows:expr; $($($count:literal)* => |$name:ident| $call:expr);*) => {
        match $rows {
            $($($count => { const $name: usize = $count; $call })*)*
            rows => unreachable!("no tile has {rows} rows"),
        }
    };
}
use rows;

/// One instruction set: vectors of `LANES` floats, or as many 32-bit words seen as integers of 8, 16 or 32 bits.
///
/// # Safety
/// Every function needs the instruction set of its implementation. Loads read, and stores write, whole vectors
/// (`load_half`, `load_bf16`, `load_u8`, `load_i8`: `LANES` elements) at any alignment.
pub(super) trait Simd: Copy + 'static {
    /// Floats in a vector; divides [`quant::PANEL`] and [`super::dense::PANEL`].
    const LANES: usize;
    /// Rows of the largest dense tile.
    const DENSE_ROWS: usize;
    /// Rows up to which a dense tile is four vectors wide instead of two.
    const DENSE_WIDE_ROWS: usize;
    /// Rows of the largest quantised tile; a power of two, and every smaller one has a tile too.
    const QUANT_ROWS: usize;
    /// Floats.
    type F: Copy;
    /// Integers.
    type I: Copy;

    unsafe fn splat(value: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, value: Self::F);
    unsafe fn load_half(from: *const u16) -> Self::F;
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    unsafe fn load_u8(from: *const u8) -> Self::F;
    unsafe fn load_i8(from: *const u8) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the level has such an instruction.
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Hints that the line at `from` is needed soon; any address.
    unsafe fn prefetch(from: *const u8);

    /// The 32-bit word at `from` in every lane.
    unsafe fn load_word(from: *const i8) -> Self::I;
    /// Shifts 32-bit lanes; `by` is known at compile time and below 8.
    unsafe fn shift_left(a: Self::I, by: u32) -> Self::I;
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn to_float(a: Self::I) -> Self::F;
    /// The dot products of a block, as [`quant::block_dots`] gives them.
    unsafe fn block_dots<F: Format, const ROWS: usize>(
        lines: *const u8,
        codes: *const i8,
        stride: usize,
    ) -> [[Self::I; ROWS]; 2];

    /// [`super::dense::tile`] compiled for this level.
    unsafe fn dense_tile<E: Element>(tile: &DenseTile<E>, rows: usize);
    /// [`super::dense::widen`] compiled for this level.
    unsafe fn widen<E: Element>(from: &[E], to: &mut [f32]);
    /// [`super::dense::pack_rows`] compiled for this level.
    unsafe fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]);
    /// [`quant::tile`] compiled for this level.
    unsafe fn quant_tile<F: Format>(tile: &QuantTile, rows: usize);
    /// [`quant::quantize_rows`] compiled for this level.
    unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [quant::ActivationBlock]);
}

/// Operations on bytes inside the 32-bit lanes.
///
/// # Safety
/// As for [`Simd`].
pub(super) trait Bytes: Simd {
    unsafe fn load_int(from: *const u8) -> Self::I;
    unsafe fn splat_i32(value: i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts 16-bit lanes; `by` is known at compile time and below 8.
    unsafe fn shift_right(a: Self::I, by: u32) -> Self::I;
    /// Sums of neighbouring products of unsigned and signed bytes, as 16-bit lanes that must not overflow.
    unsafe fn dot_bytes(unsigned: Self::I, signed: Self::I) -> Self::I;
    unsafe fn add_i16(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of neighbouring products of 16-bit lanes, as 32-bit lanes.
    unsafe fn dot_words(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
}
