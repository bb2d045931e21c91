//! Plain descriptions of operands: attention layouts, page layouts, rotary positions, sampling rows.

use std::ops::Range;

/// Which keys a query may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Every key of its segment.
    Full,
    /// Keys up to and including its own position.
    Causal,
    /// Like [`Mask::Causal`], and at most this many keys, the query's own included.
    SlidingWindow(u32),
}

/// Head layout and scale of an attention. `heads` is a multiple of `kv_heads` (grouped queries).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Factor on the query-key product, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Visibility.
    pub mask: Mask,
}

/// One independent piece of a variable-length attention over fresh keys: these query rows see these key rows.
/// With a causal mask the ranges' last rows are aligned (the last query sees the last key).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the query tensor.
    pub query: Range<usize>,
    /// Rows of the key and value tensors.
    pub key: Range<usize>,
}

impl Segment {
    /// Self-attention over one range of rows.
    pub fn both(rows: Range<usize>) -> Self {
        Self { query: rows.clone(), key: rows }
    }
}

/// Layout of the key/value pages of one layer: `[page][kv_head][slot][head_dim]`, keys and values apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Tokens in one page.
    pub page_tokens: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

/// One sequence of a paged attention. Its key at position `p` lies in page `table[p / page_tokens]`, slot
/// `p % page_tokens`. With a causal mask the last query row sits at position `context - 1`.
#[derive(Debug, Clone)]
pub struct PagedSequence<'a> {
    /// Rows of the query tensor.
    pub query: Range<usize>,
    /// Keys in the pages, those of the query rows included.
    pub context: usize,
    /// Page numbers in order of position.
    pub table: &'a [u32],
}

/// Frequencies of a rotary embedding. Pair `i` joins elements `i` and `i + pairs` of the first `2 * pairs` elements of
/// a head (the "rotate half" layout); its angle is `position[axis[i]] * inverse_frequency[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryFrequencies {
    /// Radians per position, one a pair.
    pub inverse: Vec<f32>,
    /// Which component of a position turns the pair: always 0 for plain rotary, the section for multi-section rotary,
    /// row or column for 2-D rotary.
    pub axis: Vec<u8>,
    /// Factor on cosine and sine (1 unless a context extension asks for more).
    pub attention_factor: f32,
}

/// Pointwise functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Exact GELU, by the error function.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
}

/// A 1-D convolution over frames (rows), channels in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv1dSpec {
    /// Frames under the kernel.
    pub kernel: usize,
    /// Frames between outputs.
    pub stride: usize,
    /// Zero frames on each side of every segment.
    pub padding: usize,
}

/// How one row of logits becomes a token. The order is fixed: bias, mask, temperature, top-k, top-p, min-p, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRow {
    /// 0 takes the largest logit (lowest index among equals).
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the largest probability; 0 keeps all.
    pub min_p: f32,
    /// Uniform draw in `[0, 1)`; unused at temperature 0.
    pub draw: f32,
    /// Amounts added to single logits (penalties, user bias), before everything else.
    pub bias: Vec<(u32, f32)>,
    /// Allowed tokens as a bit set of `vocabulary / 32` words (rounded up); `None` allows all.
    pub mask: Option<Vec<u32>>,
    /// How many of the most probable tokens to report with their log-probabilities; `None` reports none, not even the
    /// chosen token's. Log-probabilities are those of the logits after bias and mask, at temperature 1.
    pub logprobs: Option<u32>,
    /// Tokens whose raw log-probability (before bias and mask) is wanted as well.
    pub watch: Vec<u32>,
}

impl Default for SampleRow {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            draw: 0.0,
            bias: Vec::new(),
            mask: None,
            logprobs: None,
            watch: Vec::new(),
        }
    }
}

/// The outcome of one [`SampleRow`].
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The chosen token.
    pub token: u32,
    /// Log-probability of the chosen token; present when `logprobs` was asked.
    pub logprob: Option<f32>,
    /// Most probable tokens, best first.
    pub top: Vec<(u32, f32)>,
    /// Log-probabilities of the watched tokens, in their order.
    pub watched: Vec<f32>,
}
