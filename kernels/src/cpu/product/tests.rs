//! Every format and level against float64, and the bits of a row against the bits of the same row in any other call.

use std::borrow::Cow;

use super::simd::Portable;
use super::*;
use crate::cpu::pool::Pool;
use crate::quant::tests::noise;
use crate::quant::{dequantize, quantize};
use crate::weights::{WeightData, WeightFormat};

const FORMATS: [WeightFormat; 11] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::BF16,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q5_0,
    WeightFormat::Q5_1,
    WeightFormat::Q8_0,
    WeightFormat::Q4K,
    WeightFormat::Q5K,
    WeightFormat::Q6K,
];

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.available())
}

fn weight(rows: usize, cols: usize, format: WeightFormat) -> WeightData<'static> {
    // Values around an offset, so that minimums and zero codes matter.
    let values: Vec<f32> = noise(rows * cols, 11).iter().map(|v| 0.1 * v + 0.02).collect();
    WeightData { rows, cols, format, bytes: Cow::Owned(quantize(&values, rows, cols, format)) }
}

/// `x W^T + b` into a buffer that was poisoned before.
fn product(pool: &Pool, x: &[f32], rows: usize, weight: &PackedWeight, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * weight.rows()];
    products(pool, x, rows, &mut [ProductPart { weight, bias, out: &mut out }]);
    out
}

/// `x` as the quantised kernels see it: twice 8 bits in blocks of 32.
fn rounded(x: &[f32]) -> Vec<f64> {
    let mut codes = vec![0; 2 * x.len()];
    let mut blocks = vec![quant::ActivationBlock::default(); x.len() / 16];
    // SAFETY: every processor has the portable level.
    unsafe { quant::quantize_pairs::<Portable>(x, x.len(), &mut codes, &mut blocks) };
    let value = |i: usize| f64::from(codes[i]) * f64::from(blocks[i / 32].scale);
    (0..x.len()).map(|i| value(i) + value(x.len() + i)).collect()
}

/// The product in float64 and, for the tolerance, the same sum of magnitudes.
fn reference(x: &[f64], w: &[f32], cols: usize, bias: Option<&[f32]>) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for x in x.chunks_exact(cols) {
        for (n, w) in w.chunks_exact(cols).enumerate() {
            let bias = bias.map_or(0.0, |b| f64::from(b[n]));
            let terms = || x.iter().zip(w).map(|(x, w)| x * f64::from(*w));
            out.push((terms().sum::<f64>() + bias, terms().map(f64::abs).sum::<f64>() + bias.abs()));
        }
    }
    out
}

/// Shapes that leave rests in panels, blocks of rows, vectors and cuts.
fn shapes(format: WeightFormat) -> Vec<(usize, usize, usize)> {
    let mut shapes = vec![(1, 1, 256), (1, 70, 512), (5, 33, 256), (13, 16, 768), (30, 47, 512), (2, 200, 1280)];
    if format.block_elements() == 1 {
        shapes.extend([(1, 3, 1), (3, 31, 7), (7, 65, 33), (14, 100, 1031), (200, 36, 17)]);
    }
    if format.block_elements() == 32 {
        shapes.extend([(1, 17, 32), (6, 48, 96), (300, 20, 32)]);
    }
    shapes
}

#[test]
fn equals_the_reference() {
    let pool = Pool::new(2);
    for format in FORMATS {
        for (rows, outputs, cols) in shapes(format) {
            let data = weight(outputs, cols, format);
            let x: Vec<f32> = noise(rows * cols, 3).iter().map(|v| 2.0 * v + 0.3).collect();
            let bias = noise(outputs, 4);
            for bias in [None, Some(&bias[..])] {
                let seen =
                    if format.block_elements() == 1 { x.iter().map(|v| f64::from(*v)).collect() } else { rounded(&x) };
                let want = reference(&seen, &dequantize(&data), cols, bias);
                for level in levels() {
                    let packed = PackedWeight::with_level(&data, level).expect("packs");
                    let got = product(&pool, &x, rows, &packed, bias);
                    for (at, (got, (want, size))) in got.iter().zip(&want).enumerate() {
                        // Float32 sums in order: rounding grows like the root of their number. Observed: below 1.5e-6.
                        let error = (f64::from(*got) - want).abs() / size;
                        assert!(error <= 3e-6, "{format:?} {level} {rows}x{outputs}x{cols} at {at}: {got}, {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let pools = [Pool::new(1), Pool::new(2), Pool::new(3)];
    for format in FORMATS {
        let (outputs, cols) = (103, 1280);
        let data = weight(outputs, cols, format);
        let x = noise(65 * cols, 8);
        let bias = noise(outputs, 2);
        for level in levels() {
            let packed = PackedWeight::with_level(&data, level).expect("packs");
            let alone: Vec<Vec<f32>> =
                x.chunks_exact(cols).map(|x| product(&pools[0], x, 1, &packed, Some(&bias))).collect();
            for rows in [1, 2, 3, 5, 8, 17, 64, 65] {
                for pool in &pools {
                    let start = (65 - rows) / 2;
                    let x = &x[start * cols..][..rows * cols];
                    let together = product(pool, x, rows, &packed, Some(&bias));
                    for (row, got) in together.chunks_exact(outputs).enumerate() {
                        let same = got.iter().zip(&alone[start + row]).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{format:?} {level}: row {row} of {rows}, {} threads", pool.threads());
                    }
                }
            }
        }
    }
}

#[test]
fn a_group_equals_its_parts() {
    let pool = Pool::new(2);
    let cols = 512;
    let weights: Vec<PackedWeight> = [(40, WeightFormat::Q4K), (70, WeightFormat::F16), (16, WeightFormat::Q8_0)]
        .map(|(rows, format)| PackedWeight::new(&weight(rows, cols, format)).expect("packs"))
        .into();
    for rows in [1, 9] {
        let x = noise(rows * cols, 6);
        let bias = noise(70, 1);
        let biases = [None, Some(&bias[..]), None];
        let mut outs: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.rows()]).collect();
        let mut parts: Vec<ProductPart<'_>> = weights
            .iter()
            .zip(&mut outs)
            .zip(biases)
            .map(|((weight, out), bias)| ProductPart { weight, bias, out })
            .collect();
        products(&pool, &x, rows, &mut parts);
        for ((weight, out), bias) in weights.iter().zip(&outs).zip(biases) {
            assert_eq!(*out, product(&pool, &x, rows, weight, bias), "{weight:?}");
        }
    }
}

#[test]
fn rows_read_back_exactly() {
    for format in FORMATS {
        let data = weight(37, 512, format);
        let packed = PackedWeight::new(&data).expect("packs");
        let values = dequantize(&data);
        let mut row = vec![f32::NAN; 512];
        for (at, want) in values.chunks_exact(512).enumerate() {
            packed.row_into(at, &mut row);
            assert_eq!(row, want, "{format:?} row {at}");
        }
        let padded = format.bytes(64, 512) + 64;
        assert!(packed.bytes() * 100 <= padded * 103, "{format:?}: {} bytes, {padded} in GGUF", packed.bytes());
    }
}

#[test]
fn rounding_twice_stays_within_half_a_small_step() {
    let x = noise(32 * 50, 12);
    for (x, seen) in x.chunks_exact(32).zip(rounded(&x).chunks_exact(32)) {
        let step = x.iter().fold(0.0f32, |a, v| a.max(v.abs())) / 127.0 / 254.0;
        assert!(x.iter().zip(seen).all(|(x, y)| (f64::from(*x) - y).abs() <= 0.51 * f64::from(step)));
    }
    assert!(rounded(&[0.0; 32]).iter().all(|v| *v == 0.0));
}

#[test]
fn no_number_is_not_hidden() {
    let pool = Pool::new(1);
    for format in FORMATS {
        let packed = PackedWeight::new(&weight(20, 256, format)).expect("packs");
        let mut x = noise(2 * 256, 1);
        x[256 + 40] = f32::NAN;
        let out = product(&pool, &x, 2, &packed, None);
        assert!(out[..20].iter().all(|v| v.is_finite()), "{format:?}: the clean row");
        assert!(out[20..].iter().all(|v| v.is_nan()), "{format:?}: the row with a NaN");
    }
}

#[test]
fn extremes_do_not_overflow() {
    // The largest codes everywhere: what 16-bit sums must hold.
    let pool = Pool::new(1);
    for format in &FORMATS[3..] {
        let mut bytes = vec![0xff; format.bytes(16, 256)];
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            let halves: &[usize] = match format {
                WeightFormat::Q6K => &[208],
                WeightFormat::Q4_0 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => &[0],
                _ => &[0, 2],
            };
            halves.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes()));
        }
        let data = WeightData { rows: 16, cols: 256, format: *format, bytes: Cow::Owned(bytes) };
        for sign in [1.0, -1.0] {
            let x = [sign; 256];
            let want = reference(&rounded(&x), &dequantize(&data), 256, None);
            for level in levels() {
                let packed = PackedWeight::with_level(&data, level).expect("packs");
                for (got, (want, size)) in product(&pool, &x, 1, &packed, None).iter().zip(&want) {
                    assert!((f64::from(*got) - want).abs() <= 1e-6 * size, "{format:?} {level}: {got}, {want}");
                }
            }
        }
    }
}

#[test]
fn faulty_weights_are_refused() {
    let mut data = weight(4, 64, WeightFormat::Q4_0);
    data.rows = 5;
    assert!(PackedWeight::new(&data).is_err());
    let empty = WeightData { rows: 0, cols: 64, format: WeightFormat::F32, bytes: Cow::Borrowed(&[]) };
    assert!(PackedWeight::new(&empty).is_err());
}
