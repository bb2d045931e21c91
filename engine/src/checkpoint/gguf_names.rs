//! GGUF translated to the Hugging Face layout: names, config, row order, vocabulary. Families see one layout.

use serde_json::{Map, Value as Json, json};

use super::files::{Bytes, malformed};
use super::gguf::{Gguf, Value, read};
use super::tensors::{Entry, Storage, Tensors};
use crate::card::GgufVocabulary;
use crate::error::{EngineError, ErrorKind, Result};

/// `(llama.cpp, Hugging Face)` names outside and inside a block.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];
const INNER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Frequency divisors of Llama 3's context extension.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Texts of tokens that end a turn in chat models whose metadata name only the end of a document.
const TURN_ENDS: [&str; 2] = ["<|eot_id|>", "<|im_end|>"];

/// A GGUF file in the terms of a Hugging Face folder.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) tensors: Tensors,
    pub(super) config: Json,
    pub(super) generation: Json,
    pub(super) vocabulary: GgufVocabulary,
    pub(super) chat_template: Option<String>,
    pub(super) template_tokens: Vec<(String, String)>,
}

/// Reads a GGUF file.
pub(super) fn translate(label: String, bytes: Bytes) -> Result<Translated> {
    let gguf = read(&label, &bytes)?;
    let meta = Meta { label: &label, gguf: &gguf };
    let architecture = meta.text("general.architecture")?.ok_or_else(|| {
        malformed(&label, "does not say its general.architecture; convert it again with a current llama.cpp")
    })?;
    if !matches!(architecture, "llama" | "qwen2" | "qwen3") {
        let detail = format!("{label} has architecture {architecture}; GGUF files of llama, qwen2 and qwen3 are read");
        return Err(EngineError::new(ErrorKind::Unsupported, detail));
    }
    let vocabulary = vocabulary(&meta)?;
    let config = config(&meta, architecture, &vocabulary, &bytes)?;
    let generation = json!({ "eos_token_id": end_tokens(&meta, &vocabulary)? });
    let template_tokens = [("bos_token", vocabulary.bos), ("eos_token", vocabulary.eos)]
        .into_iter()
        .chain([
            ("unk_token", meta.token("tokenizer.ggml.unknown_token_id")?),
            ("pad_token", meta.token("tokenizer.ggml.padding_token_id")?),
        ])
        .filter_map(|(name, id)| Some((name.to_owned(), vocabulary.tokens.get(id? as usize)?.clone())))
        .collect();
    let chat_template = meta.text("tokenizer.chat_template")?.map(str::to_owned);
    let tensors = tensors(&meta, architecture, &config, bytes)?;
    Ok(Translated { tensors, config, generation, vocabulary, chat_template, template_tokens })
}

fn tensors(meta: &Meta<'_>, architecture: &str, config: &Json, bytes: Bytes) -> Result<Tensors> {
    let heads = |field: &str| config[field].as_u64().unwrap_or(0) as usize;
    let mut tensors = Tensors { files: vec![(meta.label.to_owned(), bytes)], ..Tensors::default() };
    for tensor in meta.gguf.tensors.iter().filter(|tensor| tensor.name != ROPE_FACTORS) {
        let name = translate_name(&tensor.name);
        let interleaved_heads = match () {
            () if architecture != "llama" => None,
            () if name.contains(".self_attn.q_proj.") => Some(heads("num_attention_heads")),
            () if name.contains(".self_attn.k_proj.") => Some(heads("num_key_value_heads")),
            () => None,
        };
        if let Some(heads) = interleaved_heads
            && (heads == 0 || tensor.shape[0] == 0 || !tensor.shape[0].is_multiple_of(2 * heads))
        {
            let detail =
                format!("holds tensor {} of shape {:?}, no multiple of {heads} heads", tensor.name, tensor.shape);
            return Err(malformed(meta.label, &detail));
        }
        let storage = Storage::Known(tensor.format);
        let entry =
            Entry { file: 0, storage, shape: tensor.shape.clone(), range: tensor.range.clone(), interleaved_heads };
        tensors.add(name, entry)?;
    }
    Ok(tensors)
}

/// The Hugging Face name of a llama.cpp tensor; an unknown name stays as it is (and is then found to be surplus).
fn translate_name(name: &str) -> String {
    let translated = || -> Option<String> {
        let (stem, suffix) = name.rsplit_once('.')?;
        let find = |table: &[(&str, &'static str)], key: &str| table.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        match stem.strip_prefix("blk.") {
            None => Some(format!("{}.{suffix}", find(&OUTER, stem)?)),
            Some(rest) => {
                let (block, part) = rest.split_once('.')?;
                Some(format!("model.layers.{block}.{}.{suffix}", find(&INNER, part)?))
            }
        }
    };
    translated().unwrap_or_else(|| name.to_owned())
}

fn config(meta: &Meta<'_>, architecture: &str, vocabulary: &GgufVocabulary, bytes: &[u8]) -> Result<Json> {
    let key = |name: &str| format!("{architecture}.{name}");
    let required = |name: &str| {
        meta.integer(&key(name))?.ok_or_else(|| malformed(meta.label, &format!("has no metadata {}", key(name))))
    };
    if meta.integer(&key("expert_count"))?.unwrap_or(0) > 0 {
        let detail = format!("{} is a mixture of experts, which is not supported", meta.label);
        return Err(EngineError::new(ErrorKind::Unsupported, detail));
    }
    let heads = required("attention.head_count")?;
    let hidden = required("embedding_length")?;
    let head_dim = match meta.integer(&key("attention.key_length"))? {
        Some(size) => size,
        None => hidden / heads.max(1),
    };
    let rotary_dim = meta.integer(&key("rope.dimension_count"))?.unwrap_or(head_dim);
    let has = |name: &str| meta.gguf.tensors.iter().any(|tensor| tensor.name == name);
    let rows = vocabulary.tokens.len();
    let theta = meta.float(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let mut rope = Map::new();
    rope.insert("rope_theta".into(), json!(theta));
    rope.insert("partial_rotary_factor".into(), json!(rotary_dim as f64 / head_dim.max(1) as f64));
    let kind = meta.text(&key("rope.scaling.type"))?.unwrap_or("none");
    rope.insert("rope_type".into(), json!(if kind == "none" { "default" } else { kind }));
    if let Some(factor) = meta.float(&key("rope.scaling.factor"))? {
        rope.insert("factor".into(), json!(factor));
    }
    if let Some(original) = meta.integer(&key("rope.scaling.original_context_length"))? {
        rope.insert("original_max_position_embeddings".into(), json!(original));
    }
    if let Some(tensor) = meta.gguf.tensors.iter().find(|tensor| tensor.name == ROPE_FACTORS) {
        let factors = super::tensors::floats(tensor.format, &bytes[tensor.range.clone()]);
        let factors = factors.ok_or_else(|| malformed(meta.label, "holds rope_freqs.weight in a quantised format"))?;
        rope.insert("rope_type".into(), json!("factors"));
        rope.insert("factors".into(), json!(factors));
    }
    let mut config = json!({
        "model_type": architecture,
        "hidden_size": hidden,
        "num_hidden_layers": required("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer(&key("attention.head_count_kv"))?.unwrap_or(heads),
        "head_dim": head_dim,
        "intermediate_size": required("feed_forward_length")?,
        "max_position_embeddings": required("context_length")?,
        "rms_norm_eps": meta.float(&key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-5),
        "vocab_size": rows,
        "tie_word_embeddings": !has("output.weight"),
        "attention_bias": has("blk.0.attn_q.bias"),
        "attention_output_bias": has("blk.0.attn_output.bias"),
        "rope_parameters": rope,
    });
    if let Some(window) = meta.integer(&key("attention.sliding_window"))?.filter(|&window| window > 0) {
        config["sliding_window"] = json!(window);
        config["use_sliding_window"] = json!(true);
    }
    Ok(config)
}

fn vocabulary(meta: &Meta<'_>) -> Result<GgufVocabulary> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let texts = |name: &str| match meta.gguf.metadata.get(&key(name)) {
        None => Ok(Vec::new()),
        Some(Value::Texts(list)) => Ok(list.clone()),
        Some(_) => Err(meta.wrong(&key(name), "a list of texts")),
    };
    let tokens = texts("tokens")?;
    if tokens.is_empty() {
        return Err(malformed(meta.label, "has no tokenizer.ggml.tokens; convert it again with its tokenizer"));
    }
    let scores = match meta.gguf.metadata.get(&key("scores")) {
        None => Vec::new(),
        Some(Value::Floats(list)) => list.clone(),
        Some(_) => return Err(meta.wrong(&key("scores"), "a list of numbers")),
    };
    let types = match meta.gguf.metadata.get(&key("token_type")) {
        None => Vec::new(),
        Some(Value::Integers(list)) => list.iter().map(|&kind| i32::try_from(kind).unwrap_or(0)).collect(),
        Some(_) => return Err(meta.wrong(&key("token_type"), "a list of integers")),
    };
    for (name, len) in [("scores", scores.len()), ("token_type", types.len())] {
        if len != 0 && len != tokens.len() {
            return Err(meta.wrong(&key(name), &format!("{} long like tokenizer.ggml.tokens, but {len}", tokens.len())));
        }
    }
    let model = meta.text(&key("model"))?.unwrap_or_default().to_owned();
    let add_bos = match meta.gguf.metadata.get(&key("add_bos_token")) {
        Some(Value::Bool(add)) => *add,
        // llama.cpp's rule for files that do not say it.
        _ => model == "llama",
    };
    Ok(GgufVocabulary {
        pre: meta.text(&key("pre"))?.unwrap_or_default().to_owned(),
        scores,
        types,
        merges: texts("merges")?,
        bos: meta.token(&key("bos_token_id"))?,
        eos: meta.token(&key("eos_token_id"))?,
        add_bos,
        model,
        tokens,
    })
}

fn end_tokens(meta: &Meta<'_>, vocabulary: &GgufVocabulary) -> Result<Vec<u32>> {
    let mut ends: Vec<u32> = vocabulary.eos.into_iter().collect();
    let turn_end = match meta.token("tokenizer.ggml.eot_token_id")? {
        Some(id) => Some(id),
        None => TURN_ENDS.iter().find_map(|text| vocabulary.tokens.iter().position(|t| t == text)).map(|id| id as u32),
    };
    ends.extend(turn_end.filter(|id| !ends.contains(id)));
    Ok(ends)
}

/// Metadata with typed access.
struct Meta<'a> {
    label: &'a str,
    gguf: &'a Gguf,
}

impl Meta<'_> {
    fn wrong(&self, key: &str, expected: &str) -> EngineError {
        malformed(self.label, &format!("has metadata {key} that is not {expected}"))
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.gguf.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "text")),
        }
    }

    /// A count; a list of equal counts (one a layer) stands for its element.
    fn integer(&self, key: &str) -> Result<Option<u64>> {
        match self.gguf.metadata.get(key) {
            None => Ok(None),
            Some(Value::Integer(n)) => u64::try_from(*n).map(Some).map_err(|_| self.wrong(key, "a count")),
            Some(Value::Integers(list)) if !list.is_empty() && list.iter().all(|n| n == &list[0]) => {
                u64::try_from(list[0]).map(Some).map_err(|_| self.wrong(key, "a count"))
            }
            Some(_) => Err(self.wrong(key, "one count for all layers")),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.gguf.metadata.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    fn token(&self, key: &str) -> Result<Option<u32>> {
        self.integer(key)?.map(|id| u32::try_from(id).map_err(|_| self.wrong(key, "a token id"))).transpose()
    }
}
