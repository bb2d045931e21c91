//! What work will cost, predicted before it is queued: from sizes alone, by what the device has learned so far. Times are
//! those of the work alone on the device.

use std::time::Duration;

use crate::families::EncoderPart;
use crate::handle::Model;
use crate::scheduler::{CostModel, Kind, Tower, Work};

impl Model {
    /// Time to encode a picture of this many patches.
    pub fn picture_time(&self, patches: usize) -> Duration {
        self.encode_time(Tower::Vision, patches)
    }

    /// Time to encode a clip of this many frames.
    pub fn clip_time(&self, frames: usize) -> Duration {
        self.encode_time(Tower::Audio, frames)
    }

    /// Time to bring a prompt of this many tokens into the cache.
    pub fn prompt_time(&self, tokens: usize) -> Duration {
        self.predict(Kind::Prefill, tokens)
    }

    /// Time of a decode step of this many sequences.
    pub fn step_time(&self, sequences: usize) -> Duration {
        self.predict(Kind::Decode, sequences)
    }

    /// KV pages of a sequence of this many tokens, prompt and answer together.
    pub fn pages(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.facts().kv.pages.page_tokens)
    }

    /// KV pages that there are.
    pub fn total_pages(&self) -> usize {
        self.facts().pages
    }

    fn encode_time(&self, tower: Tower, size: usize) -> Duration {
        let layers = self.facts().encoder_layers[usize::from(tower == Tower::Audio)];
        encode_time(&self.costs(), self.index(), (tower, layers), size)
    }

    fn predict(&self, kind: Kind, size: usize) -> Duration {
        self.costs().predict(Work { model: self.index(), kind, size })
    }
}

/// Time of a whole run through a tower of this many layers.
pub(crate) fn encode_time(cost: &CostModel, model: usize, (tower, layers): (Tower, usize), size: usize) -> Duration {
    let predict = |kind| cost.predict(Work { model, kind, size });
    let layer = predict(Kind::Layer(tower)).saturating_mul(u32::try_from(layers).unwrap_or(u32::MAX));
    let ends = [EncoderPart::Enter, EncoderPart::Leave].map(|part| predict(Kind::Rows(tower, part)));
    ends.into_iter().fold(layer, Duration::saturating_add).saturating_add(predict(Kind::Begin(tower)))
}
