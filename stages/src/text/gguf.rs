//! Tokenizers from the vocabulary of a GGUF file, rebuilt as the `tokenizer.json` they came from.

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use weft_engine::card::GgufVocabulary;

use super::detokenise::byte_token;
use crate::error::{Result, StageError};

const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the tokenizer of a GGUF vocabulary.
pub(super) fn tokenizer(vocabulary: &GgufVocabulary) -> Result<Tokenizer> {
    let file = match vocabulary.model.as_str() {
        "gpt2" => byte_level(vocabulary)?,
        "llama" => sentence_piece(vocabulary),
        other => {
            let text = format!("GGUF tokenizer model `{other}` is not known (known: `gpt2`, `llama`)");
            return Err(StageError::unsupported(text));
        }
    };
    let broken = |error: String| StageError::malformed(format!("GGUF vocabulary makes no tokenizer: {error}"));
    let bytes = serde_json::to_vec(&file).map_err(|error| broken(error.to_string()))?;
    Tokenizer::from_bytes(bytes).map_err(|error| broken(error.to_string()))
}

fn byte_level(vocabulary: &GgufVocabulary) -> Result<Value> {
    let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    let digits = |individual: bool| json!({ "type": "Digits", "individual_digits": individual });
    let split = |regex: &str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let in_order = |parts: Vec<Value>| json!({ "type": "Sequence", "pretokenizers": parts });
    let (pre_tokenizer, ignore_merges) = match vocabulary.pre.as_str() {
        "gpt2" | "gpt-2" | "default" | "" | "phi-2" | "jina-es" | "jina-de" | "olmo" | "mpt" | "roberta-bpe" => {
            (bytes(true), false)
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            (in_order(vec![digits(true), bytes(true)]), false)
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "dbrx" | "smaug-bpe" => {
            (in_order(vec![split(LLAMA3), bytes(false)]), true)
        }
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" => {
            (in_order(vec![split(QWEN2), bytes(false)]), false)
        }
        "gpt-4o" | "llama4" => (in_order(vec![split(GPT4O), bytes(false)]), true),
        "tekken" => (in_order(vec![split(TEKKEN), bytes(false)]), true),
        other => {
            let text = format!("GGUF pre-tokenizer `{other}` is not known: its text would be cut wrongly");
            return Err(StageError::unsupported(text));
        }
    };
    let merges: Vec<(&str, &str)> = vocabulary
        .merges
        .iter()
        .map(|merge| {
            merge.split_once(' ').ok_or_else(|| StageError::malformed("GGUF vocabulary has a merge of one part"))
        })
        .collect::<Result<_>>()?;
    let normalizer = if vocabulary.pre == "qwen2" { json!({ "type": "NFC" }) } else { Value::Null };
    Ok(json!({
        "version": "1.0",
        "added_tokens": added_tokens(vocabulary),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": bytes(true),
        "model": { "type": "BPE", "vocab": ids(vocabulary), "merges": merges, "ignore_merges": ignore_merges },
    }))
}

/// SentencePiece BPE: a merge is every split of a piece into two pieces, best piece first.
fn sentence_piece(vocabulary: &GgufVocabulary) -> Value {
    let ids_by_text: std::collections::HashMap<&str, usize> =
        vocabulary.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let score = |id: usize| vocabulary.scores.get(id).copied().unwrap_or(0.0);
    let mut merges: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if byte_token(token).is_some() || matches!(kind(vocabulary, id), UNKNOWN | CONTROL) {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (ids_by_text.get(left), ids_by_text.get(right)) {
                merges.push((score(id), l, r, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let merges: Vec<(&str, &str)> = merges.iter().map(|merge| (merge.3, merge.4)).collect();
    let unknown = (0..vocabulary.tokens.len()).find(|&id| kind(vocabulary, id) == UNKNOWN);
    json!({
        "version": "1.0",
        "added_tokens": added_tokens(vocabulary),
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" },
        ] },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": {
            "type": "BPE", "vocab": ids(vocabulary), "merges": merges, "byte_fallback": true, "fuse_unk": true,
            "unk_token": unknown.map(|id| vocabulary.tokens[id].as_str()),
        },
    })
}

fn kind(vocabulary: &GgufVocabulary, id: usize) -> i32 {
    vocabulary.types.get(id).copied().unwrap_or(1)
}

fn ids(vocabulary: &GgufVocabulary) -> serde_json::Map<String, Value> {
    vocabulary.tokens.iter().enumerate().map(|(id, token)| (token.clone(), Value::from(id))).collect()
}

fn added_tokens(vocabulary: &GgufVocabulary) -> Vec<Value> {
    let added = |(id, token): (usize, &String)| {
        let kind = kind(vocabulary, id);
        (matches!(kind, UNKNOWN | CONTROL | USER_DEFINED) && !token.is_empty()).then(|| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind != USER_DEFINED,
            })
        })
    };
    vocabulary.tokens.iter().enumerate().filter_map(added).collect()
}
