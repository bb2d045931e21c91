//! A text decoder's config, resolved.

use weft_kernels::shapes::{Activation, Mask, RotaryFrequencies};

use super::rotary;
use crate::checkpoint::Fields;
use crate::error::Result;
use crate::families::Outline;

/// More than any decoder has: a config is not believed before its tensors are seen.
const MAX_LAYERS: usize = 4096;
const MAX_HEAD: usize = 1 << 16;

/// Whose config class a decoder has: what stands in no field and what absent fields mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Llama, SmolLM2, Mistral.
    Llama,
    /// Qwen2 and the models that speak through it: biases on queries, keys and values.
    Qwen2,
    /// Qwen3: norms over each query and key head.
    Qwen3,
    /// Phi-3 and Phi-4: queries, keys and values in one tensor, gate and up in another.
    Phi3,
}

/// Everything that shapes a decoder, with no option left open.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecoderConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the gated product.
    pub intermediate: usize,
    /// Rows of logits.
    pub vocabulary: usize,
    /// Longest sequence.
    pub context: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Function of the gate.
    pub activation: Activation,
    /// Biases on query, key and value.
    pub qkv_bias: bool,
    /// Bias on the attention's output.
    pub output_bias: bool,
    /// Biases in the gated product.
    pub mlp_bias: bool,
    /// Norms over each query and key head (Qwen3).
    pub head_norms: bool,
    /// Whether products of one input lie in one tensor (Phi-3).
    pub joined: bool,
    /// Whether logits use the embedding table; `None` when the config leaves it to the checkpoint.
    pub tied: Option<bool>,
    /// Rotary positions.
    pub rotary: RotaryFrequencies,
    /// Visibility, one a layer.
    pub masks: Vec<Mask>,
}

impl DecoderConfig {
    /// Reads the decoder's own object (`text_config` in multimodal models).
    pub(crate) fn read(fields: &Fields<'_>, dialect: Dialect) -> Result<Self> {
        let hidden = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.opt_size("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads > heads || !heads.is_multiple_of(kv_heads) {
            return Err(fields.wrong("num_key_value_heads", &format!("a divisor of num_attention_heads ({heads})")));
        }
        let head_dim = match fields.opt_size("head_dim")? {
            Some(head_dim) => head_dim,
            // Qwen3's config class has its own default.
            None if dialect == Dialect::Qwen3 => 128,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(fields.wrong("num_attention_heads", "a divisor of hidden_size")),
        };
        let context = fields.size("max_position_embeddings")?;
        let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
        let qwen2 = dialect == Dialect::Qwen2;
        let layers = fields.size("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(fields.wrong("num_hidden_layers", &format!("a number up to {MAX_LAYERS}")));
        }
        if head_dim > MAX_HEAD {
            return Err(fields.wrong("head_dim", &format!("a number up to {MAX_HEAD}")));
        }
        Ok(Self {
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: fields.size("intermediate_size")?,
            vocabulary: fields.size("vocab_size")?,
            context,
            eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            activation: activation(fields, "hidden_act")?,
            qkv_bias: qwen2 || attention_bias,
            output_bias: attention_bias && !qwen2 && fields.flag("attention_output_bias")?.unwrap_or(true),
            mlp_bias: fields.flag("mlp_bias")?.unwrap_or(false),
            head_norms: dialect == Dialect::Qwen3,
            joined: dialect == Dialect::Phi3,
            tied: fields.flag("tie_word_embeddings")?,
            rotary: rotary::frequencies(fields, head_dim, context)?,
            masks: masks(fields, layers, dialect)?,
        })
    }

    /// The outline of a model of this decoder and nothing else.
    pub(crate) const fn outline(&self) -> Outline {
        Outline {
            vocabulary: self.vocabulary,
            context: self.context,
            kv_bytes_per_token: 2 * 4 * self.layers * self.kv_heads * self.head_dim,
            image: None,
            audio: None,
        }
    }
}

/// A pointwise function by its name in configs.
pub(crate) fn activation(fields: &Fields<'_>, key: &str) -> Result<Activation> {
    match fields.text(key)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_tanh" => Ok(Activation::GeluTanh),
        "quick_gelu" => Ok(Activation::QuickGelu),
        "relu" => Ok(Activation::Relu),
        other => Err(fields.unsupported(&format!("activation {other} is not supported"))),
    }
}

/// Visibility of every layer: `layer_types` where the config has it, else the older fields.
fn masks(fields: &Fields<'_>, layers: usize, dialect: Dialect) -> Result<Vec<Mask>> {
    let slides = matches!(dialect, Dialect::Llama | Dialect::Phi3);
    let window = match fields.opt_size("sliding_window")? {
        // Mistral and Phi slide wherever they state a window, the Qwens only when switched on.
        Some(window) if slides || fields.flag("use_sliding_window")?.unwrap_or(false) => Some(window),
        _ => None,
    };
    let sliding = window.map_or(Mask::Causal, |window| Mask::SlidingWindow(window as u32));
    if let Some(kinds) = fields.get("layer_types") {
        let wrong = || fields.wrong("layer_types", "full_attention or sliding_attention for every layer");
        let kinds = kinds.as_array().filter(|kinds| kinds.len() == layers).ok_or_else(wrong)?;
        return kinds
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(Mask::Causal),
                Some("sliding_attention") => Ok(sliding),
                _ => Err(wrong()),
            })
            .collect();
    }
    let full_below = match dialect {
        Dialect::Qwen2 | Dialect::Qwen3 => fields.count("max_window_layers")?.unwrap_or(0),
        Dialect::Llama | Dialect::Phi3 => 0,
    };
    Ok((0..layers).map(|layer| if layer < full_below { Mask::Causal } else { sliding }).collect())
}
