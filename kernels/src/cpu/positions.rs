//! Rotary positions.

use super::{CpuBackend, CpuTensor, parallel};
use crate::shapes::RotaryFrequencies;

const GRAIN: usize = 1 << 14;

/// The angle is a product in `f32`, as the published models compute it: at large positions its rounding matters.
pub(super) fn table(
    cpu: &CpuBackend,
    frequencies: &RotaryFrequencies,
    positions: &[u32],
    axes: usize,
    out: &mut [f32],
) {
    let RotaryFrequencies { inverse, axis, attention_factor } = frequencies;
    let pairs = inverse.len();
    let per_task = (GRAIN / 16 / pairs.max(1)).max(1);
    parallel::pieces(&cpu.pool, out, per_task * 2 * pairs, |i, out| {
        let positions = positions.chunks_exact(axes).skip(i * per_task);
        for (row, position) in out.chunks_exact_mut(2 * pairs).zip(positions) {
            let (cosines, sines) = row.split_at_mut(pairs);
            for (pair, (cos, sin)) in cosines.iter_mut().zip(sines).enumerate() {
                let angle = position[axis[pair] as usize] as f32 * inverse[pair];
                *cos = angle.cos() * attention_factor;
                *sin = angle.sin() * attention_factor;
            }
        }
    });
}

#[inline(always)]
fn turn(x: &[f32], table: &[f32], out: &mut [f32]) {
    let pairs = table.len() / 2;
    let (cosines, sines) = table.split_at(pairs);
    let (first, rest) = x.split_at(pairs);
    let (second, passed) = rest.split_at(pairs);
    let (out_first, out_rest) = out.split_at_mut(pairs);
    let (out_second, out_passed) = out_rest.split_at_mut(pairs);
    for i in 0..pairs {
        out_first[i] = first[i] * cosines[i] - second[i] * sines[i];
        out_second[i] = second[i] * cosines[i] + first[i] * sines[i];
    }
    out_passed.copy_from_slice(passed);
}

pub(super) fn rotary(cpu: &CpuBackend, x: &CpuTensor, table: &CpuTensor, head_dim: usize, out: &mut [f32]) {
    let per_task = parallel::rows_per_task(x.rows(), x.cols(), GRAIN);
    parallel::pieces(&cpu.pool, out, per_task * x.cols(), |i, out| {
        for (row, out) in out.chunks_exact_mut(x.cols()).enumerate() {
            let row = i * per_task + row;
            let heads = x.row(row).chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
            heads.for_each(|(x, out)| turn(x, table.row(row), out));
        }
    });
}
