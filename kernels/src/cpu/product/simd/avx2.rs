//! AVX2, FMA, F16C: 8 floats.

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
pub(in super::super) struct Avx2;

impl Simd for Avx2 {
    const LANES: usize = 8;
    const DENSE_ROWS: usize = 6;
    const DENSE_WIDE_ROWS: usize = 2;
    const QUANT_ROWS: usize = 4;
    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        _mm256_set1_ps(value)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        _mm256_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        _mm256_storeu_ps(to, value);
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())))
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }

    #[inline(always)]
    unsafe fn load_word(from: *const i8) -> __m256i {
        _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m256i, by: u32) -> __m256i {
        _mm256_sll_epi32(a, _mm_cvtsi32_si128(by as i32))
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m256i, b: __m256i) -> __m256i {
        _mm256_sub_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn to_float(a: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(a)
    }

    #[inline(always)]
    unsafe fn block_dots<F: Format, const ROWS: usize>(
        lines: *const u8,
        codes: *const i8,
        stride: usize,
    ) -> [[__m256i; ROWS]; 2] {
        quant::block_dots::<Self, F, ROWS>(lines, codes, stride)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn dense_tile<E: Element>(tile: &DenseTile<E>, rows: usize) {
        rows!(rows; 1 2 => |ROWS| dense::tile::<Self, E, ROWS, 4>(tile); 3 4 5 6 => |ROWS| dense::tile::<Self, E, ROWS, 2>(tile));
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn widen<E: Element>(from: &[E], to: &mut [f32]) {
        dense::widen::<Self, E>(from, to);
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
        dense::pack_rows(x, stride, rows, to);
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quant_tile<F: Format>(tile: &QuantTile, rows: usize) {
        rows!(rows; 2 4 => |ROWS| quant::tile::<Self, F, ROWS, 2>(tile));
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
        quantize_rows(x, codes, blocks);
    }
}

impl Bytes for Avx2 {
    #[inline(always)]
    unsafe fn load_int(from: *const u8) -> __m256i {
        _mm256_loadu_si256(from.cast())
    }
    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> __m256i {
        _mm256_set1_epi32(value)
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        _mm256_and_si256(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        _mm256_or_si256(a, b)
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m256i, by: u32) -> __m256i {
        _mm256_srl_epi16(a, _mm_cvtsi32_si128(by as i32))
    }
    #[inline(always)]
    unsafe fn dot_bytes(unsigned: __m256i, signed: __m256i) -> __m256i {
        _mm256_maddubs_epi16(unsigned, signed)
    }
    #[inline(always)]
    unsafe fn add_i16(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi16(a, b)
    }
    #[inline(always)]
    unsafe fn dot_words(a: __m256i, b: __m256i) -> __m256i {
        _mm256_madd_epi16(a, b)
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }
}

/// [`quant::quantize_rows`], the same bits for all numbers.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    // What packing across 128-bit halves does to groups of four codes, undone.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for ((x, codes), block) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).zip(blocks) {
        let x: [__m256; 4] = std::array::from_fn(|i| _mm256_loadu_ps(x.as_ptr().add(8 * i)));
        let bits = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), magnitude));
        let largest = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let largest = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
        let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
        let (scale, factor) = quant::scale_and_factor(f32::from_bits(_mm_cvtsi128_si32(largest) as u32));
        let code = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, _mm256_set1_ps(factor))));
        let halves = _mm256_hadd_epi32(_mm256_add_epi32(code[0], code[1]), _mm256_add_epi32(code[2], code[3]));
        let halves = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
        let halves = _mm_hadd_epi32(halves, halves);
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
        _mm256_storeu_si256(codes.as_mut_ptr().cast(), _mm256_permutevar8x32_epi32(bytes, order));
        *block = ActivationBlock::new(scale, [_mm_extract_epi32::<0>(halves), _mm_extract_epi32::<1>(halves)]);
    }
}
