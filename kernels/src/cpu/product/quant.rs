//! Products with quantised weights.
//!
//! Each row of `x` is rounded to 8-bit codes in blocks of 32 with one scale each, and what the rounding left over is
//! rounded the same way into a second row of codes: eight bits alone cost 1.4% of perplexity on a 135M model, the pair
//! costs nothing that can be seen. Products of codes are summed exactly in integers within a block and the blocks are
//! added in order as floats, in the same order for any number of rows.
//!
//! A weight lies in panels of [`PANEL`] outputs, block by block, so that one load brings the same four inputs of many
//! outputs and no sum runs across a vector (`pack` in [`super::quant_pack`] writes it):
//!
//! ```text
//! panel: [head, every 8 blocks of a K format][block: code lines, 64 bytes each][scales][minimums] [block] ..
//! line:  4 bytes of output 0, 4 of output 1, .. 4 of output 15
//! ```
//! A block is eight *steps* of four inputs. Line `j < 4` holds step `j` in its low nibbles and step `j + 4` in its high
//! nibbles; 5-bit formats add one line whose bit `j` is bit 4 of step `j`; 6-bit formats add one line for each half of
//! the steps with two bits a step; 8-bit formats have one line for each step.

#![expect(unsafe_code, reason = "vector kernels over raw tiles; bounds are set where a tile is made")]

use super::simd::{Bytes, Simd};

/// Outputs in a panel.
pub(super) const PANEL: usize = 16;

/// How scales are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// A half for each output and block, another for the minimum.
    Half,
    /// Bytes for scale and minimum; they multiply two halves in the head.
    Six,
    /// Two signed bytes, for 16 inputs each; they multiply one half in the head.
    Groups16,
}

/// A packed quantised format.
pub(super) trait Format: 'static {
    /// Bits of a code.
    const BITS: usize;
    /// The code of zero is `1 << ZERO` in formats without minimum.
    const ZERO: Option<u32>;
    /// How scales are stored.
    const SCALES: Scales;

    /// Bytes of codes in a block.
    const CODES: usize = 2 * PANEL * Self::BITS * 2;
    /// Bytes of a block.
    const BLOCK: usize = Self::CODES
        + match (Self::SCALES, Self::ZERO) {
            (Scales::Half, Some(_)) => 2 * PANEL,
            (Scales::Half, None) => 4 * PANEL,
            (Scales::Six | Scales::Groups16, _) => 2 * PANEL,
        };
    /// Bytes before every eighth block.
    const HEAD: usize = match Self::SCALES {
        Scales::Half => 0,
        Scales::Six => 4 * PANEL,
        Scales::Groups16 => 2 * PANEL,
    };
    /// Bytes of a panel.
    fn panel_bytes(blocks: usize) -> usize {
        blocks * Self::BLOCK + blocks / 8 * Self::HEAD
    }
}

macro_rules! formats {
    ($($name:ident: $bits:literal, $zero:expr, $scales:ident;)*) => {
        $(
            /// See the format of this name in [`crate::weights::WeightFormat`].
            pub(super) struct $name;
            impl Format for $name {
                const BITS: usize = $bits;
                const ZERO: Option<u32> = $zero;
                const SCALES: Scales = Scales::$scales;
            }
        )*
    };
}

formats! {
    Q4_0: 4, Some(3), Half;
    Q4_1: 4, None, Half;
    Q5_0: 5, Some(4), Half;
    Q5_1: 5, None, Half;
    Q8_0: 8, Some(7), Half;
    Q4K: 4, None, Six;
    Q5K: 5, None, Six;
    Q6K: 6, Some(5), Groups16;
}

/// Scale and sums of 32 activation codes.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
#[repr(C)]
pub(super) struct ActivationBlock {
    /// Value of one code step.
    pub(super) scale: f32,
    /// `scale` times the sum of all codes.
    pub(super) scaled_sum: f32,
    /// Sums of the codes of each half, and of all.
    pub(super) sums: [i32; 3],
}

impl ActivationBlock {
    /// From the sums of the codes of each half.
    #[inline(always)]
    pub(super) fn new(scale: f32, [low, high]: [i32; 2]) -> Self {
        // Wraps only beside a scale that is not a number.
        let total = low.wrapping_add(high);
        Self { scale, scaled_sum: scale * total as f32, sums: [low, high, total] }
    }
}

/// The value of a code step for the largest magnitude of a block, and what turns values into steps.
#[inline(always)]
pub(super) fn scale_and_factor(largest: f32) -> (f32, f32) {
    // Below this, the factor could overflow.
    if largest < 1e-30 { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) }
}

/// Rounds whole blocks of 32 values. A block that holds a NaN gets a NaN scale; infinities give infinities or NaN.
#[inline(always)]
pub(super) fn quantize_rows(x: &[f32], codes: &mut [i8], blocks: &mut [ActivationBlock]) {
    /// Adding this to a small float leaves its nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    for ((x, codes), block) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).zip(blocks) {
        // As integers, magnitudes order like the floats they are, with NaN above all.
        let largest = x.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32));
        let (scale, factor) = scale_and_factor(f32::from_bits(largest as u32));
        let mut sums = [0i32; 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            for i in 16 * half..16 * half + 16 {
                let code = (x[i] * factor + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32;
                codes[i] = code as i8;
                *sum += i32::from(code as i8);
            }
        }
        *block = ActivationBlock::new(scale, sums);
    }
}

/// Rounds rows of `cols` values to pairs of code rows: the values, then what rounding them left over.
///
/// # Safety
/// The processor has the level of `S`.
pub(super) unsafe fn quantize_pairs<S: Simd>(x: &[f32], cols: usize, codes: &mut [i8], blocks: &mut [ActivationBlock]) {
    let mut rest = vec![0.0; cols];
    let rows = x.chunks_exact(cols).zip(codes.chunks_exact_mut(2 * cols)).zip(blocks.chunks_exact_mut(cols / 16));
    for ((x, codes), blocks) in rows {
        let (codes, rest_codes) = codes.split_at_mut(cols);
        let (blocks, rest_blocks) = blocks.split_at_mut(cols / 32);
        // SAFETY: passed on.
        unsafe { S::quantize_rows(x, codes, blocks) };
        for (((rest, x), codes), block) in
            rest.chunks_exact_mut(32).zip(x.chunks_exact(32)).zip(codes.chunks_exact(32)).zip(&*blocks)
        {
            for ((rest, x), code) in rest.iter_mut().zip(x).zip(codes) {
                *rest = *x - block.scale * f32::from(*code);
            }
        }
        // SAFETY: passed on.
        unsafe { S::quantize_rows(&rest, rest_codes, rest_blocks) };
    }
}

/// `ROWS` rows of codes, two for each row of activations, times one panel.
pub(super) struct QuantTile {
    /// `Format::panel_bytes(blocks)` bytes.
    pub(super) panel: *const u8,
    /// `32 * blocks` codes a row, rows one after another.
    pub(super) codes: *const i8,
    /// `blocks` a row.
    pub(super) activations: *const ActivationBlock,
    pub(super) blocks: usize,
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    /// Results to write in each row, `PANEL` at most.
    pub(super) columns: usize,
    /// `columns` values to add at the end, unless null.
    pub(super) bias: *const f32,
}

/// Runs a block with a constant for each of the steps.
macro_rules! steps {
    ($step:ident => $body:block) => {
        steps!(@ $step $body 0 1 2 3 4 5 6 7)
    };
    (@ $step:ident $body:block $($n:literal)*) => {
        $({ const $step: usize = $n; $body })*
    };
}

/// The register tile; `PARTS * LANES = PANEL`, and `ROWS` is even.
///
/// # Safety
/// The pointers of the tile cover what its fields say, and the processor has the level of `S`.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, F: Format, const ROWS: usize, const PARTS: usize>(t: &QuantTile) {
    /// How far ahead of the products weights are fetched, in bytes.
    const AHEAD: usize = 2048;
    const { assert!(PARTS * S::LANES == PANEL && ROWS.is_multiple_of(2)) };
    // SAFETY: all addresses are inside the tile as stated above; prefetches may be anywhere.
    unsafe {
        let zero = S::splat(0.0);
        let mut sums = [[zero; PARTS]; ROWS];
        let mut heads = [[zero; 2]; PARTS];
        let mut panel = t.panel;
        for block in 0..t.blocks {
            if F::HEAD > 0 && block.is_multiple_of(8) {
                for (part, head) in heads.iter_mut().enumerate() {
                    let halves = panel.cast::<u16>().add(part * S::LANES);
                    head[0] = S::load_half(halves);
                    if matches!(F::SCALES, Scales::Six) {
                        head[1] = S::load_half(halves.add(PANEL));
                    }
                }
                panel = panel.add(F::HEAD);
            }
            if ROWS <= 2 {
                for line in 0..F::BLOCK.div_ceil(64) {
                    S::prefetch(panel.wrapping_add(AHEAD + 64 * line));
                }
            }
            let codes = t.codes.add(32 * block);
            for part in 0..PARTS {
                let dots = S::block_dots::<F, ROWS>(panel.add(4 * S::LANES * part), codes, 32 * t.blocks);
                let (scales, min) = block_scales::<S, F>(panel.add(F::CODES), part, heads[part]);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let activation = t.activations.add(row * t.blocks + block);
                    let scale = S::splat((*activation).scale);
                    let mut sum = sums[part];
                    if matches!(F::SCALES, Scales::Groups16) {
                        for group in 0..2 {
                            let dot = centered::<S, F>(dots[group][row], &raw const (*activation).sums[group]);
                            sum = S::mul_add(S::mul(dot, scales[group]), scale, sum);
                        }
                    } else {
                        let dot = centered::<S, F>(dots[0][row], &raw const (*activation).sums[2]);
                        sum = S::mul_add(S::mul(dot, scales[0]), scale, sum);
                    }
                    if F::ZERO.is_none() {
                        sum = S::mul_add(min, S::splat((*activation).scaled_sum), sum);
                    }
                    sums[part] = sum;
                }
            }
            panel = panel.add(F::BLOCK);
        }
        for (row, pair) in sums.chunks_exact(2).enumerate() {
            let mut sums = pair[0];
            for (sum, rest) in sums.iter_mut().zip(pair[1]) {
                *sum = S::add(*sum, rest);
            }
            let out = t.out.add(row * t.out_stride);
            if t.columns == PANEL {
                for (part, sum) in sums.iter().enumerate() {
                    let at = part * S::LANES;
                    let sum = if t.bias.is_null() { *sum } else { S::add(*sum, S::load(t.bias.add(at))) };
                    S::store(out.add(at), sum);
                }
                continue;
            }
            let mut results = [0.0f32; PANEL];
            for (part, sum) in sums.iter().enumerate() {
                S::store(results.as_mut_ptr().add(part * S::LANES), *sum);
            }
            for (column, result) in results.iter().enumerate().take(t.columns) {
                *out.add(column) = if t.bias.is_null() { *result } else { *result + *t.bias.add(column) };
            }
        }
    }
}

/// The dot products of a block with each row: of all 32 inputs in `[0]`, or of 16 in each with [`Scales::Groups16`].
///
/// # Safety
/// `lines` and the codes of each row, `stride` apart, hold a block; the processor has the level of `S`.
#[inline(always)]
pub(super) unsafe fn block_dots<S: Bytes, F: Format, const ROWS: usize>(
    lines: *const u8,
    codes: *const i8,
    stride: usize,
) -> [[S::I; ROWS]; 2] {
    // SAFETY: the block's lines and the rows' codes are inside the tile, see `tile`.
    unsafe {
        let nothing = S::splat_i32(0);
        let (ones, sixteens) = (S::splat_i32(0x0001_0001), S::splat_i32(0x0010_0010));
        let nibble = S::splat_i32(0x0f0f_0f0f);
        let mut dots = [[nothing; ROWS]; 2];
        let (mut low, mut high) = ([nothing; ROWS], [nothing; ROWS]);
        steps!(STEP => {
            // Sums of this many steps fit 16 bits: 2 * 127 * (largest code) a step.
            let run = if F::BITS == 5 { 4 } else if F::BITS == 6 { 2 } else { 8 };
            let (starts, ends) = (STEP.is_multiple_of(run), STEP % run == run - 1);
            let group = if matches!(F::SCALES, Scales::Groups16) { STEP / 4 } else { 0 };
            if F::BITS == 8 {
                let line = S::load_int(lines.add(64 * STEP));
                let (bottom, top) = (S::and(line, nibble), S::and(S::shift_right(line, 4), nibble));
                for row in 0..ROWS {
                    let x = S::load_word(codes.add(row * stride + 4 * STEP));
                    let (bottom, top) = (S::dot_bytes(bottom, x), S::dot_bytes(top, x));
                    low[row] = if starts { bottom } else { S::add_i16(low[row], bottom) };
                    high[row] = if starts { top } else { S::add_i16(high[row], top) };
                    if ends {
                        dots[group][row] = S::add_i32(S::dot_words(low[row], ones), S::dot_words(high[row], sixteens));
                    }
                }
            } else {
                let line = S::load_int(lines.add(64 * (STEP % 4)));
                let mut code = S::and(if STEP < 4 { line } else { S::shift_right(line, 4) }, nibble);
                if F::BITS == 5 {
                    let plane = S::load_int(lines.add(256));
                    let (up, down) = (4u32.saturating_sub(STEP as u32), (STEP as u32).saturating_sub(4));
                    let bit = if STEP < 4 { S::shift_left(plane, up) } else { S::shift_right(plane, down) };
                    code = S::or(code, S::and(bit, S::splat_i32(0x1010_1010)));
                }
                if F::BITS == 6 {
                    let plane = S::load_int(lines.add(256 + 64 * (STEP / 4)));
                    let by = 2 * (STEP % 4) as u32;
                    let (up, down) = (4u32.saturating_sub(by), by.saturating_sub(4));
                    let bits = if by < 4 { S::shift_left(plane, up) } else { S::shift_right(plane, down) };
                    code = S::or(code, S::and(bits, S::splat_i32(0x3030_3030)));
                }
                for row in 0..ROWS {
                    let x = S::load_word(codes.add(row * stride + 4 * STEP));
                    let dot = S::dot_bytes(code, x);
                    low[row] = if starts { dot } else { S::add_i16(low[row], dot) };
                    if ends {
                        let sum = S::dot_words(low[row], ones);
                        let fresh = STEP < run || (matches!(F::SCALES, Scales::Groups16) && STEP % 4 < run);
                        dots[group][row] = if fresh { sum } else { S::add_i32(dots[group][row], sum) };
                    }
                }
            }
        });
        dots
    }
}

/// Byte `at` of the codes of one step, `4 * output + input`: what [`block_dots`] unpacks in registers.
#[inline(always)]
pub(super) fn step_code<F: Format>(lines: &[u8], step: usize, at: usize) -> u8 {
    let line = |line: usize| lines[64 * line + at];
    let nibble = || line(step % 4) >> (4 * (step / 4)) & 15;
    match F::BITS {
        8 => line(step),
        5 => nibble() | (line(4) >> step & 1) << 4,
        6 => nibble() | (line(4 + step / 4) >> (2 * (step % 4)) & 3) << 4,
        _ => nibble(),
    }
}

/// A dot product of codes with the zero code taken off.
#[inline(always)]
unsafe fn centered<S: Simd, F: Format>(dot: S::I, sum: *const i32) -> S::F {
    // SAFETY: `sum` is a field of a block inside the tile, see `tile`.
    unsafe {
        S::to_float(match F::ZERO {
            Some(bits) => S::sub_i32(dot, S::shift_left(S::load_word(sum.cast()), bits)),
            None => dot,
        })
    }
}

/// Scales of the two groups (the same without groups) and the minimum of a block, for one part of the panel.
#[inline(always)]
unsafe fn block_scales<S: Simd, F: Format>(from: *const u8, part: usize, head: [S::F; 2]) -> ([S::F; 2], S::F) {
    // SAFETY: the scales follow the codes of the block, see `Format::BLOCK`.
    unsafe {
        match F::SCALES {
            Scales::Half => {
                let halves = from.cast::<u16>().add(part * S::LANES);
                let scale = S::load_half(halves);
                let min = if F::ZERO.is_none() { S::load_half(halves.add(PANEL)) } else { scale };
                ([scale; 2], min)
            }
            Scales::Six => {
                let bytes = from.add(part * S::LANES);
                let scale = S::mul(head[0], S::load_u8(bytes));
                ([scale; 2], S::mul(head[1], S::load_u8(bytes.add(PANEL))))
            }
            Scales::Groups16 => {
                let bytes = from.add(part * S::LANES);
                let group = |g: usize| S::mul(head[0], S::load_i8(bytes.add(g * PANEL)));
                ([group(0), group(1)], head[0])
            }
        }
    }
}
