//! Vectors of `f32` and the choice of instruction set at run time.
//!
//! A kernel is written once over [`Lanes`] and compiled for every [`Level`](super::product::Level) by [`by_level!`]. Everything between
//! the entry that the macro makes and the instructions is `#[inline(always)]`: only then does the compiler see the
//! instruction set around the kernel.

#![expect(unsafe_code, reason = "vector instructions and raw loads")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod math;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// A vector register of `f32`.
///
/// # Safety
/// Of every method: the processor has the instruction set, and pointers reach `WIDTH` elements.
pub(crate) trait Lanes: Copy {
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * a + b`, fused where the instruction set can.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// The smaller; `other` if one is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// The larger; `other` if one is NaN.
    unsafe fn max(self, other: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// `self` with the sign of `sign`.
    unsafe fn with_sign_of(self, sign: Self) -> Self;
    /// `yes` where `self < limit`, else `no` (also for NaN).
    unsafe fn if_less(self, limit: Self, yes: Self, no: Self) -> Self;
    /// `2^n` from the bits of `1.5 * 2^23 + n`, for `n` from -126 to 127.
    unsafe fn power_of_two(biased: Self) -> Self;
    /// Sum of the lanes, in a fixed tree.
    unsafe fn total(self) -> f32;
    /// Largest of the lanes.
    unsafe fn largest(self) -> f32;
    /// Lane `i` is `q . keys[offsets[i]..]` over `n` elements (a multiple of 16), summed lane by lane along the
    /// elements and then over the lanes in a fixed tree: the same bits whichever lane a key falls into.
    unsafe fn dots(q: *const f32, keys: *const f32, offsets: *const usize, n: usize) -> Self;
}

/// `fn name(level, arguments)` that runs the generic `unsafe fn kernel<L: Lanes>(arguments)` for a level that the
/// processor has (panics for another).
macro_rules! by_level {
    ($(#[$doc:meta])* $vis:vis fn $name:ident[$kernel:ident]($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(level: $crate::cpu::product::Level, $($arg: $type),*) {
            use $crate::cpu::{product::Level, simd};
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                // SAFETY: the instruction set is enabled here.
                unsafe { $kernel::<simd::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f")]
            fn avx512($($arg: $type),*) {
                // SAFETY: the instruction set is enabled here.
                unsafe { $kernel::<simd::Avx512>($($arg),*) }
            }
            assert!(level.available(), "kernels for {level} on a processor that has it");
            match level {
                // SAFETY: the assertion above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: the assertion above.
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: no instruction set beyond the target's is used.
                _ => unsafe { $kernel::<simd::Portable>($($arg),*) },
            }
        }
    };
}

pub(crate) use by_level;
