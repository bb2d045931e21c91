//! Strictness: what is missing, surplus, misshapen, cut or lying is an error that names it, never a panic.

use serde_json::Value;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::error::{EngineError, ErrorKind};
use weft_engine::families::Loaded;
use weft_engine::handle::{ModelConfig, ModelSource, Precision};
use weft_kernels::CpuBackend;

use crate::driver::PAGE_TOKENS;
use crate::golden::CHECKPOINT;

type Files = Vec<(&'static str, Vec<u8>)>;

/// Files in memory for the length of the test run.
pub(crate) fn leak(files: Files) -> ModelSource {
    let files: Vec<(&'static str, &'static [u8])> =
        files.into_iter().map(|(name, bytes)| (name, &*Vec::leak(bytes))).collect();
    ModelSource::Embedded(Vec::leak(files))
}

fn files() -> Files {
    CHECKPOINT.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect()
}

fn file<'a>(files: &'a mut Files, name: &str) -> &'a mut Vec<u8> {
    &mut files.iter_mut().find(|(n, _)| *n == name).unwrap().1
}

fn edit(files: &mut Files, name: &str, change: impl FnOnce(&mut Value)) {
    let bytes = file(files, name);
    let mut value = serde_json::from_slice(bytes).unwrap();
    change(&mut value);
    *bytes = serde_json::to_vec(&value).unwrap();
}

fn try_load(files: Files) -> Result<(), EngineError> {
    let source = leak(files);
    let checkpoint = Checkpoint::open(&source)?;
    let config = ModelConfig { name: "omni".into(), source, precision: Precision::Stored };
    Loaded::load(&CpuBackend::new(1), &checkpoint, &config, PAGE_TOKENS).map(|_| ())
}

#[track_caller]
fn refused(files: Files, kind: ErrorKind, texts: &[&str]) {
    let error = try_load(files).expect_err("this checkpoint is broken");
    assert_eq!(error.kind, kind, "{error}");
    for text in texts {
        assert!(error.message.contains(text), "{error} -- lacks {text}");
    }
}

/// Changes the JSON header of a safetensors file, leaving its data alone.
fn edit_header(bytes: &mut Vec<u8>, change: impl FnOnce(&str) -> String) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = change(std::str::from_utf8(&bytes[8..8 + len]).unwrap());
    let mut changed = (header.len() as u64).to_le_bytes().to_vec();
    changed.extend(header.as_bytes());
    changed.extend(&bytes[8 + len..]);
    *bytes = changed;
}

fn rename(files: &mut Files, from: &str, to: &str) {
    for (name, bytes) in files.iter_mut() {
        if name.ends_with(".safetensors") {
            edit_header(bytes, |header| header.replace(&format!("\"{from}\""), &format!("\"{to}\"")));
        } else if name.ends_with("index.json") {
            *bytes =
                String::from_utf8(bytes.clone()).unwrap().replace(&format!("\"{from}\""), &format!("\"{to}\"")).into();
        }
    }
}

#[test]
fn missing_surplus_and_misshapen_tensors_are_named() {
    let mut renamed = files();
    rename(&mut renamed, "model.norm.weight", "model.nrom.weight");
    refused(renamed, ErrorKind::Malformed, &["no tensor model.norm.weight", "model-0000"]);

    let mut surplus = files();
    edit(&mut surplus, "config.json", |c| c["text_config"]["num_hidden_layers"] = 2.into());
    edit(&mut surplus, "config.json", |c| c["text_config"]["layer_types"] = Value::Null);
    refused(surplus, ErrorKind::Malformed, &["model.layers.2.", "more", "no place"]);

    let mut wide = files();
    edit(&mut wide, "config.json", |c| c["text_config"]["intermediate_size"] = 161.into());
    refused(wide, ErrorKind::Malformed, &["model.layers.0.mlp.gate_proj.weight", "[160, 64]", "[161, 64]"]);
}

#[test]
fn parts_that_speak_and_old_buffers_are_passed_over_by_rule() {
    let mut full = files();
    let names: Vec<String> = {
        let index: Value = serde_json::from_slice(file(&mut full, "model.safetensors.index.json")).unwrap();
        index["weight_map"].as_object().unwrap().keys().cloned().collect()
    };
    for name in &names {
        rename(&mut full, name, &format!("thinker.{name}"));
    }
    rename(&mut full, "thinker.audio_tower.audio_bos_eos_token.weight", "talker.model.embed_tokens.weight");
    edit(&mut full, "config.json", |config| {
        let thinker = config.take();
        *config = serde_json::json!({ "model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": {} });
    });
    try_load(full).unwrap();

    let mut buffer = files();
    rename(&mut buffer, "audio_tower.audio_bos_eos_token.weight", "model.layers.0.self_attn.rotary_emb.inv_freq");
    try_load(buffer).unwrap();
}

#[test]
fn missing_files_say_what_to_give() {
    for name in ["config.json", "tokenizer.json", "model-00002-of-00003.safetensors"] {
        let kept: Files = files().into_iter().filter(|(n, _)| *n != name).collect();
        refused(kept, ErrorKind::NotFound, &[name, "missing"]);
    }
    let no_processor: Files = files().into_iter().filter(|(n, _)| *n != "processor_config.json").collect();
    refused(no_processor, ErrorKind::Malformed, &["processor_config.json", "image processor"]);
    let nowhere = ModelSource::Path("no/such/folder".into());
    let error = Checkpoint::open(&nowhere).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.contains("no/such/folder"), "{error}");
}

#[test]
fn broken_json_and_wrong_fields_name_file_and_field() {
    for name in ["config.json", "generation_config.json", "processor_config.json", "model.safetensors.index.json"] {
        let mut cut = files();
        let bytes = file(&mut cut, name);
        bytes.truncate(bytes.len() / 2);
        refused(cut, ErrorKind::Malformed, &[name, "JSON"]);
        let mut list = files();
        *file(&mut list, name) = b"[1]".to_vec();
        refused(list, ErrorKind::Malformed, &[name, "JSON object"]);
    }
    let cases: [(&str, Value, ErrorKind, &str); 8] = [
        ("/model_type", "gpt9".into(), ErrorKind::Unsupported, "gpt9"),
        ("/text_config/hidden_size", "wide".into(), ErrorKind::Malformed, "text_config.hidden_size"),
        ("/text_config/num_hidden_layers", (1u64 << 60).into(), ErrorKind::Malformed, "num_hidden_layers"),
        ("/text_config/num_hidden_layers", 1_000_000.into(), ErrorKind::Malformed, "num_hidden_layers"),
        ("/text_config/num_key_value_heads", 3.into(), ErrorKind::Malformed, "num_key_value_heads"),
        ("/text_config/rope_parameters/rope_type", "dynamic".into(), ErrorKind::Unsupported, "dynamic"),
        ("/vision_config/num_heads", 5.into(), ErrorKind::Malformed, "num_heads"),
        ("/audio_config/n_window", 5000.into(), ErrorKind::Malformed, "n_window"),
    ];
    for (field, value, kind, text) in cases {
        let mut changed = files();
        edit(&mut changed, "config.json", |config| *config.pointer_mut(field).unwrap() = value);
        refused(changed, kind, &["config.json", text]);
    }
}

#[test]
fn an_index_reaches_no_other_folder_and_tells_no_lies() {
    let mut outside = files();
    edit(&mut outside, "model.safetensors.index.json", |i| i["weight_map"]["x"] = "../secret.safetensors".into());
    refused(outside, ErrorKind::Malformed, &["../secret.safetensors", "plain file name"]);
    let mut lying = files();
    edit(&mut lying, "model.safetensors.index.json", |i| {
        i["weight_map"]["model.unknown"] = "model-00001-of-00003.safetensors".into();
    });
    refused(lying, ErrorKind::Malformed, &["model.unknown", "does not"]);
}

#[test]
fn cut_and_lying_weight_files_are_malformed() {
    let name = "model-00003-of-00003.safetensors";
    let whole = file(&mut files(), name).clone();
    for cut in (0..whole.len()).step_by(whole.len() / 60) {
        let mut changed = files();
        file(&mut changed, name).truncate(cut);
        refused(changed, ErrorKind::Malformed, &[name, "truncated or damaged"]);
    }
    for len in [u64::MAX, 1 << 62, 1 << 40, 100_000_001, 99_999_999] {
        let mut changed = files();
        file(&mut changed, name)[..8].copy_from_slice(&len.to_le_bytes());
        refused(changed, ErrorKind::Malformed, &[name]);
    }
    // A shape that multiplies to more than there is, or overflows.
    for shape in ["[18446744073709551615,2]", "[4611686018427387904,4]", "[0,18446744073709551615,3]"] {
        let mut changed = files();
        edit_header(file(&mut changed, name), |header| {
            let at = header.find("\"shape\":[").unwrap() + 8;
            let end = at + header[at..].find(']').unwrap() + 1;
            format!("{}{shape}{}", &header[..at], &header[end..])
        });
        assert_eq!(try_load(changed).unwrap_err().kind, ErrorKind::Malformed, "{shape}");
    }
    let mut integers = files();
    edit_header(file(&mut integers, name), |header| header.replace("\"BF16\"", "\"I16\""));
    refused(integers, ErrorKind::Unsupported, &["I16", "convert"]);
}
