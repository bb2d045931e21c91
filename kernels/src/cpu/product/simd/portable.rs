//! Plain Rust over arrays; the compiler makes what it can of them. Also what other architectures run.

#![expect(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "unaligned reads and writes, under the contract stated at `Simd`"
)]

use std::array::from_fn;

use half::f16;

use super::super::dense::{self, DenseTile, Element};
use super::super::quant::{self, ActivationBlock, Format, QuantTile};
use super::Simd;

/// See the module.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

const N: usize = 8;

#[inline(always)]
fn words(a: [u8; 4 * N]) -> [i16; 2 * N] {
    from_fn(|i| i16::from_le_bytes([a[2 * i], a[2 * i + 1]]))
}

#[inline(always)]
fn from_words(a: [i16; 2 * N]) -> [u8; 4 * N] {
    from_fn(|i| a[i / 2].to_le_bytes()[i % 2])
}

#[inline(always)]
fn longs(a: [u8; 4 * N]) -> [i32; N] {
    from_fn(|i| i32::from_le_bytes([a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]]))
}

#[inline(always)]
fn from_longs(a: [i32; N]) -> [u8; 4 * N] {
    from_fn(|i| a[i / 4].to_le_bytes()[i % 4])
}

impl Simd for Portable {
    const LANES: usize = N;
    const DENSE_ROWS: usize = 4;
    const QUANT_ROWS: usize = 4;
    type F = [f32; N];
    type I = [u8; 4 * N];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        [value; N]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        from.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        to.cast::<Self::F>().write_unaligned(value);
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::F {
        from.cast::<[u16; N]>().read_unaligned().map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        from.cast::<[u16; N]>().read_unaligned().map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        from.cast::<[u8; N]>().read_unaligned().map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::F {
        from.cast::<[i8; N]>().read_unaligned().map(f32::from)
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}

    #[inline(always)]
    unsafe fn load_int(from: *const u8) -> Self::I {
        from.cast::<Self::I>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn load_word(from: *const i8) -> Self::I {
        let word = from.cast::<[u8; 4]>().read_unaligned();
        from_fn(|i| word[i % 4])
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> Self::I {
        from_longs([value; N])
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shift_right(a: Self::I, by: u32) -> Self::I {
        from_words(words(a).map(|v| (v as u16 >> by) as i16))
    }
    #[inline(always)]
    unsafe fn shift_left(a: Self::I, by: u32) -> Self::I {
        from_longs(longs(a).map(|v| v << by))
    }
    #[inline(always)]
    unsafe fn dot_bytes(unsigned: Self::I, signed: Self::I) -> Self::I {
        let product = |i: usize| i16::from(unsigned[i]).wrapping_mul(i16::from(signed[i] as i8));
        from_words(from_fn(|i| product(2 * i).wrapping_add(product(2 * i + 1))))
    }
    #[inline(always)]
    unsafe fn add_i16(a: Self::I, b: Self::I) -> Self::I {
        let (a, b) = (words(a), words(b));
        from_words(from_fn(|i| a[i].wrapping_add(b[i])))
    }
    #[inline(always)]
    unsafe fn dot_words(a: Self::I, b: Self::I) -> Self::I {
        let (a, b) = (words(a), words(b));
        let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
        from_longs(from_fn(|i| product(2 * i) + product(2 * i + 1)))
    }
    #[inline(always)]
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I {
        let (a, b) = (longs(a), longs(b));
        from_longs(from_fn(|i| a[i].wrapping_add(b[i])))
    }
    #[inline(always)]
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I {
        let (a, b) = (longs(a), longs(b));
        from_longs(from_fn(|i| a[i].wrapping_sub(b[i])))
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        longs(a).map(|v| v as f32)
    }

    unsafe fn dense_tile<E: Element, const ROWS: usize, const VECTORS: usize>(tile: &DenseTile<E>) {
        dense::tile::<Self, E, ROWS, VECTORS>(tile);
    }
    unsafe fn widen<E: Element>(from: &[E], to: &mut [f32]) {
        dense::widen::<Self, E>(from, to);
    }
    unsafe fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
        dense::pack_rows(x, stride, rows, to);
    }
    unsafe fn quant_tile<F: Format, const ROWS: usize>(tile: &QuantTile) {
        quant::tile::<Self, F, ROWS, 2>(tile);
    }
    unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
        quant::quantize_rows(x, codes, blocks);
    }
}
