//! Exponential, error function and the activations over vectors.

use super::{Lanes, by_level};
use crate::shapes::Activation;

/// Below this the result is 0; it would no longer be a normal number.
const EXP_LEAST: f32 = -87.336_54;
/// Above this the result stays where it is, 2.4e38.
const EXP_MOST: f32 = 88.376_26;

/// `e^x` with a relative error below 2e-7; exactly 1 at 0, 0 below -87.34, at most 2.4e38; NaN stays NaN.
/// Polynomial of Cephes `expf` (Moshier).
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: as promised by the caller.
    unsafe {
        let c = |x: f32| L::splat(x);
        // The limits come first: a NaN in the second place survives.
        let inside = c(EXP_MOST).min(c(EXP_LEAST).max(x));
        // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
        let magic = c(12_582_912.0);
        let biased = inside.mul_add(c(std::f32::consts::LOG2_E), magic);
        let n = biased.sub(magic);
        let r = n.mul_add(c(-0.693_359_4), inside);
        let r = n.mul_add(c(2.121_944_4e-4), r);
        let p = c(1.987_569_1e-4).mul_add(r, c(1.398_2e-3));
        let p = p.mul_add(r, c(8.333_452e-3));
        let p = p.mul_add(r, c(4.166_579_6e-2));
        let p = p.mul_add(r, c(1.666_666_5e-1));
        let p = p.mul_add(r, c(5.000_000_1e-1));
        let p = p.mul_add(r.mul(r), r).add(c(1.0));
        x.if_less(c(EXP_LEAST), c(0.0), p.mul(L::power_of_two(biased)))
    }
}

/// The error function, within 1e-7. Two minimax polynomials by N. Juffa: odd near zero, `1 - e^p(|x|)` beyond.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(crate) unsafe fn erf<L: Lanes>(x: L) -> L {
    // SAFETY: as promised by the caller.
    unsafe {
        let c = |x: f32| L::splat(x);
        let (t, s) = (x.abs(), x.mul(x));
        let near = c(-5.967_617e-4).mul_add(s, c(4.991_194_3e-3));
        let near = near.mul_add(s, c(-2.676_813_4e-2));
        let near = near.mul_add(s, c(1.128_199_2e-1));
        let near = near.mul_add(s, c(-3.761_253_3e-1));
        let near = near.mul_add(s, c(1.283_791_7e-1));
        let near = near.mul_add(x, x);
        // From 4 on the result is 1.
        let (t4, s4) = (c(4.0).min(t), c(16.0).min(s));
        let far = c(-1.728_534_7e-5).mul_add(t4, c(3.831_972e-4));
        let high = c(-3.883_963_8e-3).mul_add(t4, c(2.425_462_2e-2));
        let far = far.mul_add(s4, high);
        let far = far.mul_add(t4, c(-1.067_778_8e-1));
        let far = far.mul_add(t4, c(-6.348_466_9e-1));
        let far = far.mul_add(t4, c(-1.287_175_1e-1));
        let far = far.mul_add(t4, c(0.0).sub(t4));
        let far = c(1.0).sub(exp(far)).with_sign_of(x);
        // A NaN compares false and comes out of the far side.
        t.if_less(c(0.927_734_4), near, far)
    }
}

/// A pointwise function over a vector.
trait Pointwise {
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn apply<L: Lanes>(x: L) -> L;
}

struct Silu;
struct Gelu;
struct GeluTanh;
struct QuickGelu;
struct Relu;

/// `x / (1 + e^-z)`.
#[inline(always)]
unsafe fn gate<L: Lanes>(x: L, z: L) -> L {
    // SAFETY: as promised by the caller.
    unsafe { x.div(L::splat(1.0).add(exp(L::splat(0.0).sub(z)))) }
}

impl Pointwise for Silu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(x: L) -> L {
        // SAFETY: as promised by the caller.
        unsafe { gate(x, x) }
    }
}

impl Pointwise for Gelu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(x: L) -> L {
        // SAFETY: as promised by the caller.
        unsafe {
            let half = L::splat(0.5).mul(x);
            half.mul_add(erf(x.mul(L::splat(std::f32::consts::FRAC_1_SQRT_2))), half)
        }
    }
}

impl Pointwise for GeluTanh {
    /// `(1 + tanh(u)) / 2` is the sigmoid of `2 u`.
    #[inline(always)]
    unsafe fn apply<L: Lanes>(x: L) -> L {
        // SAFETY: as promised by the caller.
        unsafe {
            let cubic = x.mul(x).mul_add(L::splat(0.044_715), L::splat(1.0));
            gate(x, x.mul(L::splat(1.595_769_1)).mul(cubic))
        }
    }
}

impl Pointwise for QuickGelu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(x: L) -> L {
        // SAFETY: as promised by the caller.
        unsafe { gate(x, x.mul(L::splat(1.702))) }
    }
}

impl Pointwise for Relu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(x: L) -> L {
        // SAFETY: as promised by the caller. NaN in the second place survives.
        unsafe { L::splat(0.0).max(x) }
    }
}

/// `F(x)`, times `up` if there is one. The last elements go through the same instructions as the others, so that a
/// result does not depend on where in the slice its element stands.
#[inline(always)]
unsafe fn map<L: Lanes, F: Pointwise>(x: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    // SAFETY: as promised by the caller; offsets stay `WIDTH` below the equal lengths, the last part is padded.
    unsafe {
        let n = out.len();
        assert!(x.len() == n && up.is_none_or(|up| up.len() == n), "operands of one length");
        let whole = n - n % L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            let y = F::apply(L::load(x.as_ptr().add(at)));
            let y = match up {
                Some(up) => y.mul(L::load(up.as_ptr().add(at))),
                None => y,
            };
            y.store(out.as_mut_ptr().add(at));
        }
        if whole < n {
            let (mut padded, mut factors) = ([0.0; 16], [1.0; 16]);
            padded[..n - whole].copy_from_slice(&x[whole..]);
            let mut y = F::apply(L::load(padded.as_ptr()));
            if let Some(up) = up {
                factors[..n - whole].copy_from_slice(&up[whole..]);
                y = y.mul(L::load(factors.as_ptr()));
            }
            y.store(padded.as_mut_ptr());
            out[whole..].copy_from_slice(&padded[..n - whole]);
        }
    }
}

#[inline(always)]
unsafe fn pointwise_lanes<L: Lanes>(f: Activation, x: &[f32], up: Option<&[f32]>, out: &mut [f32]) {
    // SAFETY: as promised by the caller.
    unsafe {
        match f {
            Activation::Silu => map::<L, Silu>(x, up, out),
            Activation::Gelu => map::<L, Gelu>(x, up, out),
            Activation::GeluTanh => map::<L, GeluTanh>(x, up, out),
            Activation::QuickGelu => map::<L, QuickGelu>(x, up, out),
            Activation::Relu => map::<L, Relu>(x, up, out),
        }
    }
}

by_level! {
    /// `f(x)`, times `up` if there is one; all of one length.
    pub(crate) fn pointwise[pointwise_lanes](f: Activation, x: &[f32], up: Option<&[f32]>, out: &mut [f32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::product::Level;
    use crate::reference::functions;

    #[inline(always)]
    unsafe fn exp_lanes<L: Lanes>(x: &[f32], out: &mut [f32]) {
        // SAFETY: the test's slices are whole vectors.
        unsafe {
            for at in (0..x.len()).step_by(L::WIDTH) {
                exp(L::load(x.as_ptr().add(at))).store(out.as_mut_ptr().add(at));
            }
        }
    }

    #[inline(always)]
    unsafe fn erf_lanes<L: Lanes>(x: &[f32], out: &mut [f32]) {
        // SAFETY: the test's slices are whole vectors.
        unsafe {
            for at in (0..x.len()).step_by(L::WIDTH) {
                erf(L::load(x.as_ptr().add(at))).store(out.as_mut_ptr().add(at));
            }
        }
    }

    by_level! { fn exps[exp_lanes](x: &[f32], out: &mut [f32]) }
    by_level! { fn erfs[erf_lanes](x: &[f32], out: &mut [f32]) }

    #[test]
    fn exp_is_within_2e_7_and_keeps_its_corners() {
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            let x: Vec<f32> = (0..1 << 20).map(|i| -87.3 + 175.6 * i as f32 / (1 << 20) as f32).collect();
            let mut out = vec![f32::NAN; x.len()];
            exps(level, &x, &mut out);
            let error = |(x, y): (&f32, &f32)| (f64::from(*y) / f64::from(*x).exp() - 1.0).abs();
            let worst = x.iter().zip(&out).map(error).fold(0.0, f64::max);
            println!("exp, {}: {worst:.2e}", level);
            assert!(worst < 2e-7, "{worst} with {level:?}");
            let mut corners = [0.0, -0.0, -100.0, f32::NEG_INFINITY, f32::NAN, 1000.0, f32::INFINITY, -87.4];
            corners = {
                let mut x = [0.0; 16];
                let mut out = [0.0; 16];
                x[..8].copy_from_slice(&corners);
                exps(level, &x, &mut out);
                std::array::from_fn(|i| out[i])
            };
            assert_eq!(corners[..4], [1.0, 1.0, 0.0, 0.0]);
            assert!(corners[4].is_nan() && corners[5] > 2e38 && corners[6] > 2e38 && corners[7] == 0.0);
        }
    }

    #[test]
    fn erf_is_within_1e_7() {
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            let x: Vec<f32> = (0..1 << 18).map(|i| -6.0 + 12.0 * i as f32 / (1 << 18) as f32).collect();
            let mut out = vec![f32::NAN; x.len()];
            erfs(level, &x, &mut out);
            let error = |(x, y): (&f32, &f32)| (f64::from(*y) - functions::erf(f64::from(*x))).abs();
            let worst = x.iter().zip(&out).map(error).fold(0.0, f64::max);
            println!("erf, {}: {worst:.2e}", level);
            assert!(worst < 1e-7, "{worst} with {level:?}");
            let (x, mut out) = ([f32::NAN; 16], [0.0; 16]);
            erfs(level, &x, &mut out);
            assert!(out.iter().all(|y| y.is_nan()));
        }
    }
}
