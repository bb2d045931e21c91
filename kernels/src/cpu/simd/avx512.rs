//! Sixteen lanes: AVX-512F.

#![expect(clippy::undocumented_unsafe_blocks, reason = "all alike: callers promise the instruction set and pointers")]

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Lanes for Avx512 {
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm512_min_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { Self(_mm512_abs_ps(self.0)) }
    }

    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        unsafe {
            let bit = _mm512_set1_epi32(i32::MIN);
            let magnitude = _mm512_andnot_si512(bit, _mm512_castps_si512(self.0));
            let sign = _mm512_and_si512(bit, _mm512_castps_si512(sign.0));
            Self(_mm512_castsi512_ps(_mm512_or_si512(magnitude, sign)))
        }
    }

    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        unsafe { Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0), no.0, yes.0)) }
    }

    #[inline(always)]
    unsafe fn power_of_two(biased: Self) -> Self {
        unsafe {
            let n = _mm512_add_epi32(_mm512_castps_si512(biased.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn dots(q: *const f32, keys: *const f32, offsets: *const usize, n: usize) -> Self {
        unsafe {
            let mut sums = [_mm512_setzero_ps(); 16];
            let keys: [*const f32; 16] = std::array::from_fn(|i| keys.add(*offsets.add(i)));
            let mut at = 0;
            while at < n {
                let q = _mm512_loadu_ps(q.add(at));
                for i in 0..16 {
                    sums[i] = _mm512_fmadd_ps(q, _mm512_loadu_ps(keys[i].add(at)), sums[i]);
                }
                at += 16;
            }
            // Sums over each quarter of the lanes for four keys side by side, then over the quarters.
            let [a, b, c, d] =
                std::array::from_fn(|i| quarters(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
            let (ab, cd) = (halves(a, b), halves(c, d));
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
            Self(_mm512_add_ps(even, odd))
        }
    }
}

/// In each quarter of the lanes: the sums of that quarter of `a`, `b`, `c` and `d`.
#[inline(always)]
unsafe fn quarters(a: __m512, b: __m512, c: __m512, d: __m512) -> __m512 {
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        let even = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        let odd = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        _mm512_add_ps(even, odd)
    }
}

/// Quarters 0+1 and 2+3 of `a`, then of `b`.
#[inline(always)]
unsafe fn halves(a: __m512, b: __m512) -> __m512 {
    unsafe {
        let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
        _mm512_add_ps(even, odd)
    }
}
