//! A small random multilingual Whisper, the same bits as `reference.py` makes, as an embedded checkpoint.

use std::sync::OnceLock;

use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::json;
use weft_engine::config::{ModelConfig, ModelSource, Precision};
use weft_engine::media::{LogMel, MediaId};

pub(crate) const BINS: usize = 8;
pub(crate) const WIDTH: usize = 16;
/// Log-mel frames of a window.
pub(crate) const FRAMES: usize = 100;
/// `<|startoftranscript|>`.
pub(crate) const START: u32 = 41;
/// `<|endoftext|>`: text lies below.
pub(crate) const END: u32 = 40;

const VOCABULARY: usize = 101;
const INNER: usize = 32;
const LAYERS: usize = 2;
const CONTEXT: usize = 40;

/// What transformers computed.
#[derive(Debug, Deserialize)]
pub(crate) struct Reference {
    /// Encoder output of the clip `window`, row-major.
    pub(crate) encoded: Vec<f32>,
    /// Logits of six tokens on that clip, row-major.
    pub(crate) logits: Vec<f32>,
    pub(crate) cases: Vec<Case>,
}

/// A transcript of transformers.
#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    /// Clip, for [`clip`].
    pub(crate) name: String,
    pub(crate) frames: usize,
    /// Token of the detected language.
    pub(crate) heard: u32,
    pub(crate) segments: Vec<Segment>,
    pub(crate) task: String,
    pub(crate) language: Option<String>,
    #[serde(default)]
    pub(crate) condition_on_prev_tokens: bool,
    #[serde(default)]
    pub(crate) prompt_ids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Segment {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) tokens: Vec<u32>,
}

pub(crate) fn reference() -> Reference {
    serde_json::from_str(include_str!("reference.json")).expect("reference.json is what reference.py writes")
}

/// Values in [-1, 1] from the name alone.
fn noise(name: &str, count: usize) -> Vec<f64> {
    let hash = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    let mut state = name.bytes().fold(0xCBF2_9CE4_8422_2325, hash);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) % 2_000_001) as f64 / 1_000_000.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn weight(name: &str, count: usize) -> Vec<f32> {
    let scaled = |value: f64| match name {
        name if name.contains("norm.weight") => 1.0 + 0.1 * value,
        name if name.ends_with("bias") => 0.1 * value,
        name if !name.contains("embed") => 0.75 * value,
        _ => value,
    };
    noise(name, count).into_iter().map(|value| scaled(value) as f32).collect()
}

/// A random clip.
pub(crate) fn clip(name: &str, frames: usize) -> LogMel {
    let values = noise(name, frames * BINS).into_iter().map(|value| value as f32).collect();
    LogMel { values, frames, bins: BINS, id: MediaId(*blake3::hash(name.as_bytes()).as_bytes()) }
}

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = Vec::new();
    let mut add = |name: String, shape: &[usize]| shapes.push((name, shape.to_vec()));
    let mut pair = |add: &mut dyn FnMut(String, &[usize]), name: String, shape: &[usize]| {
        add(format!("{name}.weight"), shape);
        add(format!("{name}.bias"), &shape[..1]);
    };
    let mut attention = |add: &mut dyn FnMut(String, &[usize]), name: String| {
        for part in ["q_proj", "v_proj", "out_proj"] {
            pair(add, format!("{name}.{part}"), &[WIDTH, WIDTH]);
        }
        add(format!("{name}.k_proj.weight"), &[WIDTH, WIDTH]);
        pair(add, format!("{name}_layer_norm"), &[WIDTH]);
    };
    for tower in ["encoder", "decoder"] {
        for layer in 0..LAYERS {
            let block = format!("model.{tower}.layers.{layer}");
            attention(&mut add, format!("{block}.self_attn"));
            if tower == "decoder" {
                attention(&mut add, format!("{block}.encoder_attn"));
            }
        }
    }
    for tower in ["encoder", "decoder"] {
        for layer in 0..LAYERS {
            let block = format!("model.{tower}.layers.{layer}");
            for (name, shape) in [
                ("fc1.weight", vec![INNER, WIDTH]),
                ("fc1.bias", vec![INNER]),
                ("fc2.weight", vec![WIDTH, INNER]),
                ("fc2.bias", vec![WIDTH]),
                ("final_layer_norm.weight", vec![WIDTH]),
                ("final_layer_norm.bias", vec![WIDTH]),
            ] {
                add(format!("{block}.{name}"), &shape);
            }
        }
        for part in ["weight", "bias"] {
            add(format!("model.{tower}.layer_norm.{part}"), &[WIDTH]);
        }
    }
    for (name, shape) in [
        ("encoder.conv1.weight", vec![WIDTH, BINS, 3]),
        ("encoder.conv1.bias", vec![WIDTH]),
        ("encoder.conv2.weight", vec![WIDTH, WIDTH, 3]),
        ("encoder.conv2.bias", vec![WIDTH]),
        ("encoder.embed_positions.weight", vec![FRAMES / 2, WIDTH]),
        ("decoder.embed_positions.weight", vec![CONTEXT, WIDTH]),
        ("decoder.embed_tokens.weight", vec![VOCABULARY, WIDTH]),
    ] {
        add(format!("model.{name}"), &shape);
    }
    shapes
}

fn safetensors() -> Vec<u8> {
    let stored: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let values = weight(&name, shape.iter().product());
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes fit the shape"))
    });
    safetensors::serialize(views, None).expect("serialises")
}

/// The checkpoint, made once.
pub(crate) fn model() -> ModelConfig {
    static FILES: OnceLock<&'static [(&'static str, &'static [u8])]> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let config = json!({
            "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": VOCABULARY, "num_mel_bins": BINS, "d_model": WIDTH,
            "encoder_layers": LAYERS, "decoder_layers": LAYERS,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER,
            "max_source_positions": FRAMES / 2, "max_target_positions": CONTEXT,
        });
        let generation = json!({
            "decoder_start_token_id": START, "eos_token_id": END, "is_multilingual": true,
            "no_timestamps_token_id": 49, "prev_sot_token_id": 47, "max_initial_timestamp_index": 10,
            "suppress_tokens": [3, 7, 41, 45, 46, 47, 48], "begin_suppress_tokens": [5, END],
            "lang_to_id": {"<|en|>": 42, "<|de|>": 43, "<|fr|>": 44},
            "task_to_id": {"translate": 45, "transcribe": 46}, "max_length": 448,
        });
        let files = vec![
            ("config.json", config.to_string().into_bytes()),
            ("generation_config.json", generation.to_string().into_bytes()),
            ("tokenizer.json", json!({"added_tokens": []}).to_string().into_bytes()),
            ("model.safetensors", safetensors()),
        ];
        files.into_iter().map(|(name, bytes)| (name, &*bytes.leak())).collect::<Vec<_>>().leak()
    });
    ModelConfig { name: "ears".to_owned(), source: ModelSource::Embedded(files), precision: Precision::Stored }
}
