//! Scalar functions in `f64`.

use crate::shapes::Activation;

/// The error function: its Taylor series up to 3, the continued fraction of its complement beyond
/// (Abramowitz and Stegun 7.1.5 and 7.1.14). Error below 1e-13.
pub(crate) fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..80 {
            let n = f64::from(n);
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..=60).rev().fold(a, |f, n| a + f64::from(n) / 2.0 / f);
        1.0 - (-a * a).exp() / fraction / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The pointwise functions of [`Activation`].
pub(crate) fn activation(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    /// Values from Abramowitz and Stegun, table 7.1.
    #[test]
    fn erf_has_its_tabulated_values() {
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (1.5, 0.966_105_146_5),
            (2.0, 0.995_322_265_0),
            (-1.0, -0.842_700_792_9),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
        }
        assert!((erf(3.0 - 1e-12) - erf(3.0)).abs() < 1e-12, "the two formulas meet at 3");
    }
}
