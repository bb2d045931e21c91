//! Stand-ins for the worker pool and the packed products until those land.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::weights::WeightData;

pub(crate) struct Pool {
    threads: usize,
}

impl Pool {
    pub(crate) fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self { threads })
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    pub(crate) fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.threads == 1 {
            return (0..tasks).for_each(f);
        }
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(tasks) {
                scope.spawn(|| {
                    while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < tasks) {
                        f(i);
                    }
                });
            }
        });
    }
}

pub struct PackedWeight {
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

pub(crate) struct ProductPart<'a> {
    pub(crate) weight: &'a PackedWeight,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

impl PackedWeight {
    pub(crate) fn new(data: &WeightData<'_>) -> Result<Self> {
        Ok(Self { rows: data.rows, cols: data.cols, values: crate::reference::dequantize(data)? })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn row_into(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.values[row * self.cols..(row + 1) * self.cols]);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, ra) = a.as_chunks::<16>();
    let (b, rb) = b.as_chunks::<16>();
    let mut sums = [0.0f32; 16];
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + ra.iter().zip(rb).map(|(a, b)| a * b).sum::<f32>()
}

pub(crate) fn products(pool: &Pool, x: &[f32], rows: usize, parts: &mut [ProductPart<'_>]) {
    for part in parts {
        let (w, bias) = (part.weight, part.bias);
        let work = rows * w.rows * w.cols;
        let per_task = if work > 1 << 20 { rows.div_ceil(4 * pool.threads) } else { rows }.max(1);
        super::parallel::pieces(pool, part.out, per_task * w.rows.max(1), |piece, out| {
            for (i, y) in out.chunks_exact_mut(w.rows).enumerate() {
                let row = piece * per_task + i;
                let x = &x[row * w.cols..(row + 1) * w.cols];
                for (col, y) in y.iter_mut().enumerate() {
                    *y = dot(x, &w.values[col * w.cols..(col + 1) * w.cols]) + bias.map_or(0.0, |b| b[col]);
                }
            }
        });
    }
}
