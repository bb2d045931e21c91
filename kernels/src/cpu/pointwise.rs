//! Pointwise functions.

use super::simd::math;
use super::{CpuBackend, CpuTensor, parallel};
use crate::shapes::Activation;

const GRAIN: usize = 1 << 14;

pub(super) fn add(cpu: &CpuBackend, a: &CpuTensor, b: &CpuTensor, out: &mut [f32]) {
    let (cols, one_row) = (a.cols(), b.rows() == 1);
    let (a_values, b_values) = (a.values(), b.values());
    let size = parallel::rows_per_task(a.rows(), cols, 2 * GRAIN) * cols;
    parallel::pieces(&cpu.pool, out, size, |i, out| {
        let range = i * size..i * size + out.len();
        let a = &a_values[range.clone()];
        if one_row {
            for (y, a) in out.chunks_exact_mut(cols).zip(a.chunks_exact(cols)) {
                y.iter_mut().zip(a).zip(b_values).for_each(|((y, a), b)| *y = a + b);
            }
        } else {
            out.iter_mut().zip(a).zip(&b_values[range]).for_each(|((y, a), b)| *y = a + b);
        }
    });
}

pub(super) fn activate(cpu: &CpuBackend, f: Activation, x: &CpuTensor, out: &mut [f32]) {
    let values = x.values();
    parallel::pieces(&cpu.pool, out, GRAIN, |i, out| {
        math::pointwise(cpu.level, f, &values[i * GRAIN..i * GRAIN + out.len()], None, out);
    });
}

pub(super) fn gated(cpu: &CpuBackend, f: Activation, (gate, up): (&CpuTensor, &CpuTensor), out: &mut [f32]) {
    let (gate, up) = (gate.values(), up.values());
    parallel::pieces(&cpu.pool, out, GRAIN, |i, out| {
        let range = i * GRAIN..i * GRAIN + out.len();
        math::pointwise(cpu.level, f, &gate[range.clone()], Some(&up[range]), out);
    });
}
