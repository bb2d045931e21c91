//! One decoder layer: grouped-query attention over pages, then a gated product, both behind RMS norms.

use weft_kernels::Backend;
use weft_kernels::shapes::{Activation, AttentionSpec, PagedSequence};

use super::config::DecoderConfig;
use crate::checkpoint::Loader;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::linear::{Linear, group};

/// Weights of a layer.
pub(super) struct Layer<B: Backend> {
    /// Norm before attention.
    pub(super) input_norm: B::Tensor,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    head_norms: Option<(B::Tensor, B::Tensor)>,
    output: Linear<B>,
    middle_norm: B::Tensor,
    gate: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
    attention: AttentionSpec,
    activation: Activation,
    eps: f32,
}

/// What all layers of a step share.
pub(super) struct Step<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) rotary: B::Tensor,
    pub(super) slots: &'a [u32],
    pub(super) sequences: Vec<PagedSequence<'a>>,
}

impl<B: Backend> Layer<B> {
    pub(super) fn load(loader: &mut Loader<'_, B>, prefix: &str, config: &DecoderConfig, layer: usize) -> Result<Self> {
        let name = |part: &str| format!("{prefix}.{part}");
        let hidden = config.hidden;
        let (query_width, key_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let inner = config.intermediate;
        let heads = [query_width, key_width, key_width];
        let mut products = Products { loader, config };
        let [query, key, value] = products.load(
            &name("self_attn.qkv_proj"),
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(name),
            heads,
            config.qkv_bias,
        )?;
        let [gate, up] = products.load(
            &name("mlp.gate_up_proj"),
            ["mlp.gate_proj", "mlp.up_proj"].map(name),
            [inner; 2],
            config.mlp_bias,
        )?;
        Ok(Self {
            input_norm: loader.vector(&name("input_layernorm.weight"), hidden)?,
            query,
            key,
            value,
            head_norms: match config.head_norms {
                true => Some((
                    loader.vector(&name("self_attn.q_norm.weight"), config.head_dim)?,
                    loader.vector(&name("self_attn.k_norm.weight"), config.head_dim)?,
                )),
                false => None,
            },
            output: Linear::load(loader, &name("self_attn.o_proj"), [hidden, query_width], config.output_bias)?,
            middle_norm: loader.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate,
            up,
            down: Linear::load(loader, &name("mlp.down_proj"), [hidden, inner], config.mlp_bias)?,
            attention: AttentionSpec {
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_dim: config.head_dim,
                scale: (config.head_dim as f64).powf(-0.5) as f32,
                mask: config.masks[layer],
            },
            activation: config.activation,
            eps: config.eps,
        })
    }

    /// Writes keys and values of all rows into the pages and returns the queries.
    pub(super) fn project(&self, step: &Step<'_, B>, normed: &B::Tensor, pages: &mut B::Pages) -> Result<B::Tensor> {
        let backend = step.backend;
        let [mut query, mut key, value] = group(backend, normed, [&self.query, &self.key, &self.value])?;
        if let Some((query_norm, key_norm)) = &self.head_norms {
            query = backend.rms_norm(&query, query_norm, self.eps)?;
            key = backend.rms_norm(&key, key_norm, self.eps)?;
        }
        Ok(backend.rotary_kv_write(pages, (&query, &key, &value), &step.rotary, step.slots)?)
    }

    /// The rest of the layer: attention of the queries of `sequences`, the residual sum after it, and the gated product,
    /// which the next norm adds to that sum.
    pub(super) fn finish(
        &self,
        backend: &B,
        residual: &B::Tensor,
        attend: Attend<'_, B>,
    ) -> Result<(B::Tensor, B::Tensor)> {
        let attended = backend.paged_attention(attend.query, attend.pages, attend.sequences, &self.attention)?;
        let attended = self.output.forward(backend, &attended)?;
        let (sum, normed) = backend.add_rms_norm(&attended, residual, &self.middle_norm, self.eps)?;
        let [gate, up] = group(backend, &normed, [&self.gate, &self.up])?;
        let inner = backend.gated(&gate, &up, self.activation)?;
        Ok((sum, self.down.forward(backend, &inner)?))
    }
}

/// Products of one input, each in a tensor of its own or all in one.
struct Products<'l, 'a, B: Backend> {
    loader: &'l mut Loader<'a, B>,
    config: &'l DecoderConfig,
}

impl<B: Backend> Products<'_, '_, B> {
    /// `joined` is the name of the one tensor, `names` those of the single ones; `outputs` of each.
    fn load<const N: usize>(
        &mut self,
        joined: &str,
        names: [String; N],
        outputs: [usize; N],
        bias: bool,
    ) -> Result<[Linear<B>; N]> {
        let hidden = self.config.hidden;
        let mut parts = Vec::with_capacity(N);
        for (part, name) in names.iter().enumerate() {
            parts.push(match self.config.joined {
                true => Linear::load_part(self.loader, joined, (part, &outputs), hidden, bias)?,
                false => Linear::load(self.loader, name, [outputs[part], hidden], bias)?,
            });
        }
        let wrong = |_| EngineError::new(ErrorKind::Internal, "as many products as names");
        parts.try_into().map_err(wrong)
    }
}

/// Queries and where their keys lie.
pub(super) struct Attend<'a, B: Backend> {
    pub(super) query: &'a B::Tensor,
    pub(super) pages: &'a B::Pages,
    pub(super) sequences: &'a [PagedSequence<'a>],
}
