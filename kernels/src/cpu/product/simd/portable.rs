//! Plain Rust over arrays; the compiler makes what it can of them. Also what other architectures run.

#![expect(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "unaligned reads and writes, under the contract stated at `Simd`"
)]

use std::array::from_fn;

use half::f16;

use super::super::dense::{self, DenseTile, Element};
use super::super::quant::{self, ActivationBlock, Format, QuantTile, Scales};
use super::{Simd, rows};

/// See the module.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

const N: usize = 16;

impl Simd for Portable {
    const LANES: usize = N;
    const DENSE_ROWS: usize = 2;
    const DENSE_WIDE_ROWS: usize = 0;
    const QUANT_ROWS: usize = 2;
    type F = [f32; N];
    type I = [i32; N];

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
    unsafe fn load_word(from: *const i8) -> Self::I {
        [from.cast::<i32>().read_unaligned(); N]
    }
    #[inline(always)]
    unsafe fn shift_left(a: Self::I, by: u32) -> Self::I {
        from_fn(|i| a[i] << by)
    }
    #[inline(always)]
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    unsafe fn to_float(a: Self::I) -> Self::F {
        from_fn(|i| a[i] as f32)
    }
    unsafe fn block_dots<F: Format, const ROWS: usize>(
        lines: *const u8,
        codes: *const i8,
        stride: usize,
    ) -> [[Self::I; ROWS]; 2] {
        let lines = std::slice::from_raw_parts(lines, F::CODES);
        let mut dots = [[[0; N]; ROWS]; 2];
        for step in 0..8 {
            let code: [u8; 4 * N] = from_fn(|at| quant::step_code::<F>(lines, step, at));
            let group = if matches!(F::SCALES, Scales::Groups16) { step / 4 } else { 0 };
            for (row, dots) in dots[group].iter_mut().enumerate() {
                let x = codes.add(row * stride + 4 * step).cast::<[i8; 4]>().read();
                for (dot, code) in dots.iter_mut().zip(code.as_chunks::<4>().0) {
                    for (code, x) in code.iter().zip(x) {
                        *dot += i32::from(*code) * i32::from(x);
                    }
                }
            }
        }
        dots
    }

    unsafe fn dense_tile<E: Element>(tile: &DenseTile<E>, rows: usize) {
        rows!(rows; 1 2 => |ROWS| dense::tile::<Self, E, ROWS, 2>(tile));
    }
    unsafe fn widen<E: Element>(from: &[E], to: &mut [f32]) {
        dense::widen::<Self, E>(from, to);
    }
    unsafe fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
        dense::pack_rows(x, stride, rows, to);
    }
    unsafe fn quant_tile<F: Format>(tile: &QuantTile, rows: usize) {
        rows!(rows; 2 => |ROWS| quant::tile::<Self, F, ROWS, 1>(tile));
    }
    unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
        quant::quantize_rows(x, codes, blocks);
    }
}
