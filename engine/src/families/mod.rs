//! Model families, written once over [`Backend`], and the one shape in which the device thread drives them all.
//!
//! ```text
//! Checkpoint -> Loaded::load -> card, kv layout
//! Medium     -> Loaded::begin_encode -> EncoderRun (advance by layers) -> encoded rows
//! StepBatch  -> Loaded::step -> logits of the rows that want them
//! ```
//!
//! A model holds weights only. Pages, sequences and caches belong to the device thread.

pub mod decoder;
mod linear;
pub mod omni;
mod summary;
mod walk;
pub mod whisper;

pub use summary::{Part, Summary};
pub use walk::{Part as EncoderPart, Piece, Place};

use std::ops::Range;
use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::PageLayout;

use crate::card::{Family, ModelCard};
use crate::checkpoint::Checkpoint;
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::ModelConfig;
use crate::media::Medium;

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

/// A loaded model of any family. The set is closed: the device thread matches nowhere but here.
pub enum Loaded<B: Backend> {
    /// Llama, SmolLM2, Mistral, Qwen2, Qwen3.
    Decoder(decoder::TextModel<B>),
    /// Qwen2.5-Omni thinker.
    Omni(Box<omni::Omni<B>>),
    /// Whisper.
    Whisper(Box<whisper::Whisper<B>>),
}

impl<B: Backend> Loaded<B> {
    /// Loads every weight of a checkpoint onto the device. A missing, surplus or misshapen tensor is an error that
    /// names it. Pages will hold `page_tokens` tokens.
    pub fn load(backend: &B, checkpoint: &Checkpoint, config: &ModelConfig, page_tokens: usize) -> Result<Self> {
        Ok(match checkpoint.family() {
            Family::QwenOmni => Self::Omni(Box::new(omni::Omni::load(backend, checkpoint, config, page_tokens)?)),
            Family::Whisper => {
                Self::Whisper(Box::new(whisper::Whisper::load(backend, checkpoint, config, page_tokens)?))
            }
            Family::Llama | Family::Qwen2 | Family::Qwen3 => {
                Self::Decoder(decoder::TextModel::load(backend, checkpoint, config, page_tokens)?)
            }
        })
    }

    /// What the model is.
    pub fn card(&self) -> &Arc<ModelCard> {
        match self {
            Self::Decoder(model) => model.card(),
            Self::Omni(model) => model.card(),
            Self::Whisper(model) => model.card(),
        }
    }

    /// Key/value memory it needs.
    pub fn kv(&self) -> KvLayout {
        match self {
            Self::Decoder(model) => model.kv(),
            Self::Omni(model) => model.kv(),
            Self::Whisper(model) => model.kv(),
        }
    }

    /// Layers of the vision and of the audio tower; 0 where there is none.
    pub fn encoder_layers(&self) -> [usize; 2] {
        match self {
            Self::Decoder(_) => [0, 0],
            Self::Omni(model) => [model.vision().layers(), model.audio().layers()],
            Self::Whisper(model) => [0, model.encoder_layers()],
        }
    }

    /// Positions of a prompt's rows and of the answer after it.
    pub fn positions(&self, parts: &[PromptPart]) -> Positions {
        match self {
            Self::Decoder(model) => model.positions(parts),
            Self::Omni(model) => model.positions(parts),
            Self::Whisper(model) => model.positions(parts),
        }
    }

    /// Prepares encoder work on a batch of media of one tower; no layer has run yet. The output of a medium is the same,
    /// bit for bit, whatever else is in the batch.
    pub fn begin_encode(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        match self {
            Self::Decoder(model) => {
                Err(EngineError::new(ErrorKind::Unsupported, format!("model {} takes text only", model.card().name)))
            }
            Self::Omni(model) => model.begin_encode(backend, media),
            Self::Whisper(model) => model.begin_encode(backend, media).map(EncoderRun::Whisper),
        }
    }

    /// Runs up to `layers` more layers. `Some` with one tensor a medium, in order, when the run is finished.
    pub fn advance(&self, backend: &B, run: &mut EncoderRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        match (self, run) {
            (Self::Omni(model), EncoderRun::Vision(run)) => model.vision().advance(backend, run, layers),
            (Self::Omni(model), EncoderRun::Audio(run)) => model.audio().advance(backend, run, layers),
            (Self::Whisper(model), EncoderRun::Whisper(run)) => model.advance(backend, run, layers),
            _ => Err(EngineError::new(ErrorKind::Internal, "an encoder run was handed to another family's model")),
        }
    }

    /// Runs one piece: whole layers, or some rows of the part that comes next. `Some` as in [`Loaded::advance`]; outputs
    /// are the same, bit for bit, wherever a run was cut.
    pub fn advance_piece(&self, backend: &B, run: &mut EncoderRun<B>, piece: Piece) -> Result<Option<Vec<B::Tensor>>> {
        match (self, run) {
            (Self::Omni(model), EncoderRun::Vision(run)) => model.vision().advance_piece(backend, run, piece),
            (Self::Omni(model), EncoderRun::Audio(run)) => model.audio().advance_piece(backend, run, piece),
            (Self::Whisper(model), EncoderRun::Whisper(run)) => model.advance_piece(backend, run, piece),
            _ => Err(EngineError::new(ErrorKind::Internal, "an encoder run was handed to another family's model")),
        }
    }

    /// One pass over a mix of decode rows and prefill chunks: writes keys and values into `pages` (one a layer) and gives
    /// the logits of the sequences that want them, one row each, in order; `None` when none does.
    pub fn step(&self, backend: &B, batch: &StepBatch<'_, B>, pages: &mut [B::Pages]) -> Result<Option<B::Tensor>> {
        match self {
            Self::Decoder(model) => model.step(backend, batch, pages),
            Self::Omni(model) => model.step(backend, batch, pages),
            Self::Whisper(model) => model.step(backend, batch, pages),
        }
    }

    /// Whisper only: writes the cross keys and values of an encoded medium into pages, once a sequence.
    pub fn write_cross(&self, backend: &B, encoded: &B::Tensor, slots: &[u32], pages: &mut [B::Pages]) -> Result<()> {
        match self {
            Self::Whisper(model) => model.write_cross(backend, encoded, slots, pages),
            Self::Decoder(_) | Self::Omni(_) => {
                Err(EngineError::new(ErrorKind::Internal, "this family has no cross attention"))
            }
        }
    }
}

/// Encoder work that can stop after any piece.
pub enum EncoderRun<B: Backend> {
    /// Omni's vision tower.
    Vision(omni::vision::VisionRun<B>),
    /// Omni's audio tower.
    Audio(omni::audio::AudioRun<B>),
    /// Whisper's encoder.
    Whisper(whisper::WhisperRun<B>),
}

impl<B: Backend> EncoderRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        self.walk().layers()
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        self.walk().done()
    }

    /// What comes next.
    pub fn place(&self) -> Place {
        self.walk().place()
    }

    fn walk(&self) -> &walk::Walk<B> {
        match self {
            Self::Vision(run) => &run.walk,
            Self::Audio(run) => &run.walk,
            Self::Whisper(run) => &run.walk,
        }
    }
}
