//! Model families, written once over [`Backend`], and the one shape in which the device thread drives them all.
//!
//! ```text
//! Checkpoint -> Loaded::load -> card, kv layout
//! Medium     -> Loaded::begin_encode -> EncoderRun (advance by layers) -> encoded rows
//! StepBatch  -> Loaded::step -> logits of the rows that want them
//! ```
//!
//! A model holds weights only. Pages, sequences and caches belong to the device thread.

use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::PageLayout;

/// Key/value memory that a model's decoder needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Decoder layers; each has its own pages.
    pub layers: usize,
    /// Layout of every layer's pages.
    pub pages: PageLayout,
    /// Whether sequences also attend to an encoded medium through cross pages (Whisper). Cross keys and values live in
    /// the same pool of pages, under a block table of their own.
    pub cross: bool,
}

impl KvLayout {
    /// Bytes of one page over all layers, keys and values, at four bytes an element.
    pub const fn page_bytes(&self) -> usize {
        2 * 4 * self.layers * self.pages.page_tokens * self.pages.kv_heads * self.pages.head_dim
    }
}

/// Positions of a prompt: three components a token (time, height, width; all equal for text).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    /// One triple a prompt row.
    pub rows: Vec<[u32; 3]>,
    /// Position of the first answer token; the n-th has `next + n` in all components.
    pub next: u32,
}

/// What a prompt is made of, for [`Positions`]: lengths only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart {
    /// This many text tokens.
    Text(usize),
    /// A picture with this patch grid.
    Image(crate::media::Grid),
    /// A clip of this many prompt tokens.
    Audio(usize),
}

/// Rows of encoder output that replace token embeddings in a step.
#[derive(Debug)]
pub struct MediaRows<'a, B: Backend> {
    /// First row in the step's input.
    pub at: usize,
    /// Encoder output.
    pub encoded: &'a B::Tensor,
    /// Which of its rows.
    pub rows: Range<usize>,
}

/// One sequence's share of a step: consecutive input rows.
#[derive(Debug)]
pub struct StepSequence<'a> {
    /// Rows in the step's input.
    pub rows: Range<usize>,
    /// Keys in the pages after this step, those of `rows` included.
    pub context: usize,
    /// Block table.
    pub table: &'a [u32],
    /// Cross attention: block table and number of encoded frames.
    pub cross: Option<(&'a [u32], usize)>,
    /// Whether logits of its last row are wanted.
    pub wants_logits: bool,
}

/// A step over several sequences: any mix of single decode rows and prefill chunks.
#[derive(Debug)]
pub struct StepBatch<'a, B: Backend> {
    /// Token of every input row (rows under media may hold any valid id).
    pub ids: &'a [u32],
    /// Position of every input row.
    pub positions: &'a [[u32; 3]],
    /// Page slot of every input row.
    pub slots: &'a [u32],
    /// Media to splice in.
    pub media: &'a [MediaRows<'a, B>],
    /// Sequences, covering all rows in order.
    pub sequences: &'a [StepSequence<'a>],
}
