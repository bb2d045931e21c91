//! AVX-512 F, BW, DQ, VL: 16 floats.

#![expect(
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    reason = "one instruction a function, under the contract stated at `Simd`"
)]

use std::arch::x86_64::*;

use super::super::dense::{self, DenseTile, Element};
use super::super::quant::{self, ActivationBlock, Format, QuantTile};
use super::{Bytes, Simd, rows};

/// See the module.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

impl Simd for Avx512 {
    const LANES: usize = 16;
    const DENSE_ROWS: usize = 12;
    const DENSE_WIDE_ROWS: usize = 0;
    const QUANT_ROWS: usize = 4;
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        _mm512_storeu_ps(to, value);
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }

    #[inline(always)]
    unsafe fn load_word(from: *const i8) -> __m512i {
        _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m512i, by: u32) -> __m512i {
        _mm512_sll_epi32(a, _mm_cvtsi32_si128(by as i32))
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        _mm512_sub_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn to_float(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }

    #[inline(always)]
    unsafe fn block_dots<F: Format, const ROWS: usize>(
        lines: *const u8,
        codes: *const i8,
        stride: usize,
    ) -> [[__m512i; ROWS]; 2] {
        quant::block_dots::<Self, F, ROWS>(lines, codes, stride)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn dense_tile<E: Element>(tile: &DenseTile<E>, rows: usize) {
        rows!(rows; 1 2 3 4 5 6 7 8 9 10 11 12 => |ROWS| dense::tile::<Self, E, ROWS, 2>(tile));
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn widen<E: Element>(from: &[E], to: &mut [f32]) {
        dense::widen::<Self, E>(from, to);
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
        dense::pack_rows(x, stride, rows, to);
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn quant_tile<F: Format>(tile: &QuantTile, rows: usize) {
        rows!(rows; 2 4 => |ROWS| quant::tile::<Self, F, ROWS, 1>(tile));
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
        super::avx2::quantize_rows(x, codes, blocks);
    }
}

impl Bytes for Avx512 {
    #[inline(always)]
    unsafe fn load_int(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> __m512i {
        _mm512_set1_epi32(value)
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m512i, by: u32) -> __m512i {
        _mm512_srl_epi16(a, _mm_cvtsi32_si128(by as i32))
    }
    #[inline(always)]
    unsafe fn dot_bytes(unsigned: __m512i, signed: __m512i) -> __m512i {
        _mm512_maddubs_epi16(unsigned, signed)
    }
    #[inline(always)]
    unsafe fn add_i16(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi16(a, b)
    }
    #[inline(always)]
    unsafe fn dot_words(a: __m512i, b: __m512i) -> __m512i {
        _mm512_madd_epi16(a, b)
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
}
