//! The operations that model code is written in.
//!
//! A tensor is a matrix: rows are tokens, patches or frames (sequences of a batch lie one after another, without
//! padding), columns are features; heads lie side by side in the columns. Element type of activations belongs to the
//! backend (float32 on the CPU).
//!
//! Contract of every implementation, checked by the parity suite:
//! * equal to the naive reference in [`crate::reference`] within the tolerance stated at each operation;
//! * **row invariance**: row `i` of a result depends on row `i` of the row-wise operands alone, bit for bit, whatever
//!   the number of rows; an attention row depends on its own query and its own visible keys alone, however the prompt
//!   was chunked. This is what makes a request's tokens independent of the batch it runs in.

use crate::error::Result;
use crate::shapes::{
    Activation, AttentionSpec, Conv1dSpec, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Sampled, Segment,
};
use crate::weights::WeightData;

/// A device that can run a model. Cloning gives another handle to the same device.
pub trait Backend: Clone + 'static {
    /// A matrix of activations. Cheap to clone; never changes once made.
    type Tensor: Clone;
    /// A matrix `[outputs, inputs]` prepared for products, dense or quantised.
    type Weight;
    /// The key/value pages of one layer.
    type Pages;

    /// Name for people and logs, such as `cpu (2 threads, avx512f)`.
    fn describe(&self) -> String;

    // ---- host and device -------------------------------------------------------------------------------------------

    /// Copies row-major values to the device.
    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Self::Tensor>;
    /// Copies a tensor to the host, row-major; waits for the work it depends on.
    fn download(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Bytes of device memory that nobody uses; `None` where it is the machine's memory.
    fn free_memory(&self) -> Result<Option<usize>> {
        Ok(None)
    }
    /// Bytes of one element of keys or values in pages.
    fn kv_element_bytes(&self) -> usize {
        size_of::<f32>()
    }
    /// `(rows, columns)`.
    fn shape(&self, x: &Self::Tensor) -> (usize, usize);
    /// Prepares a weight for [`Backend::linear`], [`Backend::embed`] and [`Backend::conv1d`].
    fn weight(&self, data: &WeightData<'_>) -> Result<Self::Weight>;
    /// Waits until everything launched is done.
    fn synchronize(&self) -> Result<()>;

    // ---- products --------------------------------------------------------------------------------------------------

    /// Rows of a table: `[ids, columns]`.
    fn embed(&self, table: &Self::Weight, ids: &[u32]) -> Result<Self::Tensor>;
    /// `x W^T + b`: `[rows, inputs]` to `[rows, outputs]`. `bias` is `[1, outputs]`.
    fn linear(&self, x: &Self::Tensor, w: &Self::Weight, bias: Option<&Self::Tensor>) -> Result<Self::Tensor>;
    /// `x W^T` for [`Backend::sample`]: like [`Backend::linear`], in float32 whatever activations are.
    fn logits(&self, x: &Self::Tensor, w: &Self::Weight) -> Result<Self::Tensor> {
        self.linear(x, w, None)
    }
    /// Several products of the same input in one launch (query, key, value; gate, up).
    fn linear_group(
        &self,
        x: &Self::Tensor,
        parts: &[(&Self::Weight, Option<&Self::Tensor>)],
    ) -> Result<Vec<Self::Tensor>>;
    /// 1-D convolution of each segment of rows on its own, zero padded. `w` is `[outputs, kernel * channels]` with the
    /// kernel position major: column `t * channels + c`. Segments of `n` rows give `(n + 2 padding - kernel) / stride + 1`
    /// rows each, one after another.
    fn conv1d(
        &self,
        x: &Self::Tensor,
        w: &Self::Weight,
        bias: Option<&Self::Tensor>,
        segments: &[std::ops::Range<usize>],
        spec: Conv1dSpec,
    ) -> Result<Self::Tensor>;

    // ---- norms and pointwise ---------------------------------------------------------------------------------------

    /// `x / sqrt(mean(x^2) + eps) * weight` over groups of `weight.cols` columns (the whole row, or each head).
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Tensor, eps: f32) -> Result<Self::Tensor>;
    /// `sum = x + residual`, and `rms_norm(sum)`; returns `(sum, normed)`.
    fn add_rms_norm(
        &self,
        x: &Self::Tensor,
        residual: &Self::Tensor,
        weight: &Self::Tensor,
        eps: f32,
    ) -> Result<(Self::Tensor, Self::Tensor)>;
    /// Layer norm over the row, biased variance.
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Tensor,
        bias: Option<&Self::Tensor>,
        eps: f32,
    ) -> Result<Self::Tensor>;
    /// `a + b`; `b` may have one row, which is added to every row of `a`.
    fn add(&self, a: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// `f(x)`.
    fn activate(&self, x: &Self::Tensor, f: Activation) -> Result<Self::Tensor>;
    /// `f(gate) * up`.
    fn gated(&self, gate: &Self::Tensor, up: &Self::Tensor, f: Activation) -> Result<Self::Tensor>;

    // ---- positions -------------------------------------------------------------------------------------------------

    /// Cosines and sines of every row, for [`Backend::rotary`]: `[rows, 2 * pairs]`, cosines first. `positions` holds
    /// `axes` components a row.
    fn rotary_table(&self, frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<Self::Tensor>;
    /// Turns the first `2 * pairs` elements of each head (rotate-half layout); later elements pass through.
    fn rotary(&self, x: &Self::Tensor, table: &Self::Tensor, head_dim: usize) -> Result<Self::Tensor>;

    // ---- attention -------------------------------------------------------------------------------------------------

    /// Softmax attention over fresh keys; segments are independent and cover every query row once.
    fn attention(
        &self,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        segments: &[Segment],
        spec: &AttentionSpec,
    ) -> Result<Self::Tensor>;
    /// Allocates `count` zeroed pages.
    fn pages(&self, layout: PageLayout, count: usize) -> Result<Self::Pages>;
    /// Stores row `i` of keys and values in slot `slots[i]` (`page * page_tokens + offset`).
    fn kv_write(&self, pages: &mut Self::Pages, k: &Self::Tensor, v: &Self::Tensor, slots: &[u32]) -> Result<()>;
    /// [`Backend::rotary`] of queries and keys and [`Backend::kv_write`] of keys and values (`qkv` in this order), in one launch where a
    /// launch costs something; returns the queries. The head size is the pages'.
    fn rotary_kv_write(
        &self,
        pages: &mut Self::Pages,
        qkv: (&Self::Tensor, &Self::Tensor, &Self::Tensor),
        table: &Self::Tensor,
        slots: &[u32],
    ) -> Result<Self::Tensor>;
    /// Softmax attention over pages; sequences cover every query row once, in order.
    fn paged_attention(
        &self,
        q: &Self::Tensor,
        pages: &Self::Pages,
        sequences: &[PagedSequence<'_>],
        spec: &AttentionSpec,
    ) -> Result<Self::Tensor>;

    // ---- rows ------------------------------------------------------------------------------------------------------

    /// The rows with these numbers, in this order.
    fn gather_rows(&self, x: &Self::Tensor, rows: &[u32]) -> Result<Self::Tensor>;
    /// `x` with row `rows[i]` replaced by row `i` of `values`.
    fn scatter_rows(&self, x: &Self::Tensor, rows: &[u32], values: &Self::Tensor) -> Result<Self::Tensor>;
    /// Tensors one below another.
    fn concat_rows(&self, parts: &[&Self::Tensor]) -> Result<Self::Tensor>;
    /// The same elements, row-major, in another shape (merging `n` neighbouring rows into one).
    fn reshape(&self, x: &Self::Tensor, rows: usize, cols: usize) -> Result<Self::Tensor>;
    /// Mean of each group of `n` rows of every segment; an incomplete last group of a segment is dropped.
    fn mean_rows(&self, x: &Self::Tensor, segments: &[std::ops::Range<usize>], n: usize) -> Result<Self::Tensor>;

    // ---- sampling --------------------------------------------------------------------------------------------------

    /// Chooses one token a row of logits.
    fn sample(&self, logits: &Self::Tensor, rows: &[SampleRow]) -> Result<Vec<Sampled>>;
}
