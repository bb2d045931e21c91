//! The naive reference: every operation of [`Backend`] as its definition reads, one element at a time, in `f64`,
//! rounded to `f32` where an operation ends. Slow on purpose; the parity suite holds every backend to it.

mod attention;
pub(crate) mod functions;
mod rows;
pub(crate) mod sample;

use std::ops::Range;

pub(crate) use self::sample as sampling;

use crate::backend::Backend;
use crate::checks;
use crate::error::Result;
use crate::quant;
use crate::shapes::{
    Activation, AttentionSpec, Conv1dSpec, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Sampled, Segment,
};
use crate::weights::WeightData;

/// The reference as a [`Backend`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

/// A row-major matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    /// A matrix whose element `(row, column)` is `f(row, column)`, rounded to `f32`.
    fn from_fn(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        let values = (0..rows * cols).map(|i| f(i / cols, i % cols) as f32).collect();
        Self { rows, cols, values }
    }

    fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        f64::from(self.values[row * self.cols + col])
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }
}

/// Keys and values of one layer, `[page][kv_head][slot][head_dim]`.
#[derive(Debug, Clone)]
pub struct ReferencePages {
    layout: PageLayout,
    count: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl ReferencePages {
    /// Where the head's element 0 of a slot lies.
    fn offset(&self, slot: usize, head: usize) -> usize {
        let PageLayout { page_tokens, kv_heads, head_dim } = self.layout;
        let (page, offset) = (slot / page_tokens, slot % page_tokens);
        ((page * kv_heads + head) * page_tokens + offset) * head_dim
    }
}

fn bias_at(bias: Option<&Matrix>, col: usize) -> f64 {
    bias.map_or(0.0, |b| b.at(0, col))
}

impl Backend for Reference {
    type Tensor = Matrix;
    type Weight = Matrix;
    type Pages = ReferencePages;

    fn describe(&self) -> String {
        "reference (naive, f64)".into()
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Matrix> {
        checks::upload(rows, cols, values.len())?;
        Ok(Matrix { rows, cols, values: values.to_vec() })
    }

    fn download(&self, x: &Matrix) -> Result<Vec<f32>> {
        Ok(x.values.clone())
    }

    fn shape(&self, x: &Matrix) -> (usize, usize) {
        x.shape()
    }

    fn weight(&self, data: &WeightData<'_>) -> Result<Matrix> {
        checks::weight(data)?;
        Ok(Matrix { rows: data.rows, cols: data.cols, values: quant::dequantize(data) })
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&self, table: &Matrix, ids: &[u32]) -> Result<Matrix> {
        checks::embed(table.shape(), ids)?;
        Ok(Matrix::from_fn(ids.len(), table.cols, |row, col| table.at(ids[row] as usize, col)))
    }

    fn linear(&self, x: &Matrix, w: &Matrix, bias: Option<&Matrix>) -> Result<Matrix> {
        checks::linear("linear", x.shape(), w.shape(), bias.map(Matrix::shape))?;
        Ok(Matrix::from_fn(x.rows, w.rows, |row, col| {
            let product: f64 = (0..x.cols).map(|i| x.at(row, i) * w.at(col, i)).sum();
            product + bias_at(bias, col)
        }))
    }

    fn linear_group(&self, x: &Matrix, parts: &[(&Matrix, Option<&Matrix>)]) -> Result<Vec<Matrix>> {
        parts.iter().map(|&(w, bias)| self.linear(x, w, bias)).collect()
    }

    fn conv1d(
        &self,
        x: &Matrix,
        w: &Matrix,
        bias: Option<&Matrix>,
        segments: &[Range<usize>],
        spec: Conv1dSpec,
    ) -> Result<Matrix> {
        checks::conv1d(x.shape(), w.shape(), bias.map(Matrix::shape), segments, spec)?;
        Ok(rows::conv1d(x, w, bias, segments, spec))
    }

    fn rms_norm(&self, x: &Matrix, weight: &Matrix, eps: f32) -> Result<Matrix> {
        checks::rms_norm("rms_norm", x.shape(), weight.shape())?;
        let group = weight.cols;
        Ok(Matrix::from_fn(x.rows, x.cols, |row, col| {
            let start = col / group * group;
            let squares: f64 = (start..start + group).map(|i| x.at(row, i).powi(2)).sum();
            x.at(row, col) / (squares / group as f64 + f64::from(eps)).sqrt() * weight.at(0, col - start)
        }))
    }

    fn add_rms_norm(&self, x: &Matrix, residual: &Matrix, weight: &Matrix, eps: f32) -> Result<(Matrix, Matrix)> {
        checks::same("add_rms_norm", x.shape(), residual.shape())?;
        checks::rms_norm("add_rms_norm", x.shape(), weight.shape())?;
        let sum = self.add(x, residual)?;
        let normed = self.rms_norm(&sum, weight, eps)?;
        Ok((sum, normed))
    }

    fn layer_norm(&self, x: &Matrix, weight: &Matrix, bias: Option<&Matrix>, eps: f32) -> Result<Matrix> {
        checks::layer_norm(x.shape(), weight.shape(), bias.map(Matrix::shape))?;
        let n = x.cols as f64;
        Ok(Matrix::from_fn(x.rows, x.cols, |row, col| {
            let mean = (0..x.cols).map(|i| x.at(row, i)).sum::<f64>() / n;
            let variance = (0..x.cols).map(|i| (x.at(row, i) - mean).powi(2)).sum::<f64>() / n;
            (x.at(row, col) - mean) / (variance + f64::from(eps)).sqrt() * weight.at(0, col) + bias_at(bias, col)
        }))
    }

    fn add(&self, a: &Matrix, b: &Matrix) -> Result<Matrix> {
        checks::add(a.shape(), b.shape())?;
        Ok(Matrix::from_fn(a.rows, a.cols, |row, col| a.at(row, col) + b.at(if b.rows == 1 { 0 } else { row }, col)))
    }

    fn activate(&self, x: &Matrix, f: Activation) -> Result<Matrix> {
        Ok(Matrix::from_fn(x.rows, x.cols, |row, col| functions::activation(f, x.at(row, col))))
    }

    fn gated(&self, gate: &Matrix, up: &Matrix, f: Activation) -> Result<Matrix> {
        checks::same("gated", gate.shape(), up.shape())?;
        Ok(Matrix::from_fn(gate.rows, gate.cols, |row, col| {
            functions::activation(f, gate.at(row, col)) * up.at(row, col)
        }))
    }

    fn rotary_table(&self, frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<Matrix> {
        let rows = checks::rotary_table(frequencies, positions, axes)?;
        let pairs = frequencies.inverse.len();
        Ok(Matrix::from_fn(rows, 2 * pairs, |row, col| {
            let pair = col % pairs;
            // The angle is rounded to f32: the published models were trained with it, and at large positions it matters.
            let position = positions[row * axes + frequencies.axis[pair] as usize] as f32;
            let angle = f64::from(position * frequencies.inverse[pair]);
            let turned = if col < pairs { angle.cos() } else { angle.sin() };
            turned * f64::from(frequencies.attention_factor)
        }))
    }

    fn rotary(&self, x: &Matrix, table: &Matrix, head_dim: usize) -> Result<Matrix> {
        let pairs = checks::rotary(x.shape(), table.shape(), head_dim)?;
        Ok(Matrix::from_fn(x.rows, x.cols, |row, col| {
            let i = col % head_dim;
            let (cos, sin) =
                if i < 2 * pairs { (table.at(row, i % pairs), table.at(row, pairs + i % pairs)) } else { (1.0, 0.0) };
            let here = x.at(row, col) * cos;
            match i {
                _ if i >= 2 * pairs => here,
                _ if i < pairs => here - x.at(row, col + pairs) * sin,
                _ => here + x.at(row, col - pairs) * sin,
            }
        }))
    }

    fn attention(
        &self,
        q: &Matrix,
        k: &Matrix,
        v: &Matrix,
        segments: &[Segment],
        spec: &AttentionSpec,
    ) -> Result<Matrix> {
        checks::attention(q.shape(), k.shape(), v.shape(), segments, spec)?;
        Ok(attention::fresh(q, k, v, segments, spec))
    }

    fn pages(&self, layout: PageLayout, count: usize) -> Result<ReferencePages> {
        let elements = checks::pages(layout, count)?;
        Ok(ReferencePages { layout, count, keys: vec![0.0; elements], values: vec![0.0; elements] })
    }

    fn kv_write(&self, pages: &mut ReferencePages, k: &Matrix, v: &Matrix, slots: &[u32]) -> Result<()> {
        checks::kv_write(pages.layout, pages.count, k.shape(), v.shape(), slots)?;
        let d = pages.layout.head_dim;
        for (row, &slot) in slots.iter().enumerate() {
            for head in 0..pages.layout.kv_heads {
                let to = pages.offset(slot as usize, head);
                let columns = head * d..(head + 1) * d;
                pages.keys[to..to + d].copy_from_slice(&k.row(row)[columns.clone()]);
                pages.values[to..to + d].copy_from_slice(&v.row(row)[columns]);
            }
        }
        Ok(())
    }

    fn rotary_kv_write(
        &self,
        pages: &mut ReferencePages,
        (q, k, v): (&Matrix, &Matrix, &Matrix),
        table: &Matrix,
        slots: &[u32],
    ) -> Result<Matrix> {
        let head_dim = pages.layout.head_dim;
        self.kv_write(pages, &self.rotary(k, table, head_dim)?, v, slots)?;
        self.rotary(q, table, head_dim)
    }

    fn paged_attention(
        &self,
        q: &Matrix,
        pages: &ReferencePages,
        sequences: &[PagedSequence<'_>],
        spec: &AttentionSpec,
    ) -> Result<Matrix> {
        checks::paged_attention(q.shape(), (pages.layout, pages.count), sequences, spec)?;
        Ok(attention::paged(q, pages, sequences, spec))
    }

    fn gather_rows(&self, x: &Matrix, rows: &[u32]) -> Result<Matrix> {
        checks::gather_rows(x.shape(), rows)?;
        Ok(Matrix::from_fn(rows.len(), x.cols, |row, col| x.at(rows[row] as usize, col)))
    }

    fn scatter_rows(&self, x: &Matrix, rows: &[u32], values: &Matrix) -> Result<Matrix> {
        checks::scatter_rows(x.shape(), rows, values.shape())?;
        Ok(Matrix::from_fn(x.rows, x.cols, |row, col| match rows.iter().rposition(|&r| r as usize == row) {
            Some(i) => values.at(i, col),
            None => x.at(row, col),
        }))
    }

    fn concat_rows(&self, parts: &[&Matrix]) -> Result<Matrix> {
        let (rows, cols) = checks::concat_rows(&parts.iter().map(|part| part.shape()).collect::<Vec<_>>())?;
        Ok(Matrix { rows, cols, values: parts.iter().flat_map(|part| part.values.iter().copied()).collect() })
    }

    fn reshape(&self, x: &Matrix, rows: usize, cols: usize) -> Result<Matrix> {
        checks::reshape(x.shape(), rows, cols)?;
        Ok(Matrix { rows, cols, values: x.values.clone() })
    }

    fn mean_rows(&self, x: &Matrix, segments: &[Range<usize>], n: usize) -> Result<Matrix> {
        checks::mean_rows(x.shape(), segments, n)?;
        Ok(rows::mean_rows(x, segments, n))
    }

    fn sample(&self, logits: &Matrix, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
        checks::sample(logits.shape(), rows)?;
        rows.iter().enumerate().map(|(i, row)| sample::sample(logits.row(i), row)).collect()
    }
}
