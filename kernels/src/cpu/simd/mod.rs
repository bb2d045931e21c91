//! Vectors of `f32` and the choice of instruction set at run time.
//!
//! A kernel is written once over [`Lanes`] and compiled for every instruction set by [`by_isa!`]. Everything between
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

/// Instruction sets that kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Whatever the target has.
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Those that this processor has, best first. A value other than `Portable` exists only if it is among them.
    pub(crate) fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            if is_x86_feature_detected!("avx512f") {
                found.push(Self::Avx512);
            }
            found.push(Self::Avx2);
        }
        found.push(Self::Portable);
        found
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512f",
        }
    }
}

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

/// `fn name(isa, arguments)` that runs the generic `unsafe fn kernel<L: Lanes>(arguments)` for an instruction set.
macro_rules! by_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident[$kernel:ident]($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::cpu::simd::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                // SAFETY: the instruction set is enabled here.
                unsafe { $kernel::<$crate::cpu::simd::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f")]
            fn avx512($($arg: $type),*) {
                // SAFETY: the instruction set is enabled here.
                unsafe { $kernel::<$crate::cpu::simd::Avx512>($($arg),*) }
            }
            match isa {
                // SAFETY: no instruction set beyond the target's is used.
                $crate::cpu::simd::Isa::Portable => unsafe { $kernel::<$crate::cpu::simd::Portable>($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` exists only if the processor has it.
                $crate::cpu::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` exists only if the processor has it.
                $crate::cpu::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}

pub(crate) use by_isa;
