//! The blocks that encoder and decoder share: layer norm, the projections of an attention, the feed-forward part.

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, Mask};

use crate::checkpoint::Loader;
use crate::error::Result;

/// Epsilon of every layer norm (the default of the reference, which does not set it).
const EPSILON: f32 = 1e-5;

/// A layer norm.
pub(super) struct Norm<B: Backend> {
    weight: B::Tensor,
    bias: B::Tensor,
}

impl<B: Backend> Norm<B> {
    pub(super) fn load(loader: &mut Loader<'_, B>, name: &str, width: usize) -> Result<Self> {
        Ok(Self {
            weight: loader.vector(&format!("{name}.weight"), width)?,
            bias: loader.vector(&format!("{name}.bias"), width)?,
        })
    }

    pub(super) fn run(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.layer_norm(x, &self.weight, Some(&self.bias), EPSILON)?)
    }
}

/// A product with its bias.
pub(super) struct Linear<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Tensor>,
}

impl<B: Backend> Linear<B> {
    /// `outputs x inputs` with a bias.
    pub(super) fn load(loader: &mut Loader<'_, B>, name: &str, outputs: usize, inputs: usize) -> Result<Self> {
        let bias = Some(loader.vector(&format!("{name}.bias"), outputs)?);
        Ok(Self { bias, ..Self::without_bias(loader, name, outputs, inputs)? })
    }

    /// `outputs x inputs` without a bias.
    pub(super) fn without_bias(loader: &mut Loader<'_, B>, name: &str, outputs: usize, inputs: usize) -> Result<Self> {
        Ok(Self { weight: loader.weight(&format!("{name}.weight"), outputs, inputs)?, bias: None })
    }

    pub(super) fn part(&self) -> (&B::Weight, Option<&B::Tensor>) {
        (&self.weight, self.bias.as_ref())
    }

    pub(super) fn run(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.linear(x, &self.weight, self.bias.as_ref())?)
    }
}

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
            query: Linear::load(loader, &format!("{name}.q_proj"), width, width)?,
            key: Linear::without_bias(loader, &format!("{name}.k_proj"), width, width)?,
            value: Linear::load(loader, &format!("{name}.v_proj"), width, width)?,
            out: Linear::load(loader, &format!("{name}.out_proj"), width, width)?,
        })
    }

    /// Query, key and value of the same rows.
    pub(super) fn project(&self, backend: &B, x: &B::Tensor) -> Result<[B::Tensor; 3]> {
        let parts = backend.linear_group(x, &[self.query.part(), self.key.part(), self.value.part()])?;
        Ok(take(parts))
    }

    /// Query alone (cross attention).
    pub(super) fn query(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        self.query.run(backend, x)
    }

    /// Key and value of encoded rows (cross attention).
    pub(super) fn key_value(&self, backend: &B, encoded: &B::Tensor) -> Result<[B::Tensor; 2]> {
        let parts = backend.linear_group(encoded, &[self.key.part(), self.value.part()])?;
        Ok(take(parts))
    }

    /// `x` plus the projected attention output.
    pub(super) fn finish(&self, backend: &B, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.add(x, &self.out.run(backend, attended)?)?)
    }
}

fn take<T, const N: usize>(parts: Vec<T>) -> [T; N] {
    parts.try_into().ok().expect("a group gives one tensor a part")
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
            norm: Norm::load(loader, &format!("{block}.final_layer_norm"), width)?,
            up: Linear::load(loader, &format!("{block}.fc1"), inner, width)?,
            down: Linear::load(loader, &format!("{block}.fc2"), width, inner)?,
        })
    }

    /// `x + down(gelu(up(norm(x))))`.
    pub(super) fn run(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        let inner = self.up.run(backend, &self.norm.run(backend, x)?)?;
        let inner = backend.activate(&inner, Activation::Gelu)?;
        Ok(backend.add(x, &self.down.run(backend, &inner)?)?)
    }
}

/// Heads of `width` columns under this mask.
pub(super) fn heads(width: usize, heads: usize, mask: Mask) -> AttentionSpec {
    let head_dim = width / heads;
    AttentionSpec { heads, kv_heads: heads, head_dim, scale: (head_dim as f32).powf(-0.5), mask }
}
