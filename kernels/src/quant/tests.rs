//! Against candle's reader of the same formats, and against the error that a format's step allows.

use std::borrow::Cow;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};

use super::*;

/// Formats, candle's name for each, and the largest error as a fraction of the range of 32 elements.
const FORMATS: [(WeightFormat, GgmlDType, f32); 8] = [
    (WeightFormat::Q4_0, GgmlDType::Q4_0, 0.07),
    (WeightFormat::Q4_1, GgmlDType::Q4_1, 0.035),
    (WeightFormat::Q5_0, GgmlDType::Q5_0, 0.035),
    (WeightFormat::Q5_1, GgmlDType::Q5_1, 0.018),
    (WeightFormat::Q8_0, GgmlDType::Q8_0, 0.005),
    (WeightFormat::Q4K, GgmlDType::Q4K, 0.06),
    (WeightFormat::Q5K, GgmlDType::Q5K, 0.04),
    (WeightFormat::Q6K, GgmlDType::Q6K, 0.02),
];

/// Reproducible values in `-1..1`.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn data(bytes: Vec<u8>, rows: usize, cols: usize, format: WeightFormat) -> WeightData<'static> {
    WeightData { rows, cols, format, bytes: Cow::Owned(bytes) }
}

/// What candle reads from the same bytes.
fn candle(bytes: &[u8], rows: usize, cols: usize, dtype: GgmlDType) -> Vec<f32> {
    let storage = QStorage::from_data(Cow::Owned(bytes.to_vec()), &Device::Cpu, dtype).expect("storage");
    let tensor = QTensor::new(storage, (rows, cols)).expect("tensor");
    tensor.dequantize(&Device::Cpu).and_then(|t| t.flatten_all()?.to_vec1()).expect("values")
}

#[test]
fn reads_what_candle_writes_and_any_bits() {
    let (rows, cols) = (3, 512);
    for (format, dtype, _) in FORMATS {
        let source = Tensor::from_vec(noise(rows * cols, 5), (rows, cols), &Device::Cpu).expect("tensor");
        let written = QTensor::quantize(&source, dtype).expect("quantize");
        let bytes = written.data().expect("data").into_owned();
        let ours = dequantize(&data(bytes.clone(), rows, cols, format));
        assert_eq!(ours, candle(&bytes, rows, cols, dtype), "{format:?}");

        // Random codes and scales of every sign; halves are kept finite by clearing their top exponent bit.
        let mut bytes: Vec<u8> = noise(bytes.len(), 7).iter().map(|v| (v * 1e6) as i32 as u8).collect();
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            let halves: &[usize] = match format {
                WeightFormat::Q6K => &[209],
                WeightFormat::Q4_0 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => &[1],
                _ => &[1, 3],
            };
            halves.iter().for_each(|at| block[*at] &= 0xbf);
        }
        let ours = dequantize(&data(bytes.clone(), rows, cols, format));
        assert_eq!(ours, candle(&bytes, rows, cols, dtype), "{format:?}, random bits");
    }
}

#[test]
fn a_round_trip_stays_within_the_step() {
    let (rows, cols) = (4, 768);
    for (shift, seed) in [(0.0, 1), (0.5, 2), (-0.3, 3)] {
        let values: Vec<f32> = noise(rows * cols, seed).iter().map(|v| v + shift).collect();
        for (format, dtype, bound) in FORMATS {
            let bytes = quantize(&values, rows, cols, format);
            assert_eq!(bytes.len(), format.bytes(rows, cols), "{format:?}");
            // Signed formats and those that subtract a non-negative minimum spend codes on the way to zero.
            let range = 2.0 + shift.abs();
            for (at, (got, want)) in candle(&bytes, rows, cols, dtype).iter().zip(&values).enumerate() {
                assert!((got - want).abs() <= bound * range, "{format:?} {at}: {got} for {want}");
            }
        }
    }
}

#[test]
fn zeros_and_constants_survive() {
    for (format, _, _) in FORMATS {
        let back = dequantize(&data(quantize(&[0.0; 256], 1, 256, format), 1, 256, format));
        assert!(back.iter().all(|v| *v == 0.0), "{format:?}: {back:?}");
        for constant in [0.25f32, -0.25] {
            let back = dequantize(&data(quantize(&[constant; 256], 1, 256, format), 1, 256, format));
            assert!(back.iter().all(|v| (v - constant).abs() < 0.02), "{format:?}: {back:?}");
        }
    }
}

#[test]
fn dense_formats_are_plain() {
    let values = noise(64, 9);
    assert_eq!(dequantize(&data(quantize(&values, 2, 32, WeightFormat::F32), 2, 32, WeightFormat::F32)), values);
    for (format, error) in [(WeightFormat::F16, 5e-4), (WeightFormat::BF16, 4e-3)] {
        let back = dequantize(&data(quantize(&values, 2, 32, format), 2, 32, format));
        assert!(back.iter().zip(&values).all(|(a, b)| (a - b).abs() <= error * b.abs()), "{format:?}");
    }
}

#[test]
fn wrong_sizes_are_refused() {
    assert!(check(&data(vec![0; 17], 1, 32, WeightFormat::Q4_0)).is_err());
    assert!(check(&data(vec![0; 20], 1, 33, WeightFormat::Q4_1)).is_err());
    assert!(check(&data(vec![0; 144], 1, 128, WeightFormat::Q4K)).is_err());
    assert!(check(&data(vec![0; 18], 1, 32, WeightFormat::Q4_0)).is_ok());
}
