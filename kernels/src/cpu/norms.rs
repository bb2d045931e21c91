//! Norms. Sums run over sixteen fixed lanes, so that a row's result depends on the row alone.

use super::{CpuBackend, CpuTensor, parallel};

/// Elements of a task.
const GRAIN: usize = 1 << 15;

/// Sum of `f(x)` over sixteen lanes, then over the lanes in a fixed tree, then over the rest.
#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<16>();
    let mut lanes = [0.0f32; 16];
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] += f(chunk[i]);
        }
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    rest.iter().fold(lanes[0], |sum, &x| sum + f(x))
}

#[inline(always)]
fn rms_norm_group(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + eps).sqrt();
    for ((y, x), w) in out.iter_mut().zip(x).zip(weight) {
        *y = x * inverse * w;
    }
}

pub(super) fn rms_norm(cpu: &CpuBackend, x: &CpuTensor, weight: &CpuTensor, eps: f32, out: &mut [f32]) {
    let (values, weight) = (x.values(), weight.values());
    let size = parallel::rows_per_task(x.rows(), x.cols(), GRAIN) * x.cols();
    parallel::pieces(&cpu.pool, out, size, |i, out| {
        let x = &values[i * size..i * size + out.len()];
        for (x, y) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            rms_norm_group(x, weight, eps, y);
        }
    });
}

pub(super) fn add_rms_norm(
    cpu: &CpuBackend,
    (x, residual): (&CpuTensor, &CpuTensor),
    weight: &CpuTensor,
    eps: f32,
    outs: (&mut [f32], &mut [f32]),
) {
    let (values, residual, weight) = (x.values(), residual.values(), weight.values());
    let size = parallel::rows_per_task(x.rows(), x.cols(), GRAIN) * x.cols();
    parallel::pieces2(&cpu.pool, outs, size, |i, sum, normed| {
        let range = i * size..i * size + sum.len();
        for ((s, x), r) in sum.iter_mut().zip(&values[range.clone()]).zip(&residual[range]) {
            *s = x + r;
        }
        for (x, y) in sum.chunks_exact(weight.len()).zip(normed.chunks_exact_mut(weight.len())) {
            rms_norm_group(x, weight, eps, y);
        }
    });
}

#[inline(always)]
fn layer_norm_row(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    let n = x.len() as f32;
    let mean = sum(x, |x| x) / n;
    let inverse = 1.0 / (sum(x, |x| (x - mean) * (x - mean)) / n + eps).sqrt();
    for ((y, x), w) in out.iter_mut().zip(x).zip(weight) {
        *y = (x - mean) * inverse * w;
    }
    if let Some(bias) = bias {
        for (y, b) in out.iter_mut().zip(bias) {
            *y += b;
        }
    }
}

pub(super) fn layer_norm(
    cpu: &CpuBackend,
    x: &CpuTensor,
    (weight, bias): (&CpuTensor, Option<&CpuTensor>),
    eps: f32,
    out: &mut [f32],
) {
    let (values, cols) = (x.values(), x.cols());
    let (weight, bias) = (weight.values(), bias.map(CpuTensor::values));
    let size = parallel::rows_per_task(x.rows(), cols, GRAIN) * cols;
    parallel::pieces(&cpu.pool, out, size, |i, out| {
        let x = &values[i * size..i * size + out.len()];
        for (x, y) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
            layer_norm_row(x, weight, bias, eps, y);
        }
    });
}
