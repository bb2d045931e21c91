//! GGUF files, written here byte by byte, against the same weights in the Hugging Face layout.

use std::collections::BTreeMap;

use serde_json::json;
use weft_engine::card::TokenizerSource;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::error::ErrorKind;
use weft_engine::families::Loaded;
use weft_engine::handle::{ModelConfig, ModelSource, Precision};
use weft_kernels::CpuBackend;

use crate::driver::{PAGE_TOKENS, Prompt, answer, difference};
use crate::strict::leak;

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 8;
const INNER: usize = 64;
const LAYERS: usize = 2;
const VOCABULARY: usize = 40;

/// A matrix (or vector, one row) of a small model.
#[derive(Clone)]
struct Matrix {
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Weights of a Llama under their Hugging Face names, from a fixed generator.
fn weights() -> BTreeMap<String, Matrix> {
    let mut seed = 7u64;
    let mut random = move |shape: &[usize], centre: f32| {
        let values = (0..shape.iter().product()).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            centre + ((seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.6
        });
        Matrix { values: values.collect(), shape: shape.to_vec() }
    };
    let mut weights = BTreeMap::new();
    weights.insert("model.embed_tokens.weight".to_owned(), random(&[VOCABULARY, HIDDEN], 0.0));
    weights.insert("model.norm.weight".to_owned(), random(&[HIDDEN], 1.0));
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize], centre| {
            weights.insert(format!("model.layers.{layer}.{name}.weight"), random(shape, centre));
        };
        add("input_layernorm", &[HIDDEN], 1.0);
        add("post_attention_layernorm", &[HIDDEN], 1.0);
        add("self_attn.q_proj", &[HEADS * HEAD, HIDDEN], 0.0);
        add("self_attn.k_proj", &[KV_HEADS * HEAD, HIDDEN], 0.0);
        add("self_attn.v_proj", &[KV_HEADS * HEAD, HIDDEN], 0.0);
        add("self_attn.o_proj", &[HIDDEN, HEADS * HEAD], 0.0);
        add("mlp.gate_proj", &[INNER, HIDDEN], 0.0);
        add("mlp.up_proj", &[INNER, HIDDEN], 0.0);
        add("mlp.down_proj", &[HIDDEN, INNER], 0.0);
    }
    weights
}

fn folder(weights: &BTreeMap<String, Matrix>) -> ModelSource {
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "intermediate_size": INNER, "vocab_size": VOCABULARY,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float32",
        "tie_word_embeddings": true, "eos_token_id": 2,
    });
    let bytes: BTreeMap<&String, Vec<u8>> =
        weights.iter().map(|(n, m)| (n, m.values.iter().flat_map(|v| v.to_le_bytes()).collect())).collect();
    let views = weights.iter().map(|(name, matrix)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, matrix.shape.clone(), &bytes[name]);
        (name.clone(), view.unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    leak(vec![
        ("config.json", serde_json::to_vec(&config).unwrap()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", file),
    ])
}

/// A GGUF file under construction.
#[derive(Default)]
struct Writer {
    pairs: Vec<u8>,
    pair_count: u64,
    table: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl Writer {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn pair(&mut self, key: &str, kind: u32, value: &[u8]) {
        Self::text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
    }

    fn word(&mut self, key: &str, value: usize) {
        self.pair(key, 4, &(value as u32).to_le_bytes());
    }

    fn string(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        Self::text(&mut bytes, value);
        self.pair(key, 8, &bytes);
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            Self::text(&mut bytes, value);
        }
        self.pair(key, 9, &bytes);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, data: &[u8]) {
        Self::text(&mut self.table, name);
        self.table.extend((shape.len() as u32).to_le_bytes());
        for side in shape.iter().rev() {
            self.table.extend((*side as u64).to_le_bytes());
        }
        self.table.extend(kind.to_le_bytes());
        self.table.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(data);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.tensor_count += 1;
    }

    fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.pair_count.to_le_bytes());
        file.extend(self.pairs);
        file.extend(self.table);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(self.data);
        file
    }
}

/// llama.cpp's row order: element `j * half + i` of a head goes to `2 * i + j`.
fn interleave(matrix: &Matrix, heads: usize) -> Matrix {
    let (rows, cols) = (matrix.shape[0], matrix.shape[1]);
    let (head, half) = (rows / heads, rows / heads / 2);
    let mut values = vec![0.0; matrix.values.len()];
    for row in 0..rows {
        let within = row % head;
        let to = row / head * head + 2 * (within % half) + within / half;
        values[to * cols..][..cols].copy_from_slice(&matrix.values[row * cols..][..cols]);
    }
    Matrix { values, ..matrix.clone() }
}

/// Q8_0 blocks of a matrix, and what they stand for.
fn quantise(matrix: &Matrix) -> (Vec<u8>, Matrix) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for block in matrix.values.chunks_exact(32) {
        let scale = half::f16::from_f32(block.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0);
        bytes.extend(scale.to_le_bytes());
        for x in block {
            let level = (x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8;
            bytes.push(level as u8);
            values.push(f32::from(level) * scale.to_f32());
        }
    }
    (bytes, Matrix { values, shape: matrix.shape.clone() })
}

/// The same model as a GGUF file, with the matrices in Q8_0, and the weights that these stand for.
fn file(weights: &BTreeMap<String, Matrix>) -> (Vec<u8>, BTreeMap<String, Matrix>) {
    let mut writer = Writer::default();
    writer.string("general.architecture", "llama");
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 64),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", INNER),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", HEAD),
    ] {
        writer.word(&format!("llama.{key}"), value);
    }
    writer.pair("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    writer.pair("llama.rope.freq_base", 6, &10_000f32.to_le_bytes());
    let mut tokens: Vec<String> = (0..VOCABULARY).map(|i| format!("t{i}")).collect();
    tokens[3] = "<|eot_id|>".into();
    writer.string("tokenizer.ggml.model", "gpt2");
    writer.strings("tokenizer.ggml.tokens", &tokens);
    writer.strings("tokenizer.ggml.merges", &["t 1".into()]);
    writer.word("tokenizer.ggml.bos_token_id", 1);
    writer.word("tokenizer.ggml.eos_token_id", 2);
    writer.string("tokenizer.chat_template", "{{ messages }}");
    let mut stored = BTreeMap::new();
    for (name, matrix) in weights {
        let renamed = [
            ("model.embed_tokens", "token_embd"),
            ("model.norm", "output_norm"),
            ("model.layers", "blk"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ]
        .iter()
        .fold(name.clone(), |name, (from, to)| name.replace(from, to));
        if matrix.shape.len() == 1 {
            let bytes: Vec<u8> = matrix.values.iter().flat_map(|v| v.to_le_bytes()).collect();
            writer.tensor(&renamed, &matrix.shape, 0, &bytes);
            stored.insert(name.clone(), matrix.clone());
            continue;
        }
        let (_, rounded) = quantise(matrix);
        let placed = match () {
            () if name.contains("q_proj") => interleave(matrix, HEADS),
            () if name.contains("k_proj") => interleave(matrix, KV_HEADS),
            () => matrix.clone(),
        };
        writer.tensor(&renamed, &matrix.shape, 8, &quantise(&placed).0);
        stored.insert(name.clone(), rounded);
    }
    (writer.finish(), stored)
}

fn load(source: ModelSource, precision: Precision) -> (CpuBackend, Loaded<CpuBackend>) {
    let backend = CpuBackend::new(1);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let config = ModelConfig { name: "small".into(), source, precision };
    let model = Loaded::load(&backend, &checkpoint, &config, PAGE_TOKENS).unwrap();
    (backend, model)
}

#[test]
fn a_gguf_file_equals_the_folder_it_was_made_from() {
    let (bytes, stored) = file(&weights());
    let prompt = [Prompt::text(&[1, 5, 9, 30, 2, 17, 8])];
    let (backend, model) = load(folder(&stored), Precision::Stored);
    let expected = answer(&backend, &model, &prompt, 12, 3).remove(0);
    for (precision, tolerance) in [(Precision::Float32, 1e-5), (Precision::Stored, 0.3)] {
        let (backend, model) = load(leak(vec![("small.gguf", bytes.clone())]), precision);
        let got = answer(&backend, &model, &prompt, 12, 100).remove(0);
        let error = difference(&got.logits, &expected.logits);
        println!("{precision:?}: logits differ by {error:.2e}");
        assert!(error <= tolerance, "{precision:?}: {error}");
        if precision == Precision::Float32 {
            assert_eq!(got.tokens, expected.tokens);
        }
    }
}

#[test]
fn a_gguf_file_brings_its_vocabulary_and_template() {
    let (_, model) = load(leak(vec![("small.gguf", file(&weights()).0)]), Precision::Stored);
    let card = model.card();
    assert_eq!((card.vocabulary, card.context, card.dtype.as_str()), (VOCABULARY, 64, "q8_0"));
    assert_eq!(card.end_tokens, [2, 3]);
    assert_eq!(card.chat_template.as_deref(), Some("{{ messages }}"));
    assert!(card.template_tokens.contains(&("bos_token".into(), "t1".into())));
    let TokenizerSource::Gguf(vocabulary) = &card.tokenizer else { panic!("a GGUF vocabulary") };
    assert_eq!((vocabulary.tokens.len(), vocabulary.bos, vocabulary.eos), (VOCABULARY, Some(1), Some(2)));
}

#[test]
fn a_cut_or_damaged_gguf_file_is_malformed() {
    let whole = file(&weights()).0;
    for cut in (0..whole.len() - 32).step_by(whole.len() / 400) {
        let error = Checkpoint::open(&leak(vec![("cut.gguf", whole[..cut].to_vec())])).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Malformed, "{cut}: {error}");
        assert!(error.message.contains("cut.gguf"), "{error}");
    }
    // Any byte of the header may lie; nothing may panic or allocate beyond reason.
    for at in 0..1200 {
        for value in [0x00, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let source = leak(vec![("lying.gguf", bytes)]);
            if let Ok(checkpoint) = Checkpoint::open(&source) {
                let config = ModelConfig { name: "lying".into(), source, precision: Precision::Stored };
                let _ = Loaded::load(&CpuBackend::new(1), &checkpoint, &config, PAGE_TOKENS);
            }
        }
    }
}
