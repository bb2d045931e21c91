//! Vision tower of Qwen2.5-Omni: a transformer over patches with 2-D rotary positions, attention within windows except
//! in a few layers, and a merger that makes one token of each block of patches.

use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{AttentionSpec, Mask, RotaryFrequencies, Segment};

use super::config::VisionConfig;
use super::windows::{WindowOrder, patch_positions};
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::linear::{Linear, group};
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

/// Work of the tower on a batch of pictures; can stop after any layer.
pub struct VisionRun<B: Backend> {
    hidden: B::Tensor,
    /// Cosines and sines, in window order.
    rotary: B::Tensor,
    windows: Vec<Segment>,
    pictures: Vec<Segment>,
    /// Tower place of every token, one list a picture.
    places: Vec<Vec<u32>>,
    layers: usize,
    done: usize,
}

impl<B: Backend> VisionRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        self.done
    }
}

impl<B: Backend> VisionTower<B> {
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
        Ok(VisionRun {
            hidden: self.patch.forward(backend, &x)?,
            rotary: backend.rotary_table(&self.rotary, &positions, 2)?,
            windows,
            pictures: whole,
            places,
            layers: self.blocks.len(),
            done: 0,
        })
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
        let end = run.done.saturating_add(layers).min(run.layers);
        for layer in run.done..end {
            let segments = if self.config.full_layers.contains(&layer) { &run.pictures } else { &run.windows };
            run.hidden = self.blocks[layer].forward(self, backend, run, segments)?;
            run.done = layer + 1;
        }
        if run.done < run.layers { Ok(None) } else { self.merge(backend, run).map(Some) }
    }

    fn merge(&self, backend: &B, run: &VisionRun<B>) -> Result<Vec<B::Tensor>> {
        let normed = backend.rms_norm(&run.hidden, &self.merger_norm, EPS)?;
        let (rows, hidden) = backend.shape(&normed);
        let unit = self.config.merge * self.config.merge;
        let merged = backend.reshape(&normed, rows / unit, hidden * unit)?;
        let inner =
            backend.activate(&self.merger_in.forward(backend, &merged)?, weft_kernels::shapes::Activation::Gelu)?;
        let tokens = self.merger_out.forward(backend, &inner)?;
        run.places.iter().map(|places| Ok(backend.gather_rows(&tokens, places)?)).collect()
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

    fn forward(
        &self,
        tower: &VisionTower<B>,
        backend: &B,
        run: &VisionRun<B>,
        segments: &[Segment],
    ) -> Result<B::Tensor> {
        let (x, rotary) = (&run.hidden, &run.rotary);
        let head_dim = tower.attention.head_dim;
        let normed = backend.rms_norm(x, &self.attention_norm, EPS)?;
        let [query, key, value] = group(backend, &normed, [&self.query, &self.key, &self.value])?;
        let query = backend.rotary(&query, rotary, head_dim)?;
        let key = backend.rotary(&key, rotary, head_dim)?;
        let attended = backend.attention(&query, &key, &value, segments, &tower.attention)?;
        let attended = self.output.forward(backend, &attended)?;
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
