//! Vision tower of Qwen2.5-Omni: a transformer over patches with 2-D rotary positions, attention within windows except
//! in a few layers, and a merger that makes one token of each block of patches.

use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Mask, RotaryFrequencies, Segment};

use super::config::VisionConfig;
use super::windows::{WindowOrder, patch_positions};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::linear::{Linear, group};
use crate::families::walk::{Piece, Tower, Walk, slice};
use crate::media::Patches;

/// The reference fixes it in code, not in the config.
const EPS: f32 = 1e-6;

/// Weights of the tower.
pub struct VisionTower<B: Backend> {
    config: VisionConfig,
    patch: Linear<B>,
    blocks: Vec<Block<B>>,
    merger_norm: B::Tensor,
    merger_in: Linear<B>,
    merger_out: Linear<B>,
    rotary: RotaryFrequencies,
    attention: AttentionSpec,
}

struct Block<B: Backend> {
    attention_norm: B::Tensor,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    output: Linear<B>,
    product_norm: B::Tensor,
    gate: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
}

/// Work of the tower on a batch of pictures; can stop after any piece.
pub struct VisionRun<B: Backend> {
    pub(in crate::families) walk: Walk<B>,
    batch: Batch<B>,
}

/// The pictures of a run.
struct Batch<B: Backend> {
    patches: usize,
    /// Cosines and sines, in window order.
    rotary: B::Tensor,
    windows: Vec<Segment>,
    pictures: Vec<Segment>,
    /// Tower place of every token, one list a picture.
    places: Vec<Vec<u32>>,
}

/// The tower at work on one run.
struct AtWork<'a, B: Backend> {
    tower: &'a VisionTower<B>,
    batch: &'a Batch<B>,
}

impl<B: Backend> VisionTower<B> {
    /// Layers.
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn load(loader: &mut Loader<'_, B>, config: VisionConfig) -> Result<Self> {
        let VisionConfig { hidden, heads, merge, out, .. } = config;
        let mut blocks = Vec::new();
        for layer in 0..config.layers {
            blocks.push(Block::load(loader, &format!("visual.blocks.{layer}"), &config)?);
        }
        let merged = hidden * merge * merge;
        let head_dim = hidden / heads;
        Ok(Self {
            patch: Linear::load(loader, "visual.patch_embed.proj", [hidden, config.patch_values()], false)?,
            blocks,
            merger_norm: loader.vector("visual.merger.ln_q.weight", hidden)?,
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
        })
    }

    /// Patches of all pictures below one another, each in its window order; no layer has run yet.
    pub(super) fn begin(&self, backend: &B, pictures: &[&Patches]) -> Result<VisionRun<B>> {
        let VisionConfig { merge, window, .. } = self.config;
        let (unit, width) = (merge * merge, self.config.patch_values());
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
        let rotary = backend.rotary_table(&self.rotary, &positions, 2)?;
        let batch = Batch { patches: start, rotary, windows, pictures: whole, places };
        Ok(VisionRun { walk: Walk::new(backend, x, self.blocks.len()), batch })
    }

    fn check(&self, picture: &Patches) -> Result<()> {
        let (grid, merge) = (picture.grid, self.config.merge);
        let whole = grid.h.is_multiple_of(merge) && grid.w.is_multiple_of(merge);
        if grid.patches() == 0 || !whole || picture.values.len() != grid.patches() * self.config.patch_values() {
            let detail = format!(
                "picture of {} values does not fill a {}x{}x{} grid of {}-value patches merged by {merge}",
                picture.values.len(),
                grid.t,
                grid.h,
                grid.w,
                self.config.patch_values()
            );
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        Ok(())
    }

    /// See [`crate::families::Loaded::advance`].
    pub fn advance(&self, backend: &B, run: &mut VisionRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        let VisionRun { walk, batch } = run;
        let tokens = walk.advance(backend, &AtWork { tower: self, batch }, layers)?;
        tokens.map(|tokens| batch.outputs(backend, &tokens)).transpose()
    }

    /// See [`crate::families::Loaded::advance_piece`].
    pub fn advance_piece(&self, backend: &B, run: &mut VisionRun<B>, piece: Piece) -> Result<Option<Vec<B::Tensor>>> {
        let VisionRun { walk, batch } = run;
        let tokens = walk.piece(backend, &AtWork { tower: self, batch }, piece)?;
        tokens.map(|tokens| batch.outputs(backend, &tokens)).transpose()
    }
}

impl<B: Backend> Batch<B> {
    /// The tokens of each picture, out of window order.
    fn outputs(&self, backend: &B, tokens: &B::Tensor) -> Result<Vec<B::Tensor>> {
        self.places.iter().map(|places| Ok(backend.gather_rows(tokens, places)?)).collect()
    }
}

impl<B: Backend> Tower<B> for AtWork<'_, B> {
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let all = self.batch.patches;
        let end = from.saturating_add(most).min(all);
        Ok((self.tower.patch.forward(backend, &slice(backend, input, from..end, all)?)?, end))
    }

    fn project(&self, backend: &B, layer: usize, x: &B::Tensor, rows: Range<usize>) -> Result<[B::Tensor; 3]> {
        let rotary = slice(backend, &self.batch.rotary, rows, self.batch.patches)?;
        self.tower.blocks[layer].project(self.tower, backend, x, &rotary)
    }

    fn attention(&self, layer: usize) -> (&[Segment], &AttentionSpec) {
        let whole = self.tower.config.full_layers.contains(&layer);
        (if whole { &self.batch.pictures } else { &self.batch.windows }, &self.tower.attention)
    }

    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        self.tower.blocks[layer].finish(self.tower, backend, x, attended)
    }

    /// One token of each block of patches.
    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)> {
        let (tower, all) = (self.tower, self.batch.patches);
        let unit = tower.config.merge * tower.config.merge;
        let end = from.saturating_add(most.checked_next_multiple_of(unit).unwrap_or(all)).min(all);
        let normed = backend.rms_norm(&slice(backend, x, from..end, all)?, &tower.merger_norm, EPS)?;
        let (rows, hidden) = backend.shape(&normed);
        let merged = backend.reshape(&normed, rows / unit, hidden * unit)?;
        let inner = backend.activate(&tower.merger_in.forward(backend, &merged)?, Activation::Gelu)?;
        Ok((tower.merger_out.forward(backend, &inner)?, end))
    }
}

impl<B: Backend> Block<B> {
    fn load(loader: &mut Loader<'_, B>, prefix: &str, config: &VisionConfig) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let (hidden, inner) = (config.hidden, config.intermediate);
        Ok(Self {
            attention_norm: loader.vector(&name("norm1.weight"), hidden)?,
            query: Linear::load(loader, &name("attn.q"), [hidden, hidden], true)?,
            key: Linear::load(loader, &name("attn.k"), [hidden, hidden], true)?,
            value: Linear::load(loader, &name("attn.v"), [hidden, hidden], true)?,
            output: Linear::load(loader, &name("attn.proj"), [hidden, hidden], true)?,
            product_norm: loader.vector(&name("norm2.weight"), hidden)?,
            gate: Linear::load(loader, &name("mlp.gate_proj"), [inner, hidden], true)?,
            up: Linear::load(loader, &name("mlp.up_proj"), [inner, hidden], true)?,
            down: Linear::load(loader, &name("mlp.down_proj"), [hidden, inner], true)?,
        })
    }

    fn project(
        &self,
        tower: &VisionTower<B>,
        backend: &B,
        x: &B::Tensor,
        rotary: &B::Tensor,
    ) -> Result<[B::Tensor; 3]> {
        let head_dim = tower.attention.head_dim;
        let normed = backend.rms_norm(x, &self.attention_norm, EPS)?;
        let [query, key, value] = group(backend, &normed, [&self.query, &self.key, &self.value])?;
        Ok([backend.rotary(&query, rotary, head_dim)?, backend.rotary(&key, rotary, head_dim)?, value])
    }

    fn finish(&self, tower: &VisionTower<B>, backend: &B, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        let attended = self.output.forward(backend, attended)?;
        let (sum, normed) = backend.add_rms_norm(&attended, x, &self.product_norm, EPS)?;
        let [gate, up] = group(backend, &normed, [&self.gate, &self.up])?;
        let inner = backend.gated(&gate, &up, tower.config.activation)?;
        Ok(backend.add(&sum, &self.down.forward(backend, &inner)?)?)
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
