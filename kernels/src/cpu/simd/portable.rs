//! Eight lanes in an array: what the target's own vector unit makes of it.

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 8]);

impl Portable {
    #[inline(always)]
    fn each(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

/// Fused where that is an instruction; elsewhere it would be a slow library call.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn tree(x: [f32; 8], f: impl Fn(f32, f32) -> f32) -> f32 {
    f(f(f(x[0], x[4]), f(x[2], x[6])), f(f(x[1], x[5]), f(x[3], x[7])))
}

impl Lanes for Portable {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's pointer reaches eight elements.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's pointer reaches eight elements.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.each(other, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| mul_add(self.0[i], a.0[i], b.0[i])))
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.each(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.each(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }

    #[inline(always)]
    unsafe fn with_sign_of(self, sign: Self) -> Self {
        self.each(sign, f32::copysign)
    }

    #[inline(always)]
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < limit.0[i] { yes.0[i] } else { no.0[i] }))
    }

    #[inline(always)]
    unsafe fn power_of_two(biased: Self) -> Self {
        Self(biased.0.map(|x| f32::from_bits(x.to_bits().wrapping_add(127) << 23)))
    }

    #[inline(always)]
    unsafe fn total(self) -> f32 {
        tree(self.0, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        tree(self.0, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn dots(q: *const f32, keys: *const f32, offsets: *const usize, n: usize) -> Self {
        Self(std::array::from_fn(|i| {
            let mut sum = [0.0; 8];
            for at in (0..n).step_by(8) {
                // SAFETY: queries and keys have `n` elements.
                let (q, k) = unsafe { (Self::load(q.add(at)), Self::load(keys.add(*offsets.add(i) + at))) };
                sum = std::array::from_fn(|i| mul_add(q.0[i], k.0[i], sum[i]));
            }
            tree(sum, |a, b| a + b)
        }))
    }
}
