//! The blocks that encoder and decoder share: layer norm, the projections of an attention, the feed-forward part.

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Mask};

use crate::checkpoint::Loader;
use crate::error::Result;
use crate::families::linear::{Linear, group};
use crate::families::norm::Norm;

/// Epsilon of every layer norm (the default of the reference, which does not set it).
pub(super) const EPSILON: f32 = 1e-5;

/// Projections of one attention. Keys have no bias, as in the paper's code.
pub(super) struct Attention<B: Backend> {
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    out: Linear<B>,
}

impl<B: Backend> Attention<B> {
    pub(super) fn load(loader: &mut Loader<'_, B>, name: &str, width: usize) -> Result<Self> {
        Ok(Self {
            query: Linear::load(loader, &format!("{name}.q_proj"), [width, width], true)?,
            key: Linear::load(loader, &format!("{name}.k_proj"), [width, width], false)?,
            value: Linear::load(loader, &format!("{name}.v_proj"), [width, width], true)?,
            out: Linear::load(loader, &format!("{name}.out_proj"), [width, width], true)?,
        })
    }

    /// Query, key and value of the same rows.
    pub(super) fn project(&self, backend: &B, x: &B::Tensor) -> Result<[B::Tensor; 3]> {
        group(backend, x, [&self.query, &self.key, &self.value])
    }

    /// Query alone (cross attention).
    pub(super) fn query(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        self.query.forward(backend, x)
    }

    /// Key and value of encoded rows (cross attention).
    pub(super) fn key_value(&self, backend: &B, encoded: &B::Tensor) -> Result<[B::Tensor; 2]> {
        group(backend, encoded, [&self.key, &self.value])
    }

    /// `x` plus the projected attention output.
    pub(super) fn finish(&self, backend: &B, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.add(x, &self.out.forward(backend, attended)?)?)
    }
}

/// The feed-forward part of a block, its norm included.
pub(super) struct FeedForward<B: Backend> {
    norm: Norm<B>,
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: Backend> FeedForward<B> {
    /// From the tensors `fc1`, `fc2` and `final_layer_norm` of a block.
    pub(super) fn load(loader: &mut Loader<'_, B>, block: &str, width: usize, inner: usize) -> Result<Self> {
        Ok(Self {
            norm: Norm::layer(loader, &format!("{block}.final_layer_norm"), width, EPSILON)?,
            up: Linear::load(loader, &format!("{block}.fc1"), [inner, width], true)?,
            down: Linear::load(loader, &format!("{block}.fc2"), [width, inner], true)?,
        })
    }

    /// `x + down(gelu(up(norm(x))))`.
    pub(super) fn forward(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let inner = self.up.forward(backend, &self.norm.forward(backend, x)?)?;
        let inner = backend.activate(&inner, Activation::Gelu)?;
        Ok(backend.add(x, &self.down.forward(backend, &inner)?)?)
    }
}

/// Heads of `width` columns under this mask.
pub(super) fn heads(width: usize, heads: usize, mask: Mask) -> AttentionSpec {
    let head_dim = width / heads;
    AttentionSpec { heads, kv_heads: heads, head_dim, scale: (head_dim as f32).powf(-0.5), mask }
}
