//! Products with dense weights: f32, f16, bf16.
//!
//! A weight lies in panels of [`PANEL`] outputs, input by input (the last panel is padded with zeros):
//!
//! ```text
//! panel 0: [input 0: w(0,0) w(1,0) .. w(31,0)] [input 1: w(0,1) ..] ..   panel 1: ..
//! ```
//!
//! Every output is one chain of multiply-adds over the inputs in order, whatever tile it falls in: this is the row
//! invariance that the backend promises. Tiles of several rows read `x` packed in blocks of as many rows, input by
//! input, cut at every [`DEPTH`] inputs so that a block of rows and a panel stay in the caches; a chain cut there goes
//! on from the stored float, which changes nothing.

#![expect(unsafe_code, reason = "vector kernels over raw tiles; bounds are set where a tile is made")]

use std::ops::Range;

use super::Output;
use super::simd::Simd;

/// Outputs in a panel.
pub(super) const PANEL: usize = 32;
/// Inputs after which packed rows are cut.
const DEPTH: usize = 512;
/// How far ahead of their use weights are fetched, in bytes.
const AHEAD: usize = 2048;
/// Rows of the largest tile that converts 16-bit elements as it goes.
const NARROW_ROWS: usize = 4;
/// Rows that a task keeps in the second-level cache.
const TASK_ROWS: usize = 192;

/// A dense weight element.
pub(super) trait Element: super::buffer::Plain + Send + Sync {
    /// Loads a vector of elements as floats.
    ///
    /// # Safety
    /// As for [`Simd`] loads.
    unsafe fn load<S: Simd>(from: *const Self) -> S::F;
    /// The float of the same value.
    fn float(self) -> f32;
    /// Reads one little-endian element.
    fn read(bytes: &[u8]) -> Self;
    /// Rows from which on a tile should meet the elements as floats in memory.
    const WIDEN_FROM: usize;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: passed on.
        unsafe { S::load(from) }
    }
    fn float(self) -> f32 {
        self
    }
    fn read(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    const WIDEN_FROM: usize = usize::MAX;
}

impl Element for half::f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: passed on; `f16` is a transparent `u16`.
        unsafe { S::load_half(from.cast()) }
    }
    fn float(self) -> f32 {
        self.to_f32()
    }
    fn read(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
    const WIDEN_FROM: usize = NARROW_ROWS + 1;
}

impl Element for half::bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const Self) -> S::F {
        // SAFETY: passed on; `bf16` is a transparent `u16`.
        unsafe { S::load_bf16(from.cast()) }
    }
    fn float(self) -> f32 {
        self.to_f32()
    }
    fn read(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
    const WIDEN_FROM: usize = NARROW_ROWS + 1;
}

/// Elements of a packed `rows x cols` weight.
pub(super) fn packed_len(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(PANEL) * cols
}

/// Packs the little-endian elements of a row-major weight; `to` is zero before.
pub(super) fn pack<E: Element>(bytes: &[u8], cols: usize, to: &mut [E]) {
    for (row, line) in bytes.chunks_exact(cols * size_of::<E>()).enumerate() {
        let panel = &mut to[row / PANEL * PANEL * cols..];
        for (col, element) in line.chunks_exact(size_of::<E>()).enumerate() {
            panel[col * PANEL + row % PANEL] = E::read(element);
        }
    }
}

/// Row `row` of a packed weight.
pub(super) fn row_into<E: Element>(weight: &[E], row: usize, out: &mut [f32]) {
    let start = row / PANEL * PANEL * out.len() + row % PANEL;
    for (value, element) in out.iter_mut().zip(weight[start..].iter().step_by(PANEL)) {
        *value = element.float();
    }
}

/// The left operand: rows of `x`, packed when there are several.
///
/// ```text
/// inputs 0..DEPTH: [rows of block 0][rows of block 1]..   inputs DEPTH..: ..     block: [input][row]
/// ```
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Packed as drawn; a single row as it is.
    pub(super) packed: &'a [f32],
    pub(super) shape: RowShape,
}

/// How the rows of a product fall into blocks.
#[derive(Clone, Copy)]
pub(super) struct RowShape {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Blocks of nearly equal size, none above `Simd::DENSE_ROWS`.
    pub(super) blocks: usize,
}

impl RowShape {
    pub(super) fn new<S: Simd>(rows: usize, cols: usize) -> Self {
        Self { rows, cols, blocks: rows.div_ceil(S::DENSE_ROWS) }
    }

    fn block(&self, index: usize) -> Range<usize> {
        index * self.rows / self.blocks..(index + 1) * self.rows / self.blocks
    }

    /// Ranges of inputs between cuts. Few rows need no cut.
    fn cuts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let count = if self.rows <= NARROW_ROWS { 1 } else { self.cols.div_ceil(DEPTH).max(1) };
        let cols = self.cols;
        (0..count).map(move |i| i * cols / count..(i + 1) * cols / count)
    }

    /// Blocks that one task takes at most.
    pub(super) fn task_blocks<S: Simd>(&self) -> usize {
        TASK_ROWS / S::DENSE_ROWS
    }

    /// Packs one block of `x`; `to` is the whole packed operand.
    ///
    /// # Safety
    /// The processor has the level of `S`. No other thread works on the same block of `to`.
    pub(super) unsafe fn pack_block<S: Simd>(&self, x: &[f32], block: usize, to: &Output<'_>) {
        let rows = self.block(block);
        for cut in self.cuts() {
            let start = cut.start * self.rows + rows.start * cut.len();
            // SAFETY: ranges of different blocks are disjoint, so this is the only reference to the range.
            let to = unsafe { std::slice::from_raw_parts_mut(to.at(start), rows.len() * cut.len()) };
            // SAFETY: the level is available.
            unsafe { S::pack_rows(&x[rows.start * self.cols + cut.start..], self.cols, rows.len(), to) };
        }
    }
}

/// Transposes `rows` rows of `x`, `stride` apart, so that each input's values lie together.
#[inline(always)]
pub(super) fn pack_rows(x: &[f32], stride: usize, rows: usize, to: &mut [f32]) {
    /// A square that the compiler transposes in registers.
    const SIDE: usize = 4;
    let depth = to.len() / rows;
    let whole = depth - depth % SIDE;
    let mut row = 0;
    while row + SIDE <= rows {
        let lines: [&[f32]; SIDE] = std::array::from_fn(|i| &x[(row + i) * stride..][..depth]);
        for at in (0..whole).step_by(SIDE) {
            let square: [[f32; SIDE]; SIDE] = std::array::from_fn(|i| std::array::from_fn(|j| lines[i][at + j]));
            for j in 0..SIDE {
                let column: [f32; SIDE] = std::array::from_fn(|i| square[i][j]);
                to[(at + j) * rows + row..][..SIDE].copy_from_slice(&column);
            }
        }
        for at in whole..depth {
            (0..SIDE).for_each(|i| to[at * rows + row + i] = lines[i][at]);
        }
        row += SIDE;
    }
    for row in row..rows {
        let line = &x[row * stride..][..depth];
        for (value, to) in line.iter().zip(to[row..].iter_mut().step_by(rows)) {
            *to = *value;
        }
    }
}

/// Converts whole vectors of elements to floats.
#[inline(always)]
pub(super) fn widen<S: Simd, E: Element>(from: &[E], to: &mut [f32]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(S::LANES));
    for at in (0..from.len()).step_by(S::LANES) {
        // SAFETY: in bounds by the check above, prefetches may be anywhere; called where the level of `S` is available.
        unsafe {
            S::prefetch(from.as_ptr().wrapping_add(at).cast::<u8>().wrapping_add(AHEAD));
            S::store(to.as_mut_ptr().add(at), E::load::<S>(from.as_ptr().add(at)));
        }
    }
}

/// `ROWS` rows times `VECTORS * LANES` columns of a panel.
pub(super) struct DenseTile<E> {
    /// `depth` times `ROWS` packed values.
    x: *const f32,
    /// `depth` times `PANEL` elements, from the tile's first column on.
    weight: *const E,
    depth: usize,
    out: *mut f32,
    out_stride: usize,
    /// Go on from the values in `out` instead of zero.
    resume: bool,
    /// Added at the end unless null.
    bias: *const f32,
}

/// The register tile.
///
/// # Safety
/// The pointers of the tile cover what its fields say, and the processor has the level of `S`.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, E: Element, const ROWS: usize, const VECTORS: usize>(t: &DenseTile<E>) {
    if ROWS >= E::WIDEN_FROM {
        unreachable!("widened before");
    }
    // SAFETY: all addresses are inside the tile as stated above; prefetches may be anywhere.
    unsafe {
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        if t.resume {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(t.out.add(row * t.out_stride + v * S::LANES));
                }
            }
        }
        let (mut x, mut weight) = (t.x, t.weight);
        for _ in 0..t.depth {
            let mut w = [S::splat(0.0); VECTORS];
            for (v, w) in w.iter_mut().enumerate() {
                *w = E::load::<S>(weight.add(v * S::LANES));
            }
            for line in 0..(VECTORS * S::LANES * size_of::<E>()).div_ceil(64) {
                S::prefetch(weight.cast::<u8>().wrapping_add(AHEAD + 64 * line));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let value = S::splat(*x.add(row));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = S::mul_add(value, w, *sum);
                }
            }
            x = x.add(ROWS);
            weight = weight.wrapping_add(PANEL);
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let mut value = *sum;
                if !t.bias.is_null() {
                    value = S::add(value, S::load(t.bias.add(v * S::LANES)));
                }
                S::store(t.out.add(row * t.out_stride + v * S::LANES), value);
            }
        }
    }
}

/// One dense product.
pub(super) struct DenseProduct<'a, E> {
    pub(super) weight: &'a [E],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) x: Rows<'a>,
    pub(super) out: &'a Output<'a>,
    /// Columns of `out`.
    pub(super) outputs: usize,
}

/// Floats of scratch memory that [`DenseProduct::run`] needs.
pub(super) const SCRATCH: usize = DEPTH * PANEL + TASK_ROWS * PANEL;

impl<E: Element> DenseProduct<'_, E> {
    /// Computes some panels for some blocks of rows.
    ///
    /// # Safety
    /// The processor has the level of `S`. No other thread works on the same panels and blocks.
    pub(super) unsafe fn run<S: Simd>(&self, panels: Range<usize>, blocks: Range<usize>, scratch: &mut [f32]) {
        let RowShape { rows, cols, .. } = self.x.shape;
        let (wide, edge) = scratch.split_at_mut(DEPTH * PANEL);
        let first = self.x.shape.block(blocks.start).start;
        for cut in self.x.shape.cuts() {
            let last = cut.end == cols;
            for panel in panels.clone() {
                let weight = &self.weight[(panel * cols + cut.start) * PANEL..][..cut.len() * PANEL];
                let columns = PANEL.min(self.outputs - panel * PANEL);
                let mut bias = [0.0; PANEL];
                if let Some(all) = self.bias.filter(|_| last) {
                    bias[..columns].copy_from_slice(&all[panel * PANEL..][..columns]);
                }
                let widened = rows >= E::WIDEN_FROM;
                if widened {
                    // SAFETY: the level is available.
                    unsafe { S::widen(weight, &mut wide[..weight.len()]) };
                }
                for block in blocks.clone() {
                    let range = self.x.shape.block(block);
                    let x = &self.x.packed[cut.start * rows + range.start * cut.len()..][..range.len() * cut.len()];
                    // A full panel goes straight to the result, the last one by way of `edge`.
                    let (out, out_stride) = if columns == PANEL {
                        (self.out.at(range.start * self.outputs + panel * PANEL), self.outputs)
                    } else {
                        (edge[(range.start - first) * PANEL..][..range.len() * PANEL].as_mut_ptr(), PANEL)
                    };
                    let bias = if last && self.bias.is_some() { bias.as_ptr() } else { std::ptr::null() };
                    let (x, depth, resume) = (x.as_ptr(), cut.len(), cut.start > 0);
                    // SAFETY: `x`, weight, bias and out were sized just above for this block and panel; the ranges of
                    // `out` belong to this call.
                    unsafe {
                        if widened {
                            let weight = wide.as_ptr();
                            let tile = DenseTile { x, weight, depth, out, out_stride, resume, bias };
                            block_tiles::<S, f32>(tile, range.len());
                        } else {
                            let weight = weight.as_ptr();
                            let tile = DenseTile { x, weight, depth, out, out_stride, resume, bias };
                            block_tiles::<S, E>(tile, range.len());
                        }
                    }
                    if last && columns < PANEL {
                        for row in range {
                            let from = &edge[(row - first) * PANEL..][..columns];
                            let to = self.out.at(row * self.outputs + panel * PANEL);
                            // SAFETY: row and columns are inside `out`, and belong to this call.
                            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, columns) };
                        }
                    }
                }
            }
        }
    }
}

/// One block of rows times one panel, in as many tiles as the registers need.
///
/// # Safety
/// As for [`tile`], with all `PANEL` columns.
unsafe fn block_tiles<S: Simd, E: Element>(mut t: DenseTile<E>, rows: usize) {
    // Few rows take more columns at once, so that there are enough chains and weights are read in one stream.
    let width = S::LANES * if rows <= S::DENSE_WIDE_ROWS { 4 } else { 2 };
    for _ in 0..PANEL / width {
        // SAFETY: the tile moves over the columns of the panel and stays inside.
        unsafe {
            S::dense_tile::<E>(&t, rows);
            t.weight = t.weight.add(width);
            t.out = t.out.add(width);
            if !t.bias.is_null() {
                t.bias = t.bias.add(width);
            }
        }
    }
}
