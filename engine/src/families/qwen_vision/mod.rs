//! The vision tower of the Qwen models: a transformer over patches with 2-D rotary positions, attention within windows
//! except in a few layers (from Qwen2.5-VL on), and a merger that makes one token of each block of patches.

pub(crate) mod config;
mod positions;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Mask, RotaryFrequencies, Segment};

use self::config::{Generation, VisionConfig, Windows};
pub(crate) use self::positions::positions;
use self::windows::{WindowOrder, patch_positions};
use crate::card::ImageProcessor;
use crate::checkpoint::{Checkpoint, Loader, processors};
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::EncoderRun;
use crate::families::linear::{Linear, group};
use crate::families::norm::Norm;
use crate::families::walk::{Tower, slice};
use crate::media::Patches;

/// The reference fixes it in code, not in the config.
const EPS: f32 = 1e-6;

/// The tower.
pub(crate) struct VisionTower<B: Backend>(Arc<Weights<B>>);

struct Weights<B: Backend> {
    config: VisionConfig,
    patch: Linear<B>,
    blocks: Vec<Block<B>>,
    merger_norm: Norm<B>,
    merger_in: Linear<B>,
    merger_out: Linear<B>,
    rotary: RotaryFrequencies,
    attention: AttentionSpec,
}

struct Block<B: Backend> {
    attention_norm: Norm<B>,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    output: Linear<B>,
    product_norm: Norm<B>,
    product: Product<B>,
}

/// What follows the attention.
enum Product<B: Backend> {
    Plain { inner: Linear<B>, outer: Linear<B> },
    Gated { gate: Linear<B>, up: Linear<B>, down: Linear<B> },
}

/// The pictures of a run, and the tower they go through.
struct Batch<B: Backend> {
    tower: Arc<Weights<B>>,
    patches: usize,
    /// Cosines and sines, in window order.
    rotary: B::Tensor,
    windows: Vec<Segment>,
    pictures: Vec<Segment>,
    /// Tower place of every token, one list a picture.
    places: Vec<Vec<u32>>,
}

impl<B: Backend> VisionTower<B> {
    /// Loads the tensors `visual.*`.
    pub(crate) fn load(loader: &mut Loader<'_, B>, config: VisionConfig) -> Result<Self> {
        let VisionConfig { hidden, heads, merge, out, generation, .. } = config;
        let mut blocks = Vec::new();
        for layer in 0..config.layers {
            blocks.push(Block::load(loader, &format!("visual.blocks.{layer}"), &config)?);
        }
        let merged = hidden * merge * merge;
        let head_dim = hidden / heads;
        Ok(Self(Arc::new(Weights {
            patch: Linear::load(loader, "visual.patch_embed.proj", [hidden, config.patch_values()], false)?,
            blocks,
            merger_norm: norm(loader, "visual.merger.ln_q", hidden, generation)?,
            merger_in: Linear::load(loader, "visual.merger.mlp.0", [merged, merged], true)?,
            merger_out: Linear::load(loader, "visual.merger.mlp.2", [out, merged], true)?,
            rotary: axial_frequencies(head_dim, config.theta),
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

    pub(crate) fn layers(&self) -> usize {
        self.0.blocks.len()
    }

    /// Patches of all pictures below one another, each in its window order; no layer has run yet.
    pub(crate) fn begin(&self, backend: &B, pictures: &[&Patches]) -> Result<EncoderRun<B>> {
        let VisionConfig { merge, .. } = self.0.config;
        // One window that holds any picture keeps the order as it is.
        let window = match self.0.config.windows {
            Windows::Never => usize::MAX,
            Windows::Squares { side, .. } => side,
        };
        let (unit, width) = (merge * merge, self.0.config.patch_values());
        let mut values = Vec::with_capacity(pictures.iter().map(|p| p.values.len()).sum());
        let mut positions: Vec<u32> = Vec::new();
        let (mut windows, mut whole, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for picture in pictures {
            self.check(picture)?;
            let order = WindowOrder::new(picture.grid, merge, window);
            let arriving = patch_positions(picture.grid, merge);
            for &token in &order.tokens {
                let patches = token as usize * unit..(token as usize + 1) * unit;
                values.extend_from_slice(&picture.values[patches.start * width..patches.end * width]);
                positions.extend(arriving[patches].iter().flatten());
            }
            let rows = |tokens: Range<usize>| Segment::both(start + tokens.start * unit..start + tokens.end * unit);
            windows.extend(order.windows.iter().cloned().map(rows));
            // Frames of a picture sequence do not see one another.
            let frame = order.tokens.len() / picture.grid.t;
            whole.extend((0..picture.grid.t).map(|t| rows(t * frame..(t + 1) * frame)));
            places.push(order.places().into_iter().map(|place| (start / unit) as u32 + place).collect());
            start += picture.grid.patches();
        }
        let x = backend.upload(start, width, &values)?;
        let rotary = backend.rotary_table(&self.0.rotary, &positions, 2)?;
        let batch = Batch { tower: self.0.clone(), patches: start, rotary, windows, pictures: whole, places };
        Ok(EncoderRun::new(backend, x, self.0.blocks.len(), batch))
    }

    fn check(&self, picture: &Patches) -> Result<()> {
        let (grid, merge) = (picture.grid, self.0.config.merge);
        let whole = grid.h.is_multiple_of(merge) && grid.w.is_multiple_of(merge);
        let patch_values = self.0.config.patch_values();
        if grid.patches() == 0 || !whole || picture.values.len() != grid.patches() * patch_values {
            let detail = format!(
                "picture of {} values does not fill a {}x{}x{} grid of {patch_values}-value patches merged by {merge}",
                picture.values.len(),
                grid.t,
                grid.h,
                grid.w,
            );
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        Ok(())
    }
}

impl<B: Backend> Tower<B> for Batch<B> {
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let end = from.saturating_add(most).min(self.patches);
        Ok((self.tower.patch.forward(backend, &slice(backend, input, from..end, self.patches)?)?, end))
    }

    fn project(&self, backend: &B, layer: usize, x: &B::Tensor, rows: Range<usize>) -> Result<[B::Tensor; 3]> {
        let rotary = slice(backend, &self.rotary, rows, self.patches)?;
        self.tower.blocks[layer].project(backend, x, &rotary, self.tower.attention.head_dim)
    }

    fn attention(&self, layer: usize) -> (&[Segment], &AttentionSpec) {
        let windowed =
            matches!(&self.tower.config.windows, Windows::Squares { except, .. } if !except.contains(&layer));
        (if windowed { &self.windows } else { &self.pictures }, &self.tower.attention)
    }

    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        self.tower.blocks[layer].finish(backend, x, attended, self.tower.config.activation)
    }

    /// One token of each block of patches.
    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let (tower, all) = (&self.tower, self.patches);
        let unit = tower.config.merge * tower.config.merge;
        let end = from.saturating_add(most.checked_next_multiple_of(unit).unwrap_or(all)).min(all);
        let normed = tower.merger_norm.forward(backend, &slice(backend, x, from..end, all)?)?;
        let (rows, hidden) = backend.shape(&normed);
        let merged = backend.reshape(&normed, rows / unit, hidden * unit)?;
        let inner = backend.activate(&tower.merger_in.forward(backend, &merged)?, Activation::Gelu)?;
        Ok((tower.merger_out.forward(backend, &inner)?, end))
    }

    /// The tokens of each picture, out of window order.
    fn outputs(&self, backend: &B, tokens: B::Tensor) -> Result<Vec<B::Tensor>> {
        self.places.iter().map(|places| Ok(backend.gather_rows(&tokens, places)?)).collect()
    }
}

/// The image processor of a checkpoint, held against the tower that it feeds.
pub(crate) fn processor(checkpoint: &Checkpoint, tower: &VisionConfig) -> Result<ImageProcessor> {
    let (file, config) = (checkpoint.preprocessor_file(), checkpoint.preprocessor_config());
    let image = processors::image(file, config)?.ok_or_else(|| processors::missing(file, "image processor"))?;
    if (image.patch, image.temporal_patch, image.merge) != (tower.patch, tower.temporal_patch, tower.merge) {
        let detail = format!("{file} prepares other patches than config.json's tower takes");
        return Err(EngineError::new(ErrorKind::Malformed, detail));
    }
    Ok(image)
}

fn norm<B: Backend>(loader: &mut Loader<'_, B>, name: &str, width: usize, generation: Generation) -> Result<Norm<B>> {
    match generation {
        Generation::Two => Norm::layer(loader, name, width, EPS),
        Generation::TwoFive | Generation::Omni => Norm::rms(loader, name, width, EPS),
    }
}

impl<B: Backend> Block<B> {
    fn load(loader: &mut Loader<'_, B>, prefix: &str, config: &VisionConfig) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let &VisionConfig { hidden, intermediate: inner, generation, .. } = config;
        let attention_norm = norm(loader, &name("norm1"), hidden, generation)?;
        let product_norm = norm(loader, &name("norm2"), hidden, generation)?;
        let mut projection = |part: usize| match generation {
            Generation::Omni => {
                Linear::load(loader, &name(["attn.q", "attn.k", "attn.v"][part]), [hidden, hidden], true)
            }
            _ => Linear::load_part(loader, &name("attn.qkv"), (part, &[hidden; 3]), hidden, true),
        };
        let [query, key, value] = [projection(0)?, projection(1)?, projection(2)?];
        Ok(Self {
            attention_norm,
            query,
            key,
            value,
            output: Linear::load(loader, &name("attn.proj"), [hidden, hidden], true)?,
            product_norm,
            product: match generation {
                Generation::Two => Product::Plain {
                    inner: Linear::load(loader, &name("mlp.fc1"), [inner, hidden], true)?,
                    outer: Linear::load(loader, &name("mlp.fc2"), [hidden, inner], true)?,
                },
                Generation::TwoFive | Generation::Omni => Product::Gated {
                    gate: Linear::load(loader, &name("mlp.gate_proj"), [inner, hidden], true)?,
                    up: Linear::load(loader, &name("mlp.up_proj"), [inner, hidden], true)?,
                    down: Linear::load(loader, &name("mlp.down_proj"), [hidden, inner], true)?,
                },
            },
        })
    }

    fn project(&self, backend: &B, x: &B::Tensor, rotary: &B::Tensor, head_dim: usize) -> Result<[B::Tensor; 3]> {
        let normed = self.attention_norm.forward(backend, x)?;
        let [query, key, value] = group(backend, &normed, [&self.query, &self.key, &self.value])?;
        Ok([backend.rotary(&query, rotary, head_dim)?, backend.rotary(&key, rotary, head_dim)?, value])
    }

    fn finish(&self, backend: &B, x: &B::Tensor, attended: &B::Tensor, activation: Activation) -> Result<B::Tensor> {
        let attended = self.output.forward(backend, attended)?;
        let (sum, normed) = self.product_norm.forward_sum(backend, &attended, x)?;
        let product = match &self.product {
            Product::Plain { inner, outer } => {
                outer.forward(backend, &backend.activate(&inner.forward(backend, &normed)?, activation)?)?
            }
            Product::Gated { gate, up, down } => {
                let [gate, up] = group(backend, &normed, [gate, up])?;
                down.forward(backend, &backend.gated(&gate, &up, activation)?)?
            }
        };
        Ok(backend.add(&sum, &product)?)
    }
}

/// Half of a head's pairs turn with the row, half with the column, with the same frequencies.
fn axial_frequencies(head_dim: usize, theta: f64) -> RotaryFrequencies {
    let half = head_dim / 2;
    let one_axis = || (0..half / 2).map(|i| theta.powf(-((2 * i) as f64) / half as f64) as f32);
    RotaryFrequencies {
        inverse: one_axis().chain(one_axis()).collect(),
        axis: [vec![0; half / 2], vec![1; half / 2]].concat(),
        attention_factor: 1.0,
    }
}
