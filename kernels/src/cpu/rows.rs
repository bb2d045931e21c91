//! Moving rows, and their means.

use std::ops::Range;

use super::{CpuBackend, CpuTensor, parallel};

const GRAIN: usize = 1 << 16;

pub(super) fn gather(cpu: &CpuBackend, x: &CpuTensor, rows: &[u32], out: &mut [f32]) {
    let cols = x.cols();
    let per_task = parallel::rows_per_task(rows.len(), cols, GRAIN);
    parallel::pieces(&cpu.pool, out, per_task * cols, |i, out| {
        for (&row, out) in rows[i * per_task..].iter().zip(out.chunks_exact_mut(cols)) {
            out.copy_from_slice(x.row(row as usize));
        }
    });
}

pub(super) fn scatter(x: &CpuTensor, rows: &[u32], values: &CpuTensor, out: &mut [f32]) {
    out.copy_from_slice(x.values());
    for (i, &row) in rows.iter().enumerate() {
        let start = row as usize * x.cols();
        out[start..start + x.cols()].copy_from_slice(values.row(i));
    }
}

pub(super) fn concat(parts: &[&CpuTensor], mut out: &mut [f32]) {
    for part in parts {
        let (here, rest) = out.split_at_mut(part.values().len());
        here.copy_from_slice(part.values());
        out = rest;
    }
}

pub(super) fn mean(x: &CpuTensor, segments: &[Range<usize>], n: usize, out: &mut [f32]) {
    let cols = x.cols();
    if cols == 0 {
        return;
    }
    let groups = segments.iter().flat_map(|s| (0..s.len() / n).map(|i| s.start + i * n));
    for (first, out) in groups.zip(out.chunks_exact_mut(cols)) {
        out.copy_from_slice(x.row(first));
        for row in first + 1..first + n {
            out.iter_mut().zip(x.row(row)).for_each(|(sum, x)| *sum += x);
        }
        out.iter_mut().for_each(|sum| *sum /= n as f32);
    }
}
