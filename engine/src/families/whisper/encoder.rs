//! Whisper's audio encoder: two convolutions, learned (sinusoidal) positions, pre-norm blocks, a last norm.
//!
//! ```text
//! [3000, bins] -conv, gelu-> [3000, width] -conv stride 2, gelu-> [1500, width] + positions -blocks-> norm
//! ```
//!
//! Clips of a batch lie one below another and never see each other. The convolutions count as the first layer, so a run
//! can stop after them and after every block.
//!
//! Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2.

use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Conv1dSpec, Mask, Segment};

use super::config::WhisperConfig;
use super::layers::{Attention, FeedForward, Norm, heads};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
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

/// Work of the encoder that can stop after any layer; the convolutions are the first.
pub struct WhisperRun<B: Backend> {
    clips: usize,
    layers: usize,
    done: usize,
    /// Log-mel frames at first, then the rows of the last finished layer.
    hidden: B::Tensor,
}

impl<B: Backend> WhisperRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        self.done
    }
}

impl<B: Backend> Encoder<B> {
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
        Ok(WhisperRun { clips: mels.len(), layers: 1 + self.blocks.len(), done: 0, hidden })
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
        for _ in 0..layers.min(run.layers - run.done) {
            run.hidden = match run.done.checked_sub(1) {
                None => self.convolve(backend, run)?,
                Some(block) => self.block(backend, &self.blocks[block], run)?,
            };
            run.done += 1;
        }
        if run.done < run.layers {
            return Ok(None);
        }
        let encoded = self.norm.run(backend, &run.hidden)?;
        if run.clips == 1 {
            return Ok(Some(vec![encoded]));
        }
        let clip = |rows: Range<usize>| {
            let rows: Vec<u32> = rows.map(|row| row as u32).collect();
            Ok(backend.gather_rows(&encoded, &rows)?)
        };
        segments(run.clips, self.frames / WhisperConfig::STRIDE).map(clip).collect::<Result<_>>().map(Some)
    }

    fn convolve(&self, backend: &B, run: &WhisperRun<B>) -> Result<B::Tensor> {
        let frames: Vec<_> = segments(run.clips, self.frames).collect();
        let [(first, first_bias), (second, second_bias)] = &self.convolutions;
        let x = backend.conv1d(&run.hidden, first, Some(first_bias), &frames, FIRST)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        let x = backend.conv1d(&x, second, Some(second_bias), &frames, SECOND)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        if run.clips == 1 {
            return Ok(backend.add(&x, &self.positions)?);
        }
        Ok(backend.add(&x, &backend.concat_rows(&vec![&self.positions; run.clips])?)?)
    }

    fn block(&self, backend: &B, block: &Block<B>, run: &WhisperRun<B>) -> Result<B::Tensor> {
        let clips: Vec<_> = segments(run.clips, self.frames / WhisperConfig::STRIDE).map(Segment::both).collect();
        let [q, k, v] = block.attention.project(backend, &block.norm.run(backend, &run.hidden)?)?;
        let attended = backend.attention(&q, &k, &v, &clips, &self.spec)?;
        let x = block.attention.finish(backend, &run.hidden, &attended)?;
        block.feed_forward.run(backend, &x)
    }
}

/// Rows of each clip when every clip has `rows`.
fn segments(clips: usize, rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..clips).map(move |clip| clip * rows..(clip + 1) * rows)
}
