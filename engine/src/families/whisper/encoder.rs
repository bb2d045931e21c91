//! Whisper's audio encoder: two convolutions, learned (sinusoidal) positions, pre-norm blocks, a last norm.
//!
//! ```text
//! [3000, bins] -conv, gelu-> [3000, width] -conv stride 2, gelu-> [1500, width] + positions -blocks-> norm
//! ```
//!
//! Clips of a batch lie one below another and never see each other. A run can stop between any two pieces; the
//! convolutions of a clip are one.
//!
//! Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2.

use std::ops::Range;
use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Conv1dSpec, Mask, Segment};

use super::config::WhisperConfig;
use super::layers::{Attention, EPSILON, FeedForward, heads};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::EncoderRun;
use crate::families::norm::Norm;
use crate::families::walk::{Tower, slice};
use crate::media::{LogMel, Medium};

const KERNEL: usize = 3;
const FIRST: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: 1, padding: 1 };
const SECOND: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: WhisperConfig::STRIDE, padding: 1 };

/// The audio encoder.
pub(super) struct Encoder<B: Backend>(Arc<Weights<B>>);

struct Weights<B: Backend> {
    frames: usize,
    bins: usize,
    spec: AttentionSpec,
    convolutions: [(B::Weight, B::Tensor); 2],
    /// `[1500, width]`.
    positions: B::Tensor,
    blocks: Vec<Block<B>>,
    norm: Norm<B>,
}

struct Block<B: Backend> {
    norm: Norm<B>,
    attention: Attention<B>,
    feed_forward: FeedForward<B>,
}

/// The clips of a run, and the encoder they go through.
struct Batch<B: Backend> {
    encoder: Arc<Weights<B>>,
    clips: usize,
    /// Rows of each clip.
    segments: Vec<Segment>,
}

impl<B: Backend> Encoder<B> {
    pub(super) fn layers(&self) -> usize {
        self.0.blocks.len()
    }

    pub(super) fn load(loader: &mut Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let width = config.d_model;
        let name = "model.encoder";
        let mut convolution = |which: &str, channels: usize| -> Result<(B::Weight, B::Tensor)> {
            let kernel = loader.conv1d(&format!("{name}.{which}.weight"), width, channels, KERNEL)?;
            Ok((kernel, loader.vector(&format!("{name}.{which}.bias"), width)?))
        };
        let convolutions = [convolution("conv1", config.num_mel_bins)?, convolution("conv2", width)?];
        let blocks = (0..config.encoder_layers).map(|layer| {
            let name = format!("{name}.layers.{layer}");
            Ok(Block {
                norm: Norm::layer(loader, &format!("{name}.self_attn_layer_norm"), width, EPSILON)?,
                attention: Attention::load(loader, &format!("{name}.self_attn"), width)?,
                feed_forward: FeedForward::load(loader, &name, width, config.encoder_ffn_dim)?,
            })
        });
        Ok(Self(Arc::new(Weights {
            frames: config.frames(),
            bins: config.num_mel_bins,
            spec: heads(width, config.encoder_attention_heads, Mask::Full),
            convolutions,
            blocks: blocks.collect::<Result<_>>()?,
            positions: loader.matrix(&format!("{name}.embed_positions.weight"), config.max_source_positions, width)?,
            norm: Norm::layer(loader, &format!("{name}.layer_norm"), width, EPSILON)?,
        })))
    }

    /// Takes clips of exactly one window each.
    pub(super) fn begin(&self, backend: &B, media: &[&Medium]) -> Result<EncoderRun<B>> {
        let mels = media.iter().map(|medium| self.check(medium)).collect::<Result<Vec<_>>>()?;
        let hidden = match mels.as_slice() {
            [] => return Err(EngineError::new(ErrorKind::Malformed, "no clip to encode")),
            [mel] => backend.upload(mel.frames, mel.bins, &mel.values)?,
            many => {
                let values: Vec<f32> = many.iter().flat_map(|mel| mel.values.iter().copied()).collect();
                backend.upload(many.len() * self.0.frames, self.0.bins, &values)?
            }
        };
        let segments = segments(mels.len(), self.0.frames / WhisperConfig::STRIDE).map(Segment::both).collect();
        let batch = Batch { encoder: self.0.clone(), clips: mels.len(), segments };
        Ok(EncoderRun::new(backend, hidden, self.0.blocks.len(), batch))
    }

    fn check<'m>(&self, medium: &'m Medium) -> Result<&'m LogMel> {
        let Medium::Audio(mel) = medium else {
            return Err(EngineError::new(ErrorKind::Unsupported, "a Whisper model takes clips, not pictures"));
        };
        let (frames, bins) = (self.0.frames, self.0.bins);
        if mel.bins != bins || mel.frames != frames || mel.values.len() != frames * bins {
            let message = format!(
                "a Whisper window is exactly {frames} frames of {bins} mel bands (pad the clip's end); got {} frames of \
                 {} bands in {} values",
                mel.frames,
                mel.bins,
                mel.values.len()
            );
            return Err(EngineError::new(ErrorKind::Malformed, message));
        }
        Ok(mel)
    }
}

impl<B: Backend> Tower<B> for Batch<B> {
    /// Whole clips, at least one: a convolution needs its neighbours.
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let Weights { frames, convolutions, positions, .. } = &*self.encoder;
        let clips = (most / frames).clamp(1, self.clips - from / frames);
        let end = from + clips * frames;
        let ranges: Vec<_> = segments(clips, *frames).collect();
        let [(first, first_bias), (second, second_bias)] = convolutions;
        let x = slice(backend, input, from..end, self.clips * frames)?;
        let x = backend.conv1d(&x, first, Some(first_bias), &ranges, FIRST)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        let x = backend.conv1d(&x, second, Some(second_bias), &ranges, SECOND)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        let positions = if clips == 1 { positions } else { &backend.concat_rows(&vec![positions; clips])? };
        Ok((backend.add(&x, positions)?, end))
    }

    fn project(&self, backend: &B, layer: usize, x: &B::Tensor, _rows: Range<usize>) -> Result<[B::Tensor; 3]> {
        let block = &self.encoder.blocks[layer];
        block.attention.project(backend, &block.norm.forward(backend, x)?)
    }

    fn attention(&self, _layer: usize) -> (&[Segment], &AttentionSpec) {
        (&self.segments, &self.encoder.spec)
    }

    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        let block = &self.encoder.blocks[layer];
        block.feed_forward.forward(backend, &block.attention.finish(backend, x, attended)?)
    }

    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let all = self.clips * self.encoder.frames / WhisperConfig::STRIDE;
        let end = from.saturating_add(most).min(all);
        Ok((self.encoder.norm.forward(backend, &slice(backend, x, from..end, all)?)?, end))
    }

    fn outputs(&self, backend: &B, encoded: B::Tensor) -> Result<Vec<B::Tensor>> {
        let rows = self.encoder.frames / WhisperConfig::STRIDE;
        segments(self.clips, rows).map(|clip| slice(backend, &encoded, clip, self.clips * rows)).collect()
    }
}

/// Rows of each clip when every clip has `rows`.
fn segments(clips: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..clips).map(move |clip| clip * rows..(clip + 1) * rows)
}
