//! Model families, written once over [`Backend`], and the one shape in which the device thread drives them all.
//!
//! ```text
//! Checkpoint -> Loaded::load -> card, kv layout
//! Medium     -> Model::begin_encode -> EncoderRun (advance by layers) -> encoded rows
//! StepBatch  -> Model::step -> logits of the rows that want them
//! ```
//!
//! A model holds weights only. Pages, sequences and caches belong to the device thread. Which families there are, and how
//! one is added, says [`registry`].

mod decoder;
mod linear;
mod norm;
mod omni;
mod outline;
mod qwen_vision;
mod qwen_vl;
pub mod registry;
mod walk;
mod whisper;

pub use outline::Outline;
pub use registry::Family;
pub use walk::{Part as EncoderPart, Piece, Place};

use std::ops::{Deref, Range};
use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::PageLayout;

use crate::card::ModelCard;
use crate::checkpoint::Checkpoint;
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::ModelConfig;
use crate::media::{LogMel, Medium, Patches};

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
    /// Bytes of one element of keys or values; the device's.
    pub element_bytes: usize,
}

impl KvLayout {
    /// Bytes of one page over all layers, keys and values.
    pub const fn page_bytes(&self) -> usize {
        2 * self.element_bytes * self.layers * self.pages.page_tokens * self.pages.kv_heads * self.pages.head_dim
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

/// A model of any family, its weights on the device. What a family does not do is left to the defaults.
pub trait Model<B: Backend> {
    /// What the model is.
    fn card(&self) -> &Arc<ModelCard>;

    /// Key/value memory it needs.
    fn kv(&self) -> KvLayout;

    /// Layers of the vision and of the audio tower; 0 where there is none.
    fn encoder_layers(&self) -> [usize; 2] {
        [0, 0]
    }

    /// Positions of a prompt's rows and of the answer after it. As given: consecutive numbers for text, none for media.
    fn positions(&self, parts: &[PromptPart]) -> Positions {
        let text = |part: &PromptPart| if let PromptPart::Text(tokens) = part { *tokens } else { 0 };
        let next = parts.iter().map(text).sum::<usize>() as u32;
        Positions { rows: (0..next).map(|position| [position; 3]).collect(), next }
    }

    /// Prepares encoder work on a batch of media of one tower; no layer has run yet. The output of a medium is the same,
    /// bit for bit, whatever else is in the batch.
    fn begin_encode(&self, _backend: &B, _media: &[&Medium]) -> Result<EncoderRun<B>> {
        Err(EngineError::new(ErrorKind::Unsupported, format!("model {} takes text only", self.card().name)))
    }

    /// One pass over a mix of decode rows and prefill chunks: writes keys and values into `pages` (one a layer) and gives
    /// the logits of the sequences that want them, one row each, in order; `None` when none does.
    fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>>;

    /// Whisper only: writes the cross keys and values of an encoded medium into pages, once a sequence.
    fn write_cross(&self, _backend: &B, _encoded: &B::Tensor, _slots: &[u32], _pages: &mut [B::Pages]) -> Result<()> {
        Err(EngineError::new(ErrorKind::Internal, "this family has no cross attention"))
    }
}

/// The pictures of a run that takes nothing else.
fn pictures<'m>(media: &[&'m Medium]) -> Result<Vec<&'m Patches>> {
    let picture = |medium: &&'m Medium| match medium {
        Medium::Image(patches) => Ok(patches),
        Medium::Audio(_) => Err(EngineError::new(ErrorKind::Internal, "a clip was handed to a vision tower")),
    };
    media.iter().map(picture).collect()
}

/// The clips of a run that takes nothing else.
fn clips<'m>(media: &[&'m Medium]) -> Result<Vec<&'m LogMel>> {
    let clip = |medium: &&'m Medium| match medium {
        Medium::Audio(mel) => Ok(mel),
        Medium::Image(_) => Err(EngineError::new(ErrorKind::Internal, "a picture was handed to an audio tower")),
    };
    media.iter().map(clip).collect()
}

/// A loaded model, whatever its family.
pub struct Loaded<B: Backend>(Box<dyn Model<B>>);

impl<B: Backend> Loaded<B> {
    /// Loads every weight of a checkpoint onto the device. A missing, surplus or misshapen tensor is an error that
    /// names it. Pages will hold `page_tokens` tokens.
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        checkpoint.family().load(backend, checkpoint, config, page_tokens).map(Self)
    }
}

impl<B: Backend> Deref for Loaded<B> {
    type Target = dyn Model<B>;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// Encoder work on a batch of media of one tower; can stop after any piece.
pub struct EncoderRun<B: Backend> {
    walk: walk::Walk<B>,
    tower: Box<dyn walk::Tower<B>>,
}

impl<B: Backend> EncoderRun<B> {
    /// A run of `layers` layers over this input; nothing ran yet.
    fn new(backend: &B, input: B::Tensor, layers: usize, tower: impl walk::Tower<B> + 'static) -> Self {
        Self { walk: walk::Walk::new(backend, input, layers), tower: Box::new(tower) }
    }

    /// Layers in all.
    pub const fn layers(&self) -> usize {
        self.walk.layers()
    }

    /// Layers that have run.
    pub const fn done(&self) -> usize {
        self.walk.done()
    }

    /// What comes next.
    pub fn place(&self) -> Place {
        self.walk.place()
    }

    /// Runs up to `layers` more layers. `Some` with one tensor a medium, in order, when the run is finished.
    pub fn advance(&mut self, backend: &B, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        let rows = self.walk.advance(backend, &*self.tower, layers)?;
        rows.map(|rows| self.tower.outputs(backend, rows)).transpose()
    }

    /// Runs one piece: whole layers, or some rows of the part that comes next. `Some` as in [`EncoderRun::advance`];
    /// outputs are the same, bit for bit, wherever a run was cut.
    pub fn advance_piece(&mut self, backend: &B, piece: Piece) -> Result<Option<Vec<B::Tensor>>> {
        let rows = self.walk.piece(backend, &*self.tower, piece)?;
        rows.map(|rows| self.tower.outputs(backend, rows)).transpose()
    }
}
