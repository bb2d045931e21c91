//! A checkpoint of random weights with SmolVLM's sizes in the layout of the flagship, for measurements in which the
//! embedded model is too small to matter. Its answers mean nothing.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{EngineError, ErrorKind, Result};

const TEXT: usize = 576;
const TEXT_LAYERS: usize = 30;
const TEXT_INNER: usize = 1536;
const KEYS: usize = 192;
const VOCABULARY: usize = 49_152;
const VISION: usize = 768;
const VISION_LAYERS: usize = 12;
/// A gated product of this width has as many weights as a plain one of 3072.
const VISION_INNER: usize = 2048;
const MERGED: usize = 4 * VISION;
const PATCH: [usize; 4] = [3, 2, 14, 14];

/// Writes the checkpoint into a folder that exists. `files` are those of a small checkpoint of the same family, of which
/// all but the weights are kept; its audio tower keeps its size.
pub fn write_checkpoint(folder: &Path, files: &[(&str, &[u8])]) -> Result<()> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(|error| failed(&path, &error))
    };
    let mut config = Value::Null;
    for (name, bytes) in files.iter().filter(|(name, _)| !name.contains("safetensors")) {
        if *name == "config.json" {
            config = serde_json::from_slice(bytes)
                .map_err(|error| EngineError::new(ErrorKind::Malformed, format!("config.json: {error}")))?;
        } else {
            write(name, bytes)?;
        }
    }
    resize(&mut config);
    write("config.json", config.to_string().as_bytes())?;
    let path = folder.join("model.safetensors");
    weights(&path, &tensors(&config)).map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> EngineError {
    EngineError::new(ErrorKind::Internal, format!("cannot write {}: {error}", path.display()))
}

fn resize(config: &mut Value) {
    let mut set = |part: &str, values: Value| {
        if let (Some(part), Value::Object(values)) = (config[part].as_object_mut(), values) {
            part.extend(values);
        }
    };
    set(
        "text_config",
        json!({
            "hidden_size": TEXT, "intermediate_size": TEXT_INNER, "num_hidden_layers": TEXT_LAYERS,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": VOCABULARY,
            "layer_types": vec!["full_attention"; TEXT_LAYERS],
            "rope_parameters": { "mrope_section": [8, 12, 12], "rope_theta": 1e6, "rope_type": "default" },
        }),
    );
    set(
        "vision_config",
        json!({
            "hidden_size": VISION, "intermediate_size": VISION_INNER, "depth": VISION_LAYERS, "num_heads": 12,
            "out_hidden_size": TEXT, "fullatt_block_indexes": [2, 5, 8, 11],
        }),
    );
    set("audio_config", json!({ "output_dim": TEXT }));
}

type Shapes = Vec<(String, Vec<usize>)>;

fn tensors(config: &Value) -> Shapes {
    let mut all: Shapes = Vec::new();
    let mut add = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    add("model.embed_tokens.weight".into(), &[VOCABULARY, TEXT]);
    add("model.norm.weight".into(), &[TEXT]);
    for layer in 0..TEXT_LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        add(name("input_layernorm.weight"), &[TEXT]);
        add(name("post_attention_layernorm.weight"), &[TEXT]);
        for (part, outputs) in [("q", TEXT), ("k", KEYS), ("v", KEYS)] {
            add(name(&format!("self_attn.{part}_proj.weight")), &[outputs, TEXT]);
            add(name(&format!("self_attn.{part}_proj.bias")), &[outputs]);
        }
        add(name("self_attn.o_proj.weight"), &[TEXT, TEXT]);
        add(name("mlp.gate_proj.weight"), &[TEXT_INNER, TEXT]);
        add(name("mlp.up_proj.weight"), &[TEXT_INNER, TEXT]);
        add(name("mlp.down_proj.weight"), &[TEXT, TEXT_INNER]);
    }
    let [channels, frames, height, width] = PATCH;
    add("visual.patch_embed.proj.weight".into(), &[VISION, channels, frames, height, width]);
    add("visual.merger.ln_q.weight".into(), &[VISION]);
    let mut product = |name: String, outputs: usize, inputs: usize| {
        add(format!("{name}.weight"), &[outputs, inputs]);
        add(format!("{name}.bias"), &[outputs]);
    };
    product("visual.merger.mlp.0".into(), MERGED, MERGED);
    product("visual.merger.mlp.2".into(), TEXT, MERGED);
    for layer in 0..VISION_LAYERS {
        let name = |part: &str| format!("visual.blocks.{layer}.{part}");
        for part in ["attn.q", "attn.k", "attn.v", "attn.proj"] {
            product(name(part), VISION, VISION);
        }
        product(name("mlp.gate_proj"), VISION_INNER, VISION);
        product(name("mlp.up_proj"), VISION_INNER, VISION);
        product(name("mlp.down_proj"), VISION, VISION_INNER);
    }
    for layer in 0..VISION_LAYERS {
        for norm in ["norm1", "norm2"] {
            all.push((format!("visual.blocks.{layer}.{norm}.weight"), vec![VISION]));
        }
    }
    audio(&mut all, &config["audio_config"]);
    all
}

fn audio(all: &mut Shapes, config: &Value) {
    let size = |key: &str| usize::try_from(config[key].as_u64().unwrap_or(0)).unwrap_or(0);
    let (width, inner, bins) = (size("d_model"), size("encoder_ffn_dim"), size("num_mel_bins"));
    let mut add = |name: String, shape: &[usize]| all.push((format!("audio_tower.{name}"), shape.to_vec()));
    for (name, channels) in [("conv1", bins), ("conv2", width)] {
        add(format!("{name}.weight"), &[width, channels, 3]);
        add(format!("{name}.bias"), &[width]);
    }
    add("proj.weight".into(), &[TEXT, width]);
    add("proj.bias".into(), &[TEXT]);
    let norms = |layer: usize| ["self_attn_layer_norm", "final_layer_norm"].map(|n| format!("layers.{layer}.{n}"));
    let layers = size("encoder_layers");
    for norm in (0..layers).flat_map(norms).chain(["ln_post".into()]) {
        add(format!("{norm}.weight"), &[width]);
        add(format!("{norm}.bias"), &[width]);
    }
    for layer in 0..layers {
        for (part, outputs, inputs) in [
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", width, width),
            ("self_attn.v_proj", width, width),
            ("self_attn.out_proj", width, width),
            ("fc1", inner, width),
            ("fc2", width, inner),
        ] {
            add(format!("layers.{layer}.{part}.weight"), &[outputs, inputs]);
            if part != "self_attn.k_proj" {
                add(format!("layers.{layer}.{part}.bias"), &[outputs]);
            }
        }
    }
}

/// A safetensors file: norms of one, small uniform values elsewhere.
fn weights(path: &Path, tensors: &Shapes) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let bytes = 2 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes] });
        header.insert(name.clone(), entry);
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (name, shape) in tensors {
        let norm = name.contains("norm") && name.ends_with("weight") || name.contains("ln_");
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
            let value = if norm { 1.0 } else { 0.07 * uniform };
            // The upper half of a float32 is a bfloat16, rounded towards zero.
            file.write_all(&value.to_bits().to_le_bytes()[2..])?;
        }
    }
    file.flush()
}
