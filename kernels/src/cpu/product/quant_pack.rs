//! Repacks GGUF blocks into the panels of [`super::quant`] and reads rows back. Exact both ways.

use half::f16;

use super::quant::{Format, PANEL, Scales, step_code};
use crate::quant::{self, Codes};
use crate::weights::WeightFormat;

/// A row-major quantised weight in the format that `F` packs.
pub(super) struct Source<'a> {
    pub(super) format: WeightFormat,
    pub(super) cols: usize,
    pub(super) bytes: &'a [u8],
}

/// Packs a weight; `to` is zero before and holds whole panels.
pub(super) fn pack<F: Format>(source: &Source<'_>, to: &mut [u8]) {
    let row_bytes = source.format.bytes(1, source.cols);
    let subs = source.format.block_elements() / 32;
    let panel_bytes = F::panel_bytes(source.cols / 32);
    for (row, line) in source.bytes.chunks_exact(row_bytes).enumerate() {
        let panel = &mut to[row / PANEL * panel_bytes..][..panel_bytes];
        let lane = row % PANEL;
        let mut at = 0;
        for block in line.chunks_exact(source.format.block_bytes()) {
            if F::HEAD > 0 {
                put_head::<F>(block, lane, &mut panel[at..]);
                at += F::HEAD;
            }
            for sub in 0..subs {
                let place = &mut panel[at..at + F::BLOCK];
                put_codes::<F>(&quant::read(source.format, block, sub).code, lane, place);
                put_scales::<F>(block, sub, lane, &mut place[F::CODES..]);
                at += F::BLOCK;
            }
        }
    }
}

fn put(place: &mut [u8], at: usize, bytes: &[u8]) {
    place[at..at + bytes.len()].copy_from_slice(bytes);
}

fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// Adds the bits of one step to a line.
fn merge(place: &mut [u8], line: usize, lane: usize, word: u32) {
    let bytes = &mut place[64 * line + 4 * lane..][..4];
    let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.copy_from_slice(&(old | word).to_le_bytes());
}

fn put_codes<F: Format>(codes: &[u8; 32], lane: usize, place: &mut [u8]) {
    for (step, code) in codes.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes([code[0], code[1], code[2], code[3]]);
        if F::BITS == 8 {
            merge(place, step, lane, word);
            continue;
        }
        merge(place, step % 4, lane, (word & 0x0f0f_0f0f) << (4 * (step / 4)));
        let high = word >> 4;
        match F::BITS {
            5 => merge(place, 4, lane, (high & 0x0101_0101) << step),
            6 => merge(place, 4 + step / 4, lane, (high & 0x0303_0303) << (2 * (step % 4))),
            _ => {}
        }
    }
}

fn put_head<F: Format>(block: &[u8], lane: usize, place: &mut [u8]) {
    match F::SCALES {
        Scales::Half => {}
        Scales::Six => {
            put(place, 2 * lane, &block[0..2]);
            // The format subtracts its minimum, the kernel adds it.
            put(place, 2 * (PANEL + lane), &(-half(&block[2..4])).to_le_bytes());
        }
        Scales::Groups16 => put(place, 2 * lane, &block[208..210]),
    }
}

fn put_scales<F: Format>(block: &[u8], sub: usize, lane: usize, place: &mut [u8]) {
    match F::SCALES {
        Scales::Half => {
            put(place, 2 * lane, &block[0..2]);
            if F::ZERO.is_none() {
                put(place, 2 * (PANEL + lane), &block[2..4]);
            }
        }
        Scales::Six => {
            let (scale, minimum) = quant::scale_and_minimum(&block[4..16], sub);
            place[lane] = scale;
            place[PANEL + lane] = minimum;
        }
        Scales::Groups16 => {
            place[lane] = block[192 + 2 * sub];
            place[PANEL + lane] = block[193 + 2 * sub];
        }
    }
}

/// Dequantises row `row` of a packed weight.
pub(super) fn row_into<F: Format>(packed: &[u8], row: usize, out: &mut [f32]) {
    let blocks = out.len() / 32;
    let (lane, mut at) = (row % PANEL, row / PANEL * F::panel_bytes(blocks));
    let mut head = at;
    for (block, out) in out.chunks_exact_mut(32).enumerate() {
        if F::HEAD > 0 && block.is_multiple_of(8) {
            head = at;
            at += F::HEAD;
        }
        let codes = read::<F>(&packed[head..], &packed[at..at + F::BLOCK], lane);
        for (i, value) in out.iter_mut().enumerate() {
            *value = codes.value(i);
        }
        at += F::BLOCK;
    }
}

fn read<F: Format>(head: &[u8], place: &[u8], lane: usize) -> Codes {
    let mut code = [0; 32];
    for (i, code) in code.iter_mut().enumerate() {
        *code = step_code::<F>(&place[..F::CODES], i / 4, 4 * lane + i % 4);
    }
    let scales = &place[F::CODES..];
    let at = |bytes: &[u8], index: usize| half(&bytes[2 * index..]).to_f32();
    let (scale, min) = match F::SCALES {
        Scales::Half => ([at(scales, lane); 2], if F::ZERO.is_none() { at(scales, PANEL + lane) } else { 0.0 }),
        Scales::Six => {
            let scale = at(head, lane) * f32::from(scales[lane]);
            ([scale; 2], at(head, PANEL + lane) * f32::from(scales[PANEL + lane]))
        }
        Scales::Groups16 => {
            let group = |g: usize| at(head, lane) * f32::from(scales[g * PANEL + lane] as i8);
            ([group(0), group(1)], 0.0)
        }
    };
    Codes { code, zero: F::ZERO.map_or(0, |bits| 1 << bits), scale, min }
}
