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

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Conv1dSpec, Mask, Segment};

use super::config::WhisperConfig;
use super::layers::{Attention, FeedForward, Norm, heads};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::walk::{Piece, Tower, Walk, slice};
use crate::media::{LogMel, Medium};

const KERNEL: usize = 3;
const FIRST: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: 1, padding: 1 };
const SECOND: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: WhisperConfig::STRIDE, padding: 1 };

/// The audio encoder.
pub(super) struct Encoder<B: Backend> {
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

/// Work of the encoder that can stop after any piece.
pub struct WhisperRun<B: Backend> {
    pub(in crate::families) walk: Walk<B>,
    clips: usize,
    /// Rows of each clip.
    segments: Vec<Segment>,
}

/// The encoder at work on one run.
struct AtWork<'a, B: Backend> {
    encoder: &'a Encoder<B>,
    clips: usize,
    segments: &'a [Segment],
}

impl<B: Backend> Encoder<B> {
    pub(super) fn layers(&self) -> usize {
        self.blocks.len()
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
                norm: Norm::load(loader, &format!("{name}.self_attn_layer_norm"), width)?,
                attention: Attention::load(loader, &format!("{name}.self_attn"), width)?,
                feed_forward: FeedForward::load(loader, &name, width, config.encoder_ffn_dim)?,
            })
        });
        Ok(Self {
            frames: config.frames(),
            bins: config.num_mel_bins,
            spec: heads(width, config.encoder_attention_heads, Mask::Full),
            convolutions,
            blocks: blocks.collect::<Result<_>>()?,
            positions: loader.matrix(&format!("{name}.embed_positions.weight"), config.max_source_positions, width)?,
            norm: Norm::load(loader, &format!("{name}.layer_norm"), width)?,
        })
    }

    /// Takes clips of exactly one window each.
    pub(super) fn begin(&self, backend: &B, media: &[&Medium]) -> Result<WhisperRun<B>> {
        let mels = media.iter().map(|medium| self.check(medium)).collect::<Result<Vec<_>>>()?;
        let hidden = match mels.as_slice() {
            [] => return Err(EngineError::new(ErrorKind::Malformed, "no clip to encode")),
            [mel] => backend.upload(mel.frames, mel.bins, &mel.values)?,
            many => {
                let values: Vec<f32> = many.iter().flat_map(|mel| mel.values.iter().copied()).collect();
                backend.upload(many.len() * self.frames, self.bins, &values)?
            }
        };
        let segments = segments(mels.len(), self.frames / WhisperConfig::STRIDE).map(Segment::both).collect();
        Ok(WhisperRun { walk: Walk::new(backend, hidden, self.blocks.len()), clips: mels.len(), segments })
    }

    fn check<'m>(&self, medium: &'m Medium) -> Result<&'m LogMel> {
        let Medium::Audio(mel) = medium else {
            return Err(EngineError::new(ErrorKind::Unsupported, "a Whisper model takes clips, not pictures"));
        };
        let (frames, bins) = (self.frames, self.bins);
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

    /// Runs up to `layers` more layers; gives one tensor a clip when the last has run.
    pub(super) fn advance(
        &self,
        backend: &B,
        run: &mut WhisperRun<B>,
        layers: usize,
    ) -> Result<Option<Vec<B::Tensor>>> {
        let WhisperRun { walk, clips, segments } = run;
        let encoded = walk.advance(backend, &AtWork { encoder: self, clips: *clips, segments }, layers)?;
        encoded.map(|encoded| self.outputs(backend, encoded, *clips)).transpose()
    }

    /// Runs one piece; gives one tensor a clip when it was the last.
    pub(super) fn advance_piece(
        &self,
        backend: &B,
        run: &mut WhisperRun<B>,
        piece: Piece,
    ) -> Result<Option<Vec<B::Tensor>>> {
        let WhisperRun { walk, clips, segments } = run;
        let encoded = walk.piece(backend, &AtWork { encoder: self, clips: *clips, segments }, piece)?;
        encoded.map(|encoded| self.outputs(backend, encoded, *clips)).transpose()
    }

    fn outputs(&self, backend: &B, encoded: B::Tensor, clips: usize) -> Result<Vec<B::Tensor>> {
        if clips == 1 {
            return Ok(vec![encoded]);
        }
        let clip = |rows: Range<usize>| {
            let rows: Vec<u32> = rows.map(|row| row as u32).collect();
            Ok(backend.gather_rows(&encoded, &rows)?)
        };
        segments(clips, self.frames / WhisperConfig::STRIDE).map(clip).collect()
    }
}

impl<B: Backend> Tower<B> for AtWork<'_, B> {
    /// Whole clips, at least one: a convolution needs its neighbours.
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let Encoder { frames, convolutions, positions, .. } = self.encoder;
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
        block.attention.project(backend, &block.norm.run(backend, x)?)
    }

    fn attention(&self, _layer: usize) -> (&[Segment], &AttentionSpec) {
        (self.segments, &self.encoder.spec)
    }

    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        let block = &self.encoder.blocks[layer];
        block.feed_forward.run(backend, &block.attention.finish(backend, x, attended)?)
    }

    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let all = self.clips * self.encoder.frames / WhisperConfig::STRIDE;
        let end = from.saturating_add(most).min(all);
        Ok((self.encoder.norm.run(backend, &slice(backend, x, from..end, all)?)?, end))
    }
}

/// Rows of each clip when every clip has `rows`.
fn segments(clips: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..clips).map(move |clip| clip * rows..(clip + 1) * rows)
}
