//! Formats with one scale for 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! ```text
//! [scale f16][minimum f16, only _1][bit 4 of each code u32, only Q5][16 bytes: code i | code i + 16 << 4]
//! ```

use super::{Codes, half_at, inverse, put_half};

/// Q4_0 and, with a minimum, Q4_1.
pub(super) fn read_q4(block: &[u8], minimum: bool) -> Codes {
    let nibbles = &block[if minimum { 4 } else { 2 }..];
    let mut codes = header(block, minimum, 8);
    for (i, nibbles) in nibbles[..16].iter().enumerate() {
        codes.code[i] = nibbles & 15;
        codes.code[i + 16] = nibbles >> 4;
    }
    codes
}

/// Q5_0 and, with a minimum, Q5_1.
pub(super) fn read_q5(block: &[u8], minimum: bool) -> Codes {
    let at = if minimum { 4 } else { 2 };
    let high = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let nibbles = &block[at + 4..];
    let mut codes = header(block, minimum, 16);
    for (i, nibbles) in nibbles[..16].iter().enumerate() {
        codes.code[i] = nibbles & 15 | ((high >> i & 1) as u8) << 4;
        codes.code[i + 16] = nibbles >> 4 | ((high >> (i + 16) & 1) as u8) << 4;
    }
    codes
}

/// Q8_0: signed bytes, given as codes around 128.
pub(super) fn read_q8(block: &[u8]) -> Codes {
    let mut codes = header(block, false, 128);
    for i in 0..32 {
        codes.code[i] = block[2 + i] ^ 0x80;
    }
    codes
}

fn header(block: &[u8], minimum: bool, zero: u8) -> Codes {
    let scale = half_at(block, 0);
    let (zero, min) = if minimum { (0, half_at(block, 2)) } else { (zero, 0.0) };
    Codes { code: [0; 32], zero, scale: [scale; 2], min }
}

/// Q4_0 (4 bits) and Q5_0 (5 bits): the value of largest magnitude becomes the most negative code.
pub(super) fn write_signed(values: &[f32], bits: u32, out: &mut Vec<u8>) {
    let half = 1 << (bits - 1);
    let extreme = values.iter().copied().fold(0.0f32, |a, v| if v.abs() > a.abs() { v } else { a });
    let factor = inverse(put_half(extreme / -(half as f32), out));
    put_codes(values, bits, |v| v * factor + half as f32, out);
}

/// Q4_1 (4 bits) and Q5_1 (5 bits): codes run from the smallest value to the largest.
pub(super) fn write_minimum(values: &[f32], bits: u32, out: &mut Vec<u8>) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let factor = inverse(put_half((high - low) / ((1 << bits) - 1) as f32, out));
    let low = put_half(low, out);
    put_codes(values, bits, |v| (v - low) * factor, out);
}

fn put_codes(values: &[f32], bits: u32, code: impl Fn(f32) -> f32, out: &mut Vec<u8>) {
    let largest = ((1u32 << bits) - 1) as f32;
    let code = |i: usize| code(values[i]).round().clamp(0.0, largest) as u32;
    if bits == 5 {
        let high = (0..32).fold(0u32, |bits, i| bits | (code(i) >> 4) << i);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|i| (code(i) & 15 | (code(i + 16) & 15) << 4) as u8));
}

/// Q8_0.
pub(super) fn write_q8(values: &[f32], out: &mut Vec<u8>) {
    let largest = values.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let factor = inverse(put_half(largest / 127.0, out));
    out.extend(values.iter().map(|v| (v * factor).round().clamp(-127.0, 127.0) as i8 as u8));
}
