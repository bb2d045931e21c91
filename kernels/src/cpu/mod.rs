//! The CPU backend: `f32` activations in recycled buffers, packed weights, one pool of workers.
//!
//! This file only joins the trait to the operations; each lives in a file of its own. Kernels are chosen at run time
//! by what the processor has ([`Level`]), and every element of a result is computed by the same instructions in
//! the same order whatever its row, the number of rows and the number of threads.

mod attention;
mod conv;
mod flash;
mod norms;
mod pages;
mod parallel;
mod pointwise;
pub mod pool;
mod positions;
pub mod product;
mod rows;
mod sample;
mod simd;
mod tensor;

use std::ops::Range;
use std::sync::Arc;

pub use self::pages::CpuPages;
use self::pool::Pool;
use self::product::{Level, PackedWeight, ProductPart, products};
pub(crate) use self::sample::sample_row;
pub use self::tensor::CpuTensor;
use self::tensor::{Buffer, Recycler};
use crate::backend::Backend;
use crate::checks;
use crate::error::{KernelError, Result};
use crate::shapes::{
    Activation, AttentionSpec, Conv1dSpec, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Sampled, Segment,
};
use crate::weights::WeightData;

/// The CPU as a device. Clones share its workers and its recycled buffers.
#[derive(Clone)]
pub struct CpuBackend {
    pool: Arc<Pool>,
    recycler: Arc<Recycler>,
    level: Level,
}

impl CpuBackend {
    /// A backend of this many threads on the best kernels of this processor; 0 takes the available cores.
    pub fn new(threads: usize) -> Self {
        Self::made(threads, Level::detect())
    }

    /// A backend on the kernels of one level: for tests and comparisons.
    ///
    /// # Errors
    /// [`KernelError::Unsupported`] when this processor does not have the level.
    pub fn with_level(threads: usize, level: Level) -> Result<Self> {
        if level.available() {
            return Ok(Self::made(threads, level));
        }
        Err(KernelError::Unsupported { op: "cpu", detail: format!("this processor does not have {level}") })
    }

    fn made(threads: usize, level: Level) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            given => given,
        };
        Self { pool: Pool::new(threads), recycler: Recycler::new(), level }
    }

    fn buffer(&self, op: &'static str, elements: usize) -> Result<Buffer> {
        self.recycler.take(op, elements)
    }

    /// A tensor whose elements `fill` writes, all of them.
    fn fill(&self, op: &'static str, shape: (usize, usize), fill: impl FnOnce(&mut [f32])) -> Result<CpuTensor> {
        let mut buffer = self.buffer(op, shape.0 * shape.1)?;
        fill(buffer.values_mut());
        Ok(CpuTensor::new(buffer, shape.0, shape.1))
    }
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

fn weight_shape(w: &PackedWeight) -> (usize, usize) {
    (w.rows(), w.cols())
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Weight = PackedWeight;
    type Pages = CpuPages;

    fn describe(&self) -> String {
        format!("cpu ({} threads, {})", self.pool.threads(), self.level)
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<CpuTensor> {
        checks::upload(rows, cols, values.len())?;
        self.fill("upload", (rows, cols), |out| out.copy_from_slice(values))
    }

    fn download(&self, x: &CpuTensor) -> Result<Vec<f32>> {
        Ok(x.values().to_vec())
    }

    fn shape(&self, x: &CpuTensor) -> (usize, usize) {
        x.shape()
    }

    fn weight(&self, data: &WeightData<'_>) -> Result<PackedWeight> {
        checks::weight(data)?;
        PackedWeight::with_level(data, self.level)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&self, table: &PackedWeight, ids: &[u32]) -> Result<CpuTensor> {
        checks::embed(weight_shape(table), ids)?;
        let cols = table.cols();
        self.fill("embed", (ids.len(), cols), |out| {
            for (&id, row) in ids.iter().zip(out.chunks_exact_mut(cols.max(1))) {
                table.row_into(id as usize, row);
            }
        })
    }

    fn linear(&self, x: &CpuTensor, w: &PackedWeight, bias: Option<&CpuTensor>) -> Result<CpuTensor> {
        checks::linear("linear", x.shape(), weight_shape(w), bias.map(CpuTensor::shape))?;
        self.fill("linear", (x.rows(), w.rows()), |out| {
            let part = ProductPart { weight: w, bias: bias.map(CpuTensor::values), out };
            products(&self.pool, x.values(), x.rows(), &mut [part]);
        })
    }

    fn linear_group(&self, x: &CpuTensor, parts: &[(&PackedWeight, Option<&CpuTensor>)]) -> Result<Vec<CpuTensor>> {
        let mut outs = Vec::with_capacity(parts.len());
        for &(w, bias) in parts {
            checks::linear("linear_group", x.shape(), weight_shape(w), bias.map(CpuTensor::shape))?;
            outs.push(self.buffer("linear_group", x.rows() * w.rows())?);
        }
        let mut products_of: Vec<_> = parts
            .iter()
            .zip(&mut outs)
            .map(|(&(weight, bias), out)| ProductPart {
                weight,
                bias: bias.map(CpuTensor::values),
                out: out.values_mut(),
            })
            .collect();
        products(&self.pool, x.values(), x.rows(), &mut products_of);
        Ok(outs.into_iter().zip(parts).map(|(out, (w, _))| CpuTensor::new(out, x.rows(), w.rows())).collect())
    }

    fn conv1d(
        &self,
        x: &CpuTensor,
        w: &PackedWeight,
        bias: Option<&CpuTensor>,
        segments: &[Range<usize>],
        spec: Conv1dSpec,
    ) -> Result<CpuTensor> {
        let rows = checks::conv1d(x.shape(), weight_shape(w), bias.map(CpuTensor::shape), segments, spec)?;
        let mut out = self.buffer("conv1d", rows * w.rows())?;
        conv::conv1d(self, x, (w, bias), (segments, spec), out.values_mut())?;
        Ok(CpuTensor::new(out, rows, w.rows()))
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &CpuTensor, eps: f32) -> Result<CpuTensor> {
        checks::rms_norm("rms_norm", x.shape(), weight.shape())?;
        self.fill("rms_norm", x.shape(), |out| norms::rms_norm(self, x, weight, eps, out))
    }

    fn add_rms_norm(
        &self,
        x: &CpuTensor,
        residual: &CpuTensor,
        weight: &CpuTensor,
        eps: f32,
    ) -> Result<(CpuTensor, CpuTensor)> {
        checks::same("add_rms_norm", x.shape(), residual.shape())?;
        checks::rms_norm("add_rms_norm", x.shape(), weight.shape())?;
        let mut sum = self.buffer("add_rms_norm", x.values().len())?;
        let normed = self.fill("add_rms_norm", x.shape(), |normed| {
            norms::add_rms_norm(self, (x, residual), weight, eps, (sum.values_mut(), normed));
        })?;
        Ok((CpuTensor::new(sum, x.rows(), x.cols()), normed))
    }

    fn layer_norm(&self, x: &CpuTensor, weight: &CpuTensor, bias: Option<&CpuTensor>, eps: f32) -> Result<CpuTensor> {
        checks::layer_norm(x.shape(), weight.shape(), bias.map(CpuTensor::shape))?;
        self.fill("layer_norm", x.shape(), |out| norms::layer_norm(self, x, (weight, bias), eps, out))
    }

    fn add(&self, a: &CpuTensor, b: &CpuTensor) -> Result<CpuTensor> {
        checks::add(a.shape(), b.shape())?;
        self.fill("add", a.shape(), |out| pointwise::add(self, a, b, out))
    }

    fn activate(&self, x: &CpuTensor, f: Activation) -> Result<CpuTensor> {
        self.fill("activate", x.shape(), |out| pointwise::activate(self, f, x, out))
    }

    fn gated(&self, gate: &CpuTensor, up: &CpuTensor, f: Activation) -> Result<CpuTensor> {
        checks::same("gated", gate.shape(), up.shape())?;
        self.fill("gated", gate.shape(), |out| pointwise::gated(self, f, (gate, up), out))
    }

    fn rotary_table(&self, frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<CpuTensor> {
        let rows = checks::rotary_table(frequencies, positions, axes)?;
        let shape = (rows, 2 * frequencies.inverse.len());
        self.fill("rotary_table", shape, |out| positions::table(self, frequencies, positions, axes, out))
    }

    fn rotary(&self, x: &CpuTensor, table: &CpuTensor, head_dim: usize) -> Result<CpuTensor> {
        checks::rotary(x.shape(), table.shape(), head_dim)?;
        self.fill("rotary", x.shape(), |out| positions::rotary(self, x, table, head_dim, out))
    }

    fn attention(
        &self,
        q: &CpuTensor,
        k: &CpuTensor,
        v: &CpuTensor,
        segments: &[Segment],
        spec: &AttentionSpec,
    ) -> Result<CpuTensor> {
        checks::attention(q.shape(), k.shape(), v.shape(), segments, spec)?;
        let mut out = self.buffer("attention", q.values().len())?;
        attention::fresh(self, q, (k, v), (segments, spec), out.values_mut())?;
        Ok(CpuTensor::new(out, q.rows(), q.cols()))
    }

    fn pages(&self, layout: PageLayout, count: usize) -> Result<CpuPages> {
        CpuPages::new(layout, count)
    }

    fn kv_write(&self, pages: &mut CpuPages, k: &CpuTensor, v: &CpuTensor, slots: &[u32]) -> Result<()> {
        checks::kv_write(pages.layout(), pages.count(), k.shape(), v.shape(), slots)?;
        pages.write(k, v, slots);
        Ok(())
    }

    fn rotary_kv_write(
        &self,
        pages: &mut CpuPages,
        (q, k, v): (&CpuTensor, &CpuTensor, &CpuTensor),
        table: &CpuTensor,
        slots: &[u32],
    ) -> Result<CpuTensor> {
        let head_dim = pages.layout().head_dim;
        self.kv_write(pages, &self.rotary(k, table, head_dim)?, v, slots)?;
        self.rotary(q, table, head_dim)
    }

    fn paged_attention(
        &self,
        q: &CpuTensor,
        pages: &CpuPages,
        sequences: &[PagedSequence<'_>],
        spec: &AttentionSpec,
    ) -> Result<CpuTensor> {
        checks::paged_attention(q.shape(), (pages.layout(), pages.count()), sequences, spec)?;
        let mut out = self.buffer("paged_attention", q.values().len())?;
        attention::paged(self, q, pages, (sequences, spec), out.values_mut())?;
        Ok(CpuTensor::new(out, q.rows(), q.cols()))
    }

    fn gather_rows(&self, x: &CpuTensor, rows: &[u32]) -> Result<CpuTensor> {
        checks::gather_rows(x.shape(), rows)?;
        self.fill("gather_rows", (rows.len(), x.cols()), |out| rows::gather(self, x, rows, out))
    }

    fn scatter_rows(&self, x: &CpuTensor, rows: &[u32], values: &CpuTensor) -> Result<CpuTensor> {
        checks::scatter_rows(x.shape(), rows, values.shape())?;
        self.fill("scatter_rows", x.shape(), |out| rows::scatter(x, rows, values, out))
    }

    fn concat_rows(&self, parts: &[&CpuTensor]) -> Result<CpuTensor> {
        let shape = checks::concat_rows(&parts.iter().map(|part| part.shape()).collect::<Vec<_>>())?;
        self.fill("concat_rows", shape, |out| rows::concat(parts, out))
    }

    fn reshape(&self, x: &CpuTensor, rows: usize, cols: usize) -> Result<CpuTensor> {
        checks::reshape(x.shape(), rows, cols)?;
        Ok(x.reshaped(rows, cols))
    }

    fn mean_rows(&self, x: &CpuTensor, segments: &[Range<usize>], n: usize) -> Result<CpuTensor> {
        let rows = checks::mean_rows(x.shape(), segments, n)?;
        self.fill("mean_rows", (rows, x.cols()), |out| rows::mean(x, segments, n, out))
    }

    fn sample(&self, logits: &CpuTensor, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
        checks::sample(logits.shape(), rows)?;
        sample::sample(self, logits, rows)
    }
}
