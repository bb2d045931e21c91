//! 1-D convolution as products of unrolled windows.
//!
//! With the kernel position major in the weight, the window of one output frame is one contiguous piece of the input;
//! only at the ends of a segment zeros stand in for missing frames.

use std::ops::Range;

use super::{CpuBackend, CpuTensor, PackedWeight, ProductPart, parallel, products};
use crate::checks::conv1d_frames;
use crate::error::Result;
use crate::shapes::Conv1dSpec;

/// Output rows unrolled at once: bounds the scratch.
const BLOCK: usize = 256;

pub(super) fn conv1d(
    cpu: &CpuBackend,
    x: &CpuTensor,
    (w, bias): (&PackedWeight, Option<&CpuTensor>),
    (segments, spec): (&[Range<usize>], Conv1dSpec),
    mut out: &mut [f32],
) -> Result<()> {
    let window = w.cols();
    let mut scratch = cpu.buffer("conv1d", BLOCK * window)?;
    for segment in segments {
        let frames = conv1d_frames(segment.len(), spec).unwrap_or(0);
        for block in (0..frames).step_by(BLOCK) {
            let rows = BLOCK.min(frames - block);
            let unrolled = &mut scratch.values_mut()[..rows * window];
            parallel::pieces(&cpu.pool, unrolled, 16 * window, |i, out| {
                for (row, out) in out.chunks_exact_mut(window).enumerate() {
                    unroll(x, segment, (block + i * 16 + row) * spec.stride, spec, out);
                }
            });
            let (here, rest) = out.split_at_mut(rows * w.rows());
            let part = ProductPart { weight: w, bias: bias.map(CpuTensor::values), out: here };
            products(&cpu.pool, unrolled, rows, &mut [part]);
            out = rest;
        }
    }
    Ok(())
}

/// The window that starts `first` padded frames after the padded start of the segment.
fn unroll(x: &CpuTensor, segment: &Range<usize>, first: usize, spec: Conv1dSpec, out: &mut [f32]) {
    let padded = |frame: usize| frame.saturating_sub(spec.padding).min(segment.len());
    let (start, end) = (padded(first), padded(first + spec.kernel));
    let missing = spec.padding.saturating_sub(first).min(spec.kernel) * x.cols();
    let filled = missing + (end - start) * x.cols();
    out[..missing].fill(0.0);
    out[missing..filled]
        .copy_from_slice(&x.values()[(segment.start + start) * x.cols()..(segment.start + end) * x.cols()]);
    out[filled..].fill(0.0);
}
