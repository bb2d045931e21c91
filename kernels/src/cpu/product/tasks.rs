//! From a group of products to tasks on the pool.

#![expect(unsafe_code, reason = "tasks write disjoint parts of one output, and call kernels of a detected level")]

use std::ops::Range;

use half::{bf16, f16};

use super::dense::{DenseProduct, Element, RowShape, Rows};
use super::quant::{self, ActivationBlock, Format, QuantTile};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Level, Portable, Simd};
use super::weight::with_format;
use super::{Buffer, Output, PackedWeight, dense};
use crate::cpu::pool::Pool;
use crate::weights::WeightFormat;

/// One product of a group.
#[derive(Debug)]
pub struct ProductPart<'a> {
    /// `outputs x inputs`.
    pub weight: &'a PackedWeight,
    /// `outputs` values to add to each row.
    pub bias: Option<&'a [f32]>,
    /// `rows x outputs` results, row-major; what was there is overwritten.
    pub out: &'a mut [f32],
}

/// Bytes of weights below which a task is not worth handing out.
const TASK_BYTES: usize = 32 << 10;
/// Tasks for each thread, so that a thread that is held up does not hold up the rest.
const TASKS_PER_THREAD: usize = 4;
/// Elements of `x` below which one thread prepares them.
const SHARED_PREPARATION: usize = 32 << 10;
/// Rows of activations that stay in the second-level cache while panels of a quantised weight go by.
const QUANT_ROWS: usize = 256;

/// `x W^T + b` for every part: `x` is `rows x inputs`, row-major, the same for all parts.
///
/// Quantised weights meet `x` rounded twice to 8 bits in blocks of 32 inputs; dense weights meet it as it is.
///
/// # Panics
/// When shapes do not fit together, or the weights were packed for different levels.
pub fn products(pool: &Pool, x: &[f32], rows: usize, parts: &mut [ProductPart<'_>]) {
    let Some(first) = parts.first() else { return };
    let (cols, level) = (first.weight.cols(), first.weight.level());
    assert_eq!(x.len(), rows * cols, "x is {rows}x{cols}");
    for part in parts.iter() {
        let weight = part.weight;
        assert_eq!(weight.cols(), cols, "weights of a group have the same inputs");
        assert_eq!(weight.level(), level, "weights of a group have the same level");
        assert_eq!(part.out.len(), rows * weight.rows(), "out is {rows}x{}", weight.rows());
        assert!(part.bias.is_none_or(|b| b.len() == weight.rows()), "bias has {} values", weight.rows());
    }
    if rows == 0 {
        return;
    }
    // SAFETY: a weight is only packed for a level that the processor has.
    unsafe {
        match level {
            Level::Portable => group::<Portable>(pool, x, rows, parts),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => group::<Avx2>(pool, x, rows, parts),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => group::<Avx512>(pool, x, rows, parts),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => unreachable!("no weight is packed for an x86 level here"),
        }
    }
}

/// A rectangle of one part's output: panels of the weight and blocks of rows (all rows if quantised).
struct Task {
    part: usize,
    panels: Range<usize>,
    blocks: Range<usize>,
}

/// `count` ranges of nearly equal length that cover `0..len`.
fn split(len: usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let count = count.clamp(1, len.max(1));
    (0..count).map(move |i| i * len / count..(i + 1) * len / count)
}

/// # Safety
/// The processor has the level of `S`; shapes were checked.
unsafe fn group<S: Simd>(pool: &Pool, x: &[f32], rows: usize, parts: &mut [ProductPart<'_>]) {
    let cols = parts[0].weight.cols();
    let shape = RowShape::new::<S>(rows, cols);
    let tasks = tasks::<S>(pool, &shape, parts);

    let mut packed = None;
    if rows > 1 && parts.iter().any(|p| p.weight.is_dense()) {
        let mut buffer = pool.take_scratch(4 * rows * cols);
        let to = Output::new(buffer.elements());
        prepare(pool, rows * cols, shape.blocks, &|block| {
            // SAFETY: the level is available; each block is packed by one task.
            unsafe { shape.pack_block::<S>(x, block, &to) };
        });
        packed = Some(buffer);
    }
    let mut rounded = None;
    if parts.iter().any(|p| !p.weight.is_dense()) {
        // SAFETY: the level is available.
        rounded = Some(unsafe { Rounded::new::<S>(pool, x, rows, cols) });
    }

    let input = Rows { packed: packed.as_ref().map_or(x, |b: &Buffer| b.as_elements()), shape };
    let outputs: Vec<_> = parts.iter_mut().map(|p| (p.weight, p.bias, Output::new(p.out))).collect();
    pool.run(tasks.len(), &|index| {
        let Task { part, panels, blocks } = &tasks[index];
        let (weight, bias, out) = &outputs[*part];
        let product = Product { weight, bias: *bias, out };
        // SAFETY: the level is available; tasks are disjoint.
        unsafe {
            match weight.format() {
                WeightFormat::F32 => product.dense::<S, f32>(pool, input, panels, blocks),
                WeightFormat::F16 => product.dense::<S, f16>(pool, input, panels, blocks),
                WeightFormat::BF16 => product.dense::<S, bf16>(pool, input, panels, blocks),
                format => {
                    if let Some(rounded) = &rounded {
                        with_format!(format, F => product.quant::<S, F>(rounded, panels));
                    }
                }
            }
        }
    });
    packed.into_iter().for_each(|buffer| pool.give_scratch(buffer));
    if let Some(Rounded { codes, blocks, .. }) = rounded {
        pool.give_scratch(codes);
        pool.give_scratch(blocks);
    }
}

/// Runs the steps that prepare `x`, on the pool when they are worth it.
fn prepare(pool: &Pool, elements: usize, steps: usize, step: &(dyn Fn(usize) + Sync)) {
    if elements < SHARED_PREPARATION {
        (0..steps).for_each(step);
    } else {
        pool.run(steps, step);
    }
}

fn tasks<S: Simd>(pool: &Pool, shape: &RowShape, parts: &[ProductPart<'_>]) -> Vec<Task> {
    let total: usize = parts.iter().map(|p| p.weight.bytes()).sum();
    let wanted = if pool.threads() == 1 { 1 } else { TASKS_PER_THREAD * pool.threads() };
    let mut tasks = Vec::with_capacity(2 * wanted);
    for (part, ProductPart { weight, .. }) in parts.iter().enumerate() {
        let panels = weight.rows().div_ceil(weight.panel_rows());
        let row_chunks = if weight.is_dense() { shape.blocks.div_ceil(shape.task_blocks::<S>()) } else { 1 };
        // Its share of the tasks by bytes; several rows are worth a task sooner.
        let share = (wanted * weight.bytes()).div_ceil(total.max(1)).div_ceil(row_chunks);
        let worth = (weight.bytes() * shape.rows.min(8)).div_ceil(TASK_BYTES);
        for panels in split(panels, share.min(worth)) {
            for blocks in split(shape.blocks, row_chunks) {
                tasks.push(Task { part, panels: panels.clone(), blocks });
            }
        }
    }
    tasks
}

/// `x` in pairs of 8-bit rows.
struct Rounded {
    rows: usize,
    codes: Buffer,
    blocks: Buffer,
}

impl Rounded {
    /// # Safety
    /// The processor has the level of `S`.
    unsafe fn new<S: Simd>(pool: &Pool, x: &[f32], rows: usize, cols: usize) -> Self {
        let mut codes = pool.take_scratch(2 * rows * cols);
        let mut blocks = pool.take_scratch(2 * rows * cols / 32 * size_of::<ActivationBlock>());
        let (to_codes, to_blocks) = (codes.elements::<i8>(), blocks.elements::<ActivationBlock>());
        if rows * cols < SHARED_PREPARATION {
            // SAFETY: the level is available.
            unsafe { quant::quantize_pairs::<S>(x, cols, to_codes, to_blocks) };
        } else {
            let chunk = rows.div_ceil(TASKS_PER_THREAD * pool.threads());
            let pieces: Vec<_> = x
                .chunks(chunk * cols)
                .zip(to_codes.chunks_mut(2 * chunk * cols))
                .zip(to_blocks.chunks_mut(2 * chunk * cols / 32))
                .map(std::sync::Mutex::new)
                .collect();
            pool.run(pieces.len(), &|index| {
                if let Ok(mut piece) = pieces[index].lock() {
                    let ((x, codes), blocks) = &mut *piece;
                    // SAFETY: the level is available.
                    unsafe { quant::quantize_pairs::<S>(x, cols, codes, blocks) };
                }
            });
        }
        Self { rows, codes, blocks }
    }
}

/// One part, as a task sees it.
struct Product<'a> {
    weight: &'a PackedWeight,
    bias: Option<&'a [f32]>,
    out: &'a Output<'a>,
}

impl Product<'_> {
    /// # Safety
    /// As [`DenseProduct::run`].
    unsafe fn dense<S: Simd, E: Element>(
        &self,
        pool: &Pool,
        x: Rows<'_>,
        panels: &Range<usize>,
        blocks: &Range<usize>,
    ) {
        let mut scratch = pool.take_scratch(4 * dense::SCRATCH);
        let (bias, out, outputs) = (self.bias, self.out, self.weight.rows());
        let product = DenseProduct { weight: self.weight.packed.as_elements::<E>(), bias, x, out, outputs };
        // SAFETY: passed on.
        unsafe { product.run::<S>(panels.clone(), blocks.clone(), scratch.elements()) };
        pool.give_scratch(scratch);
    }

    /// # Safety
    /// The processor has the level of `S`. No other thread works on the same panels.
    unsafe fn quant<S: Simd, F: Format>(&self, x: &Rounded, panels: &Range<usize>) {
        let (outputs, blocks) = (self.weight.rows(), self.weight.cols() / 32);
        let bytes = self.weight.packed.as_elements::<u8>();
        let (codes, activations) = (x.codes.as_elements::<i8>(), x.blocks.as_elements::<ActivationBlock>());
        for chunk in split(x.rows, x.rows.div_ceil(QUANT_ROWS)) {
            for panel in panels.clone() {
                let weight = &bytes[panel * F::panel_bytes(blocks)..][..F::panel_bytes(blocks)];
                let column = panel * quant::PANEL;
                let columns = quant::PANEL.min(outputs - column);
                let bias = self.bias.map(|bias| &bias[column..][..columns]);
                let mut first = chunk.start;
                while first < chunk.end {
                    // The largest tile that fits: a power of two, with two rows of codes for each row.
                    let rows = 1 << (chunk.end - first).min(S::QUANT_ROWS / 2).ilog2();
                    let tile = QuantTile {
                        panel: weight.as_ptr(),
                        codes: codes[2 * first * blocks * 32..][..2 * rows * blocks * 32].as_ptr(),
                        activations: activations[2 * first * blocks..][..2 * rows * blocks].as_ptr(),
                        blocks,
                        out: self.out.at(first * outputs + column),
                        out_stride: outputs,
                        columns,
                        bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                    };
                    // SAFETY: weight, codes, activations and bias were sized just above; rows and columns are inside
                    // `out` and belong to this task; the level is available.
                    unsafe { S::quant_tile::<F>(&tile, 2 * rows) };
                    first += rows;
                }
            }
        }
    }
}
