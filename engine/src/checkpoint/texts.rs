//! Tokenizer, chat template and special tokens: which file has them in which generation of checkpoints.

use std::sync::Arc;

use serde_json::{Value, json};

use super::files::Files;
use crate::card::TokenizerSource;
use crate::error::{EngineError, ErrorKind, Result};

/// Special tokens that templates name.
const TEMPLATE_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Reads `tokenizer.json`.
pub(super) fn tokenizer(files: &Files) -> Result<TokenizerSource> {
    match files.text("tokenizer.json")? {
        Some(text) => Ok(TokenizerSource::Json(Arc::from(text.into_bytes()))),
        None => {
            let label = files.label("tokenizer.json");
            let remedy = "save it with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)";
            Err(EngineError::new(ErrorKind::NotFound, format!("{label} is missing; {remedy}")))
        }
    }
}

/// The chat template: a file of its own (`.jinja`, or older `.json`), or a field of the tokenizer's config.
pub(super) fn chat_template(files: &Files, tokenizer_config: &Value) -> Result<Option<String>> {
    if let Some(text) = files.text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    if let Some(value) = files.json("chat_template.json")? {
        return Ok(template_of(&value["chat_template"]));
    }
    Ok(template_of(&tokenizer_config["chat_template"]))
}

/// A template, or the one named `default` of a list of named ones.
fn template_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => {
            let named = list.iter().find(|item| item["name"] == "default").or(list.first())?;
            Some(named["template"].as_str()?.to_owned())
        }
        _ => None,
    }
}

/// Texts of the special tokens that templates name, from the tokenizer's config, else from `special_tokens_map.json`.
pub(super) fn template_tokens(files: &Files, tokenizer_config: &Value) -> Result<Vec<(String, String)>> {
    let map = files.json("special_tokens_map.json")?.unwrap_or_else(|| json!({}));
    // A token is a text, or an object with its content and how it is stripped.
    let text_of = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    let find = |name: &str| text_of(&tokenizer_config[name]).or_else(|| text_of(&map[name]));
    let mut tokens: Vec<(String, String)> =
        TEMPLATE_TOKENS.iter().filter_map(|&name| Some((name.to_owned(), find(name)?))).collect();
    // Multimodal tokenizers name their placeholders beside these (`image_token`, `audio_bos_token`).
    let more = tokenizer_config.as_object().into_iter().flatten();
    for (name, value) in more.filter(|(name, _)| name.ends_with("_token")) {
        if let Some(text) = text_of(value).filter(|_| !TEMPLATE_TOKENS.contains(&name.as_str())) {
            tokens.push((name.clone(), text));
        }
    }
    Ok(tokens)
}
