//! Seeded random inputs.

use std::ops::Range;

use crate::backend::Backend;
use crate::error::Result;

/// SplitMix64 (Steele, Lea and Flood, 2014); `narrow` inputs are rounded to bf16.
pub(super) struct Random {
    state: u64,
    narrow: bool,
}

impl Random {
    pub(super) fn new(seed: u64, narrow: bool) -> Self {
        Self { state: seed, narrow }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// In `[0, 1)`.
    pub(super) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Roughly normal: the sum of four uniform numbers, of mean 0 and variance 1.
    pub(super) fn normal(&mut self) -> f32 {
        ((0..4).map(|_| self.uniform()).sum::<f32>() - 2.0) * 3.0f32.sqrt()
    }

    /// A matrix of normal numbers times `scale`.
    pub(super) fn input(&mut self, rows: usize, cols: usize, scale: f32) -> Input {
        let narrow = self.narrow;
        Input { cols, narrow, values: (0..rows * cols).map(|_| rounded(self.normal() * scale, narrow)).collect() }
    }

    /// The numbers below `n` in random order.
    pub(super) fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            numbers.swap(i, self.below(i + 1));
        }
        numbers
    }
}

fn rounded(value: f32, narrow: bool) -> f32 {
    if narrow { half::bf16::from_f32(value).to_f32() } else { value }
}

/// A matrix on the host, from which any backend takes the rows it needs.
#[derive(Clone)]
pub(super) struct Input {
    pub(super) cols: usize,
    narrow: bool,
    pub(super) values: Vec<f32>,
}

impl Input {
    pub(super) fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    pub(super) fn rows_of(&self, rows: Range<usize>) -> &[f32] {
        &self.values[rows.start * self.cols..rows.end * self.cols]
    }

    /// Some of the rows on a backend.
    pub(super) fn part<B: Backend>(&self, backend: &B, rows: Range<usize>) -> Result<B::Tensor> {
        // Tests change values after they were drawn.
        let values: Vec<f32> = self.rows_of(rows.clone()).iter().map(|&value| rounded(value, self.narrow)).collect();
        backend.upload(rows.len(), self.cols, &values)
    }

    /// All of it on a backend.
    pub(super) fn on<B: Backend>(&self, backend: &B) -> Result<B::Tensor> {
        self.part(backend, 0..self.rows())
    }
}
