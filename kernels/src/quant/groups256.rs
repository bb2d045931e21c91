//! Formats with two levels of scales over 256 elements: Q4_K, Q5_K, Q6_K.
//!
//! ```text
//! Q4_K  [scale f16][minimum f16][12 bytes: 8 x (6-bit scale, 6-bit minimum)][128 bytes of nibbles]
//! Q5_K  [scale f16][minimum f16][12 bytes: as above][32 bytes of bit 4][128 bytes of nibbles]
//! Q6_K  [128 bytes of nibbles][64 bytes of bits 4, 5][16 signed scales][scale f16]
//! ```
//! Nibble bytes come in runs of 32: the low nibbles hold 32 elements, the high nibbles the next 32 (Q6_K: 64 apart).

use super::{Codes, half_at, inverse, put_half};

/// Elements `32 * sub ..` of a Q4_K block.
pub(super) fn read_q4k(block: &[u8], sub: usize) -> Codes {
    let mut codes = read_header(block, sub);
    let nibbles = &block[16 + 32 * (sub / 2)..];
    for (code, nibbles) in codes.code.iter_mut().zip(nibbles) {
        *code = nibbles >> (4 * (sub % 2)) & 15;
    }
    codes
}

/// Elements `32 * sub ..` of a Q5_K block.
pub(super) fn read_q5k(block: &[u8], sub: usize) -> Codes {
    let mut codes = read_header(block, sub);
    let high = &block[16..48];
    let nibbles = &block[48 + 32 * (sub / 2)..];
    for i in 0..32 {
        codes.code[i] = nibbles[i] >> (4 * (sub % 2)) & 15 | (high[i] >> sub & 1) << 4;
    }
    codes
}

/// Elements `32 * sub ..` of a Q6_K block.
pub(super) fn read_q6k(block: &[u8], sub: usize) -> Codes {
    let (half, quarter) = (sub / 4, sub % 4);
    let nibbles = &block[64 * half + 32 * (quarter % 2)..];
    let high = &block[128 + 32 * half..];
    let scale = half_at(block, 208);
    let group = |g: usize| scale * f32::from(block[192 + 2 * sub + g] as i8);
    let mut codes = Codes { code: [0; 32], zero: 32, scale: [group(0), group(1)], min: 0.0 };
    for i in 0..32 {
        codes.code[i] = nibbles[i] >> (4 * (quarter / 2)) & 15 | (high[i] >> (2 * quarter) & 3) << 4;
    }
    codes
}

/// The 6-bit scale and minimum of group `sub`, from the 12 packed bytes.
pub(crate) fn scale_and_minimum(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let scale = packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4;
        let minimum = packed[sub + 4] >> 4 | packed[sub] >> 6 << 4;
        (scale, minimum)
    }
}

fn read_header(block: &[u8], sub: usize) -> Codes {
    let (scale, minimum) = scale_and_minimum(&block[4..16], sub);
    let scale = half_at(block, 0) * f32::from(scale);
    let min = -(half_at(block, 2) * f32::from(minimum));
    Codes { code: [0; 32], zero: 0, scale: [scale; 2], min }
}

/// Q4_K (4 bits) and Q5_K (5 bits).
pub(super) fn write_minimum(values: &[f32], bits: u32, out: &mut Vec<u8>) {
    let largest = ((1u32 << bits) - 1) as f32;
    let mut spans = [0.0f32; 8];
    let mut depths = [0.0f32; 8];
    for (sub, group) in values.chunks_exact(32).enumerate() {
        // The format subtracts a minimum that cannot be negative, so zero is always in range.
        let low = group.iter().copied().fold(0.0f32, f32::min);
        let high = group.iter().copied().fold(low, f32::max);
        spans[sub] = (high - low) / largest;
        depths[sub] = -low;
    }
    let most = |of: &[f32; 8]| of.iter().copied().fold(0.0f32, f32::max) / 63.0;
    let scale = put_half(most(&spans), out);
    let minimum = put_half(most(&depths), out);
    let six = |of: &[f32; 8], unit: f32| of.map(|v| (v * inverse(unit)).round().clamp(0.0, 63.0) as u8);
    let (scales, minimums) = (six(&spans, scale), six(&depths, minimum));
    let mut packed = [0u8; 12];
    for sub in 0..4 {
        packed[sub] = scales[sub] | scales[sub + 4] >> 4 << 6;
        packed[sub + 4] = minimums[sub] | minimums[sub + 4] >> 4 << 6;
        packed[sub + 8] = scales[sub + 4] & 15 | (minimums[sub + 4] & 15) << 4;
    }
    out.extend(packed);
    let code = |i: usize| {
        let sub = i / 32;
        let factor = inverse(scale * f32::from(scales[sub]));
        let low = minimum * f32::from(minimums[sub]);
        ((values[i] + low) * factor).round().clamp(0.0, largest) as u8
    };
    if bits == 5 {
        out.extend((0..32).map(|i| (0..8).fold(0, |high, sub| high | code(32 * sub + i) >> 4 << sub)));
    }
    for pair in 0..4 {
        out.extend((0..32).map(|i| code(64 * pair + i) & 15 | (code(64 * pair + 32 + i) & 15) << 4));
    }
}

/// Q6_K.
pub(super) fn write_q6k(values: &[f32], out: &mut Vec<u8>) {
    // As in Q4_0: the value of largest magnitude becomes the most negative code, so scales have a sign.
    let mut wanted = [0.0f32; 16];
    for (group, scale) in values.chunks_exact(16).zip(&mut wanted) {
        let extreme = group.iter().copied().fold(0.0f32, |a, v| if v.abs() > a.abs() { v } else { a });
        *scale = extreme / -32.0;
    }
    let most = wanted.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let mut tail = Vec::with_capacity(2);
    let unit = put_half(most / 127.0, &mut tail);
    let scales = wanted.map(|v| (v * inverse(unit)).round().clamp(-127.0, 127.0) as i8);
    let code = |i: usize| {
        let factor = inverse(unit * f32::from(scales[i / 16]));
        ((values[i] * factor).round().clamp(-32.0, 31.0) + 32.0) as u8
    };
    for half in 0..2 {
        out.extend((0..64).map(|i| code(128 * half + i) & 15 | (code(128 * half + 64 + i) & 15) << 4));
    }
    for half in 0..2 {
        let at = |i: usize, quarter: usize| code(128 * half + 32 * quarter + i) >> 4 << (2 * quarter);
        out.extend((0..32).map(|i| at(i, 0) | at(i, 1) | at(i, 2) | at(i, 3)));
    }
    out.extend(scales.map(|s| s as u8));
    out.extend(tail);
}
