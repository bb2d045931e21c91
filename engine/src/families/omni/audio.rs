//! Audio tower of Qwen2.5-Omni: two convolutions and a transformer over chunks of log-mel frames that do not see one
//! another, then pairs of rows averaged over the whole clip.
//!
//! The reference pads the last chunk with zero frames and masks them again between the two convolutions, so a chunk sees
//! exactly the zero padding that it would see alone: chunks are segments of the convolutions here, without padding.

use std::ops::Range;
use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Conv1dSpec, Mask, Segment};

use super::config::AudioConfig;
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::EncoderRun;
use crate::families::linear::{Linear, group};
use crate::families::norm::Norm;
use crate::families::walk::{Tower, slice};
use crate::media::LogMel;

/// PyTorch's default, which the reference leaves alone.
const EPS: f32 = 1e-5;
const KERNEL: usize = 3;
const FIRST: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: 1, padding: 1 };
const SECOND: Conv1dSpec = Conv1dSpec { kernel: KERNEL, stride: 2, padding: 1 };
/// Rows averaged into one token.
const POOLED: usize = 2;

/// The tower.
pub(super) struct AudioTower<B: Backend>(Arc<Weights<B>>);

struct Weights<B: Backend> {
    config: AudioConfig,
    first: (B::Weight, B::Tensor),
    second: (B::Weight, B::Tensor),
    /// Sinusoids of one chunk.
    positions: B::Tensor,
    layers: Vec<Layer<B>>,
    norm: Norm<B>,
    projection: Linear<B>,
    attention: AttentionSpec,
}

struct Layer<B: Backend> {
    attention_norm: Norm<B>,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    output: Linear<B>,
    product_norm: Norm<B>,
    inner: Linear<B>,
    outer: Linear<B>,
}

/// The clips of a run, and the tower they go through.
struct Batch<B: Backend> {
    tower: Arc<Weights<B>>,
    /// Frames of each chunk.
    frames: Vec<Range<usize>>,
    /// Rows of each chunk.
    chunks: Vec<Segment>,
    /// Rows of each clip.
    clips: Vec<Range<usize>>,
}

impl<B: Backend> AudioTower<B> {
    pub(super) fn layers(&self) -> usize {
        self.0.layers.len()
    }

    pub(super) fn load(loader: &mut Loader<'_, B>, config: AudioConfig) -> Result<Self> {
        let AudioConfig { width, heads, bins, out, chunk, .. } = config;
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(Layer::load(loader, &format!("audio_tower.layers.{layer}"), &config)?);
        }
        // Embeddings of begin and end marks, which the thinker takes from its text table instead.
        loader.ignore("audio_tower.audio_bos_eos_token.weight");
        let mut conv = |name: &str, channels: usize| -> Result<(B::Weight, B::Tensor)> {
            let weight = loader.conv1d(&format!("audio_tower.{name}.weight"), width, channels, KERNEL)?;
            Ok((weight, loader.vector(&format!("audio_tower.{name}.bias"), width)?))
        };
        let head_dim = width / heads;
        Ok(Self(Arc::new(Weights {
            first: conv("conv1", bins)?,
            second: conv("conv2", width)?,
            positions: loader.backend().upload(chunk / 2, width, &sinusoids(chunk / 2, width))?,
            layers,
            norm: Norm::layer(loader, "audio_tower.ln_post", width, EPS)?,
            projection: Linear::load(loader, "audio_tower.proj", [out, width], true)?,
            attention: AttentionSpec {
                heads,
                kv_heads: heads,
                head_dim,
                scale: (head_dim as f64).powf(-0.5) as f32,
                mask: Mask::Full,
            },
            config,
        })))
    }

    /// Frames of all clips below one another; nothing has run yet.
    pub(super) fn begin(&self, backend: &B, clips: &[&LogMel]) -> Result<EncoderRun<B>> {
        let mut values = Vec::with_capacity(clips.iter().map(|clip| clip.values.len()).sum());
        let (mut frames, mut rows) = (Vec::new(), Vec::new());
        let (mut frame, mut row) = (0, 0);
        let mut clip_rows = Vec::new();
        for clip in clips {
            self.check(clip)?;
            values.extend_from_slice(&clip.values);
            let (end, first_row) = (frame + clip.frames, row);
            while frame < end {
                let len = self.0.config.chunk.min(end - frame);
                let convolved = (len - 1) / 2 + 1;
                frames.push(frame..frame + len);
                rows.push(Segment::both(row..row + convolved));
                frame += len;
                row += convolved;
            }
            clip_rows.push(first_row..row);
        }
        let x = backend.upload(frame, self.0.config.bins, &values)?;
        let batch = Batch { tower: self.0.clone(), frames, chunks: rows, clips: clip_rows };
        Ok(EncoderRun::new(backend, x, self.0.layers.len(), batch))
    }

    fn check(&self, clip: &LogMel) -> Result<()> {
        let bins = self.0.config.bins;
        if clip.bins != bins || clip.values.len() != clip.frames * bins {
            let detail = format!("clip of {} frames of {} bands; the model takes {bins} bands", clip.frames, clip.bins);
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        if clip.frames < 2 * POOLED - 1 {
            let detail = format!("clip of {} frames is too short to make a token", clip.frames);
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        Ok(())
    }
}

impl<B: Backend> Tower<B> for Batch<B> {
    /// Whole chunks, at least one: a convolution needs its neighbours.
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let all = self.frames.last().map_or(0, |chunk| chunk.end);
        let rest = self.frames.iter().skip_while(|chunk| chunk.end <= from);
        let until = from.saturating_add(most);
        let chunks: Vec<_> =
            rest.enumerate().take_while(|(n, chunk)| *n == 0 || chunk.end <= until).map(|(_, chunk)| chunk).collect();
        let end = chunks.last().map_or(all, |chunk| chunk.end);
        let frames: Vec<_> = chunks.iter().map(|chunk| chunk.start - from..chunk.end - from).collect();
        let positions = chunks.iter().flat_map(|chunk| 0..((chunk.len() - 1) / 2 + 1) as u32).collect::<Vec<_>>();
        let Weights { first, second, .. } = &*self.tower;
        let x = slice(backend, input, from..end, all)?;
        let x = backend.conv1d(&x, &first.0, Some(&first.1), &frames, FIRST)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        let x = backend.conv1d(&x, &second.0, Some(&second.1), &frames, SECOND)?;
        let x = backend.activate(&x, Activation::Gelu)?;
        Ok((backend.add(&x, &backend.gather_rows(&self.tower.positions, &positions)?)?, end))
    }

    fn project(&self, backend: &B, layer: usize, x: &B::Tensor, _rows: Range<usize>) -> Result<[B::Tensor; 3]> {
        let layer = &self.tower.layers[layer];
        let normed = layer.attention_norm.forward(backend, x)?;
        group(backend, &normed, [&layer.query, &layer.key, &layer.value])
    }

    fn attention(&self, _layer: usize) -> (&[Segment], &AttentionSpec) {
        (&self.chunks, &self.tower.attention)
    }

    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        let layer = &self.tower.layers[layer];
        let x = backend.add(x, &layer.output.forward(backend, attended)?)?;
        let normed = layer.product_norm.forward(backend, &x)?;
        let inner = backend.activate(&layer.inner.forward(backend, &normed)?, self.tower.config.activation)?;
        Ok(backend.add(&x, &layer.outer.forward(backend, &inner)?)?)
    }

    /// Whole clips, at least one: rows are averaged over a clip.
    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let all = self.clips.last().map_or(0, |clip| clip.end);
        let rest = self.clips.iter().skip_while(|clip| clip.end <= from);
        let until = from.saturating_add(most);
        let clips: Vec<_> =
            rest.enumerate().take_while(|(n, clip)| *n == 0 || clip.end <= until).map(|(_, clip)| clip).collect();
        let end = clips.last().map_or(all, |clip| clip.end);
        let rows: Vec<_> = clips.iter().map(|clip| clip.start - from..clip.end - from).collect();
        let pooled = backend.mean_rows(&slice(backend, x, from..end, all)?, &rows, POOLED)?;
        Ok((self.tower.projection.forward(backend, &self.tower.norm.forward(backend, &pooled)?)?, end))
    }

    fn outputs(&self, backend: &B, tokens: B::Tensor) -> Result<Vec<B::Tensor>> {
        let mut start = 0;
        let own = |rows: &Range<usize>| {
            let count = (rows.len() / POOLED) as u32;
            let own: Vec<u32> = (start..start + count).collect();
            start += count;
            Ok(backend.gather_rows(&tokens, &own)?)
        };
        self.clips.iter().map(own).collect()
    }
}

impl<B: Backend> Layer<B> {
    fn load(loader: &mut Loader<'_, B>, prefix: &str, config: &AudioConfig) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let (width, inner) = (config.width, config.inner);
        Ok(Self {
            attention_norm: Norm::layer(loader, &name("self_attn_layer_norm"), width, EPS)?,
            query: Linear::load(loader, &name("self_attn.q_proj"), [width, width], true)?,
            key: Linear::load(loader, &name("self_attn.k_proj"), [width, width], false)?,
            value: Linear::load(loader, &name("self_attn.v_proj"), [width, width], true)?,
            output: Linear::load(loader, &name("self_attn.out_proj"), [width, width], true)?,
            product_norm: Norm::layer(loader, &name("final_layer_norm"), width, EPS)?,
            inner: Linear::load(loader, &name("fc1"), [inner, width], true)?,
            outer: Linear::load(loader, &name("fc2"), [width, inner], true)?,
        })
    }
}

/// Sines, then cosines, of `position * 10000^(-i / (width / 2 - 1))` ("Attention is all you need", as Whisper lays it out).
fn sinusoids(positions: usize, width: usize) -> Vec<f32> {
    let half = width / 2;
    // In float32, step by step, like the reference's table.
    let step = -(10_000f64.ln() / (half as f64 - 1.0)) as f32;
    let frequencies: Vec<f32> = (0..half).map(|i| (step * i as f32).exp()).collect();
    let angles = |position: usize| frequencies.iter().map(move |frequency| position as f32 * frequency);
    (0..positions).flat_map(|p| angles(p).map(f32::sin).chain(angles(p).map(f32::cos))).collect()
}
