//! Joins the trait to kernels: operands are checked, a result is made, a kernel is launched. What takes more than that has
//! a file of its own.

use std::ops::Range;

use super::device::{Block, Device};
use super::launch::Kernel;
use super::{Activations, CudaBackend, CudaPages, CudaTensor, CudaWeight, attention, products, sample};
use crate::backend::Backend;
use crate::checks;
use crate::error::{KernelError, Result};
use crate::shapes::{
    Activation, AttentionSpec, Conv1dSpec, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Sampled, Segment,
};
use crate::weights::WeightData;

const fn function(f: Activation) -> u32 {
    match f {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::QuickGelu => 3,
        Activation::Relu => 4,
    }
}

/// Threads for a group of this many elements: by its size alone, since the order of additions depends on it.
fn norm_threads(group: usize) -> u32 {
    (group.div_ceil(8).next_multiple_of(32)).clamp(32, 512) as u32
}

impl Backend for CudaBackend {
    type Tensor = CudaTensor;
    type Weight = CudaWeight;
    type Pages = CudaPages;

    fn describe(&self) -> String {
        let Device { name, chip, multiprocessors, .. } = &*self.inner.device;
        format!("cuda ({name}, {chip}, {multiprocessors} multiprocessors, {:?})", self.inner.activations).to_lowercase()
    }

    fn free_memory(&self) -> Result<Option<usize>> {
        Ok(Some(self.inner.device.memory()?.0))
    }

    fn kv_element_bytes(&self) -> usize {
        self.inner.activations.bytes()
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<CudaTensor> {
        checks::upload(rows, cols, values.len())?;
        let out = self.result("upload", (rows, cols))?;
        let mut staging = self.inner.staging.borrow_mut();
        let mut send = |to: &Block| {
            staging.bulk(to, size_of_val(values), |at, piece| {
                for (to, value) in piece.as_chunks_mut::<4>().0.iter_mut().zip(&values[at / 4..]) {
                    *to = value.to_le_bytes();
                }
            })
        };
        match self.inner.activations {
            Activations::F32 => send(out.block())?,
            Activations::Bf16 => {
                let wide = self.inner.device.block("upload", size_of_val(values))?;
                send(&wide)?;
                let launch = self.inner.kernels.eights(Kernel::Narrow, out.count()).with(out.address());
                launch.with(wide.address()).with(out.count() as u64).go("upload")?;
            }
        }
        Ok(out)
    }

    fn download(&self, x: &CudaTensor) -> Result<Vec<f32>> {
        self.fetch("download", x, 0..x.rows())
    }

    fn shape(&self, x: &CudaTensor) -> (usize, usize) {
        x.shape()
    }

    fn weight(&self, data: &WeightData<'_>) -> Result<CudaWeight> {
        checks::weight(data)?;
        let inner = &self.inner;
        let mut weight = CudaWeight::new(&inner.device, &mut inner.staging.borrow_mut(), data, inner.activations)?;
        products::align(self, &mut weight)?;
        Ok(weight)
    }

    fn synchronize(&self) -> Result<()> {
        self.inner.device.synchronize("synchronize")
    }

    fn embed(&self, table: &CudaWeight, ids: &[u32]) -> Result<CudaTensor> {
        checks::embed(table.shape(), ids)?;
        let out = self.result("embed", (ids.len(), table.shape().1))?;
        let numbers = self.numbers("embed", ids)?;
        let launch = self.inner.kernels.each(Kernel::Embed, out.count()).with(out.address()).with(table.parameter());
        launch.with(numbers.address).with(out.count() as u64).go("embed")?;
        Ok(out)
    }

    fn linear(&self, x: &CudaTensor, w: &CudaWeight, bias: Option<&CudaTensor>) -> Result<CudaTensor> {
        checks::linear("linear", x.shape(), w.shape(), bias.map(CudaTensor::shape))?;
        self.own("linear", &[x])?;
        let mut outs = products::products(self, "linear", x, &[(w, bias)], self.inner.activations)?;
        outs.pop().ok_or_else(|| KernelError::Device("linear: no result".into()))
    }

    fn logits(&self, x: &CudaTensor, w: &CudaWeight) -> Result<CudaTensor> {
        checks::linear("linear", x.shape(), w.shape(), None)?;
        self.own("linear", &[x])?;
        let mut outs = products::products(self, "linear", x, &[(w, None)], Activations::F32)?;
        outs.pop().ok_or_else(|| KernelError::Device("linear: no result".into()))
    }

    fn linear_group(&self, x: &CudaTensor, parts: &[(&CudaWeight, Option<&CudaTensor>)]) -> Result<Vec<CudaTensor>> {
        self.own("linear_group", &[x])?;
        for (w, bias) in parts {
            checks::linear("linear_group", x.shape(), w.shape(), bias.map(CudaTensor::shape))?;
        }
        products::products(self, "linear_group", x, parts, self.inner.activations)
    }

    fn conv1d(
        &self,
        x: &CudaTensor,
        w: &CudaWeight,
        bias: Option<&CudaTensor>,
        segments: &[Range<usize>],
        spec: Conv1dSpec,
    ) -> Result<CudaTensor> {
        let rows = checks::conv1d(x.shape(), w.shape(), bias.map(CudaTensor::shape), segments, spec)?;
        self.own("conv1d", &[x])?;
        // First input row (which may lie before the segment), start and end of the segment, for every output row.
        let mut frames: Vec<u32> = Vec::with_capacity(3 * rows);
        for s in segments {
            for frame in 0..checks::conv1d_frames(s.len(), spec).unwrap_or(0) {
                let first = (s.start + frame * spec.stride) as i32 - spec.padding as i32;
                frames.extend([first as u32, s.start as u32, s.end as u32]);
            }
        }
        let numbers = self.numbers("conv1d", &frames)?;
        let windows = self.result("conv1d", (rows, w.shape().1))?;
        let launch = self.inner.kernels.each(Kernel::Unroll, windows.count()).with(windows.address()).with(x.address());
        let launch = launch.with(numbers.address).with(x.cols() as u32).with(w.shape().1 as u32);
        launch.with(windows.count() as u64).go("conv1d")?;
        self.linear(&windows, w, bias)
    }

    fn rms_norm(&self, x: &CudaTensor, weight: &CudaTensor, eps: f32) -> Result<CudaTensor> {
        checks::rms_norm("rms_norm", x.shape(), weight.shape())?;
        self.own("rms_norm", &[x, weight])?;
        let (out, group) = (self.result("rms_norm", x.shape())?, weight.cols());
        let launch = self.inner.kernels.launch(Kernel::RmsNorm).grid([(x.count() / group) as u32, 1, 1]);
        let launch = launch.block(norm_threads(group), 0).with(out.address()).with(x.address());
        launch.with(weight.address()).with(group as u32).with(eps).go("rms_norm")?;
        Ok(out)
    }

    fn add_rms_norm(
        &self,
        x: &CudaTensor,
        residual: &CudaTensor,
        weight: &CudaTensor,
        eps: f32,
    ) -> Result<(CudaTensor, CudaTensor)> {
        let op = "add_rms_norm";
        checks::same(op, x.shape(), residual.shape())?;
        checks::rms_norm(op, x.shape(), weight.shape())?;
        self.own(op, &[x, residual, weight])?;
        let (sum, out, group) = (self.result(op, x.shape())?, self.result(op, x.shape())?, weight.cols());
        let launch = self.inner.kernels.launch(Kernel::AddRmsNorm).grid([(x.count() / group) as u32, 1, 1]);
        let launch = launch.block(norm_threads(group), 0).with(out.address()).with(sum.address()).with(x.address());
        launch.with(residual.address()).with(weight.address()).with(group as u32).with(eps).go(op)?;
        Ok((sum, out))
    }

    fn layer_norm(
        &self,
        x: &CudaTensor,
        weight: &CudaTensor,
        bias: Option<&CudaTensor>,
        eps: f32,
    ) -> Result<CudaTensor> {
        checks::layer_norm(x.shape(), weight.shape(), bias.map(CudaTensor::shape))?;
        self.own("layer_norm", &[x, weight])?;
        let out = self.result("layer_norm", x.shape())?;
        let launch = self.inner.kernels.launch(Kernel::LayerNorm).grid([x.rows() as u32, 1, 1]);
        let launch =
            launch.block(norm_threads(x.cols()), 0).with(out.address()).with(x.address()).with(weight.address());
        launch.with(bias.map_or(0, CudaTensor::address)).with(x.cols() as u32).with(eps).go("layer_norm")?;
        Ok(out)
    }

    fn add(&self, a: &CudaTensor, b: &CudaTensor) -> Result<CudaTensor> {
        checks::add(a.shape(), b.shape())?;
        self.own("add", &[a, b])?;
        let out = self.result("add", a.shape())?;
        let launch = self.inner.kernels.eights(Kernel::Add, out.count()).with(out.address()).with(a.address());
        launch.with(b.address()).with(b.count() as u64).with(out.count() as u64).go("add")?;
        Ok(out)
    }

    fn activate(&self, x: &CudaTensor, f: Activation) -> Result<CudaTensor> {
        self.own("activate", &[x])?;
        let out = self.result("activate", x.shape())?;
        let launch = self.inner.kernels.eights(Kernel::Activate, out.count()).with(out.address()).with(x.address());
        launch.with(function(f)).with(out.count() as u64).go("activate")?;
        Ok(out)
    }

    fn gated(&self, gate: &CudaTensor, up: &CudaTensor, f: Activation) -> Result<CudaTensor> {
        checks::same("gated", gate.shape(), up.shape())?;
        self.own("gated", &[gate, up])?;
        let out = self.result("gated", gate.shape())?;
        let launch = self.inner.kernels.eights(Kernel::Gated, out.count()).with(out.address()).with(gate.address());
        launch.with(up.address()).with(function(f)).with(out.count() as u64).go("gated")?;
        Ok(out)
    }

    fn rotary_table(&self, frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<CudaTensor> {
        let op = "rotary_table";
        let rows = checks::rotary_table(frequencies, positions, axes)?;
        let pairs = frequencies.inverse.len();
        let out = self.tensor(op, (rows, 2 * pairs), Activations::F32)?;
        let mut numbers: Vec<u32> = frequencies.inverse.iter().map(|f| f.to_bits()).collect();
        numbers.extend(frequencies.axis.iter().map(|&axis| u32::from(axis)));
        numbers.extend(positions);
        let sent = self.numbers(op, &numbers)?;
        let launch = self.inner.kernels.each(Kernel::RotaryTable, rows * pairs).with(out.address());
        let launch =
            launch.with(sent.address + 8 * pairs as u64).with(sent.address).with(sent.address + 4 * pairs as u64);
        let launch = launch.with(axes as u32).with(pairs as u32).with(frequencies.attention_factor);
        launch.with((rows * pairs) as u64).go(op)?;
        Ok(out)
    }

    fn rotary(&self, x: &CudaTensor, table: &CudaTensor, head_dim: usize) -> Result<CudaTensor> {
        let pairs = checks::rotary(x.shape(), table.shape(), head_dim)?;
        let table = self.table("rotary", table)?;
        self.own("rotary", &[x])?;
        let out = self.result("rotary", x.shape())?;
        let launch = self.inner.kernels.launch(Kernel::Rotary).grid([x.rows() as u32, 1, 1]).with(out.address());
        let launch = launch.with(x.address()).with(table).with(head_dim as u32).with(pairs as u32);
        launch.with(x.cols() as u32).go("rotary")?;
        Ok(out)
    }

    fn attention(
        &self,
        q: &CudaTensor,
        k: &CudaTensor,
        v: &CudaTensor,
        segments: &[Segment],
        spec: &AttentionSpec,
    ) -> Result<CudaTensor> {
        checks::attention(q.shape(), k.shape(), v.shape(), segments, spec)?;
        self.own("attention", &[q, k, v])?;
        attention::fresh(self, q, (k, v), segments, spec)
    }

    fn pages(&self, layout: PageLayout, count: usize) -> Result<CudaPages> {
        let bytes = checks::pages(layout, count)?.checked_mul(self.inner.activations.bytes());
        let bytes = bytes.ok_or(KernelError::OutOfMemory { op: "pages", bytes: usize::MAX })?;
        let block = || {
            let block = self.inner.device.lasting("pages", bytes)?;
            block.zero("pages", bytes)?;
            Ok(block)
        };
        Ok(CudaPages { keys: block()?, values: block()?, layout, count })
    }

    fn kv_write(&self, pages: &mut CudaPages, k: &CudaTensor, v: &CudaTensor, slots: &[u32]) -> Result<()> {
        checks::kv_write(pages.layout, pages.count, k.shape(), v.shape(), slots)?;
        self.own("kv_write", &[k, v])?;
        let PageLayout { page_tokens, kv_heads, head_dim } = pages.layout;
        let numbers = self.numbers("kv_write", slots)?;
        let launch = self.inner.kernels.each(Kernel::KvWrite, k.count()).with(pages.keys.address());
        let launch = launch.with(pages.values.address()).with(k.address()).with(v.address()).with(numbers.address);
        let launch = launch.with(page_tokens as u32).with(kv_heads as u32).with(head_dim as u32);
        launch.with(k.count() as u64).go("kv_write")
    }

    fn rotary_kv_write(
        &self,
        pages: &mut CudaPages,
        (q, k, v): (&CudaTensor, &CudaTensor, &CudaTensor),
        table: &CudaTensor,
        slots: &[u32],
    ) -> Result<CudaTensor> {
        let op = "rotary_kv_write";
        let PageLayout { page_tokens, kv_heads, head_dim } = pages.layout;
        checks::kv_write(pages.layout, pages.count, k.shape(), v.shape(), slots)?;
        let pairs = checks::rotary(q.shape(), table.shape(), head_dim)?;
        checks::rotary(k.shape(), table.shape(), head_dim)?;
        let table = self.table(op, table)?;
        self.own(op, &[q, k, v])?;
        let out = self.result(op, q.shape())?;
        let numbers = self.numbers(op, slots)?;
        let count = q.count() + 2 * k.count();
        let launch = self.inner.kernels.each(Kernel::RotaryKvWrite, count).with(out.address());
        let launch = launch.with(pages.keys.address()).with(pages.values.address()).with(q.address()).with(k.address());
        let launch = launch.with(v.address()).with(table).with(numbers.address).with(page_tokens as u32);
        let launch = launch.with((q.cols() / head_dim) as u32).with(kv_heads as u32).with(head_dim as u32);
        launch.with(pairs as u32).with(count as u64).go(op)?;
        Ok(out)
    }

    fn paged_attention(
        &self,
        q: &CudaTensor,
        pages: &CudaPages,
        sequences: &[PagedSequence<'_>],
        spec: &AttentionSpec,
    ) -> Result<CudaTensor> {
        checks::paged_attention(q.shape(), (pages.layout, pages.count), sequences, spec)?;
        self.own("paged_attention", &[q])?;
        attention::paged(self, q, pages, sequences, spec)
    }

    fn gather_rows(&self, x: &CudaTensor, rows: &[u32]) -> Result<CudaTensor> {
        checks::gather_rows(x.shape(), rows)?;
        let out = self.tensor("gather_rows", (rows.len(), x.cols()), x.elements())?;
        self.move_rows("gather_rows", [Kernel::GatherWide, Kernel::GatherNarrow], &out, x, rows)?;
        Ok(out)
    }

    fn scatter_rows(&self, x: &CudaTensor, rows: &[u32], values: &CudaTensor) -> Result<CudaTensor> {
        let op = "scatter_rows";
        checks::scatter_rows(x.shape(), rows, values.shape())?;
        self.own(op, &[x, values])?;
        let out = self.result(op, x.shape())?;
        out.block().copy_from(op, 0, x.address(), x.bytes())?;
        let increasing = rows.windows(2).all(|pair| pair[0] < pair[1]);
        let kernels = [Kernel::ScatterWide, Kernel::ScatterNarrow];
        if increasing {
            self.move_rows(op, kernels, &out, values, rows)?;
            return Ok(out);
        }
        // Of equal numbers the last one counts: in any other order two threads could race for a row.
        let last: std::collections::BTreeMap<u32, u32> = rows.iter().zip(0u32..).map(|(&row, i)| (row, i)).collect();
        let (places, chosen): (Vec<u32>, Vec<u32>) = last.into_iter().unzip();
        let values = self.gather_rows(values, &chosen)?;
        self.move_rows(op, kernels, &out, &values, &places)?;
        Ok(out)
    }

    fn concat_rows(&self, parts: &[&CudaTensor]) -> Result<CudaTensor> {
        let shape = checks::concat_rows(&parts.iter().map(|part| part.shape()).collect::<Vec<_>>())?;
        self.own("concat_rows", parts)?;
        let out = self.result("concat_rows", shape)?;
        let mut at = 0;
        for part in parts {
            out.block().copy_from("concat_rows", at, part.address(), part.bytes())?;
            at += part.bytes();
        }
        Ok(out)
    }

    fn reshape(&self, x: &CudaTensor, rows: usize, cols: usize) -> Result<CudaTensor> {
        checks::reshape(x.shape(), rows, cols)?;
        Ok(x.reshaped(rows, cols))
    }

    fn mean_rows(&self, x: &CudaTensor, segments: &[Range<usize>], n: usize) -> Result<CudaTensor> {
        let rows = checks::mean_rows(x.shape(), segments, n)?;
        self.own("mean_rows", &[x])?;
        let out = self.result("mean_rows", (rows, x.cols()))?;
        let firsts: Vec<u32> =
            segments.iter().flat_map(|s| (0..s.len() / n).map(move |i| (s.start + i * n) as u32)).collect();
        let numbers = self.numbers("mean_rows", &firsts)?;
        let launch = self.inner.kernels.each(Kernel::MeanRows, out.count()).with(out.address()).with(x.address());
        let launch = launch.with(numbers.address).with(n as u32).with(x.cols() as u32);
        launch.with(out.count() as u64).go("mean_rows")?;
        Ok(out)
    }

    fn sample(&self, logits: &CudaTensor, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
        checks::sample(logits.shape(), rows)?;
        sample::sample(self, logits, rows)
    }
}

impl CudaBackend {
    /// Address of a rotary table, which is float32. A table that was uploaded as activations is refused.
    fn table(&self, op: &'static str, table: &CudaTensor) -> Result<u64> {
        match table.elements() {
            Activations::F32 => Ok(table.address()),
            Activations::Bf16 => {
                Err(KernelError::Unsupported { op, detail: "the table was not made by rotary_table".into() })
            }
        }
    }
}
