//! What a checkpoint is, from its headers alone (`weft models show`).

use crate::card::{AudioProcessor, ImageProcessor};
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// Sizes of a model that is not loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// Rows of logits.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Bytes of keys and values a token takes, at four bytes an element.
    pub kv_bytes_per_token: usize,
    /// How pictures must be prepared; `None` when the model has no eyes.
    pub image: Option<ImageProcessor>,
    /// How clips must be prepared; `None` when the model has no ears.
    pub audio: Option<AudioProcessor>,
}

impl Checkpoint {
    /// Sizes and processors, without loading a weight.
    pub fn outline(&self) -> Result<Outline> {
        self.family().outline(self)
    }
}
