//! What Whisper publishes about itself: its special tokens and decoding rules, and how its clips are prepared.
//!
//! The generation config is the first source. Older checkpoints lack fields; then the known names of the special tokens
//! are looked up in `tokenizer.json`.

use serde::Deserialize;
use serde_json::Value;

use super::config::WhisperConfig;
use crate::card::{AudioPadding, AudioProcessor, AudioTokens, TokenizerSource, TranscriptionCard};
use crate::error::{EngineError, ErrorKind, Result};

/// Vocabulary of the multilingual models; the English-only ones have fewer tokens.
const MULTILINGUAL_VOCABULARY: usize = 51865;

/// Special tokens by name.
struct Names(Vec<(String, u32)>);

impl Names {
    fn read(tokenizer: &TokenizerSource) -> Result<Self> {
        #[derive(Deserialize)]
        struct Added {
            id: u32,
            content: String,
        }
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            added_tokens: Vec<Added>,
        }
        let TokenizerSource::Json(bytes) = tokenizer else {
            return Err(EngineError::new(ErrorKind::Unsupported, "a Whisper model needs a tokenizer.json"));
        };
        let file: File = serde_json::from_slice(bytes)
            .map_err(|error| EngineError::new(ErrorKind::Malformed, format!("tokenizer.json: {error}")))?;
        Ok(Self(file.added_tokens.into_iter().map(|token| (token.content, token.id)).collect()))
    }

    fn get(&self, name: &str) -> Option<u32> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
    }

    /// Tokens such as `<|en|>`: the names between start of transcript and the tasks, in order of id.
    fn languages(&self, after: u32, before: u32) -> Vec<(String, u32)> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|(_, id)| (after + 1..before).contains(id))
            .filter_map(|(name, id)| Some((language_code(name)?, *id)))
            .collect();
        found.sort_by_key(|(_, id)| *id);
        found
    }
}

fn language_code(token: &str) -> Option<String> {
    let code = token.strip_prefix("<|")?.strip_suffix("|>")?;
    Some(code.to_owned())
}

fn id(config: &Value, field: &str) -> Option<u32> {
    let value = &config[field];
    // An end token may be written as a list; its first entry is the one.
    let value = value.as_array().and_then(|list| list.first()).unwrap_or(value);
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A list of ids; -1 and the like (other tools' "defaults, please") are left out.
fn ids(config: &Value, field: &str) -> Vec<u32> {
    let list = config[field].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

/// Special tokens and rules of a checkpoint.
pub(crate) fn transcription(
    sizes: &WhisperConfig,
    config: &Value,
    generation: &Value,
    tokenizer: &TokenizerSource,
) -> Result<TranscriptionCard> {
    let names = Names::read(tokenizer)?;
    let need = |fields: &[&Value], field: &str, name: &str| {
        let known = fields.iter().find_map(|config| id(config, field)).or_else(|| names.get(name));
        known.ok_or_else(|| {
            let message = format!("neither the generation config ({field}) nor tokenizer.json knows {name}");
            EngineError::new(ErrorKind::Malformed, message)
        })
    };
    let start = need(&[generation, config], "decoder_start_token_id", "<|startoftranscript|>")?;
    let end = need(&[generation, config], "eos_token_id", "<|endoftext|>")?;
    let no_timestamps = need(&[generation], "no_timestamps_token_id", "<|notimestamps|>")?;
    let multilingual = generation["is_multilingual"].as_bool().unwrap_or(sizes.vocab_size >= MULTILINGUAL_VOCABULARY);
    let mut card = TranscriptionCard {
        start,
        end,
        no_timestamps,
        no_speech: no_timestamps.checked_sub(1),
        previous: id(generation, "prev_sot_token_id").or_else(|| names.get("<|startofprev|>")),
        first_timestamp: no_timestamps + 1,
        suppress: ids(generation, "suppress_tokens"),
        begin_suppress: ids(generation, "begin_suppress_tokens"),
        max_initial_timestamp: id(generation, "max_initial_timestamp_index")
            .unwrap_or(u32::try_from(sizes.max_source_positions).unwrap_or(u32::MAX)),
        max_length: sizes.max_target_positions,
        ..TranscriptionCard::default()
    };
    if multilingual {
        let task = |task: &str| id(&generation["task_to_id"], task).or_else(|| names.get(&format!("<|{task}|>")));
        (card.transcribe, card.translate) = (task("transcribe"), task("translate"));
        card.languages = match generation["lang_to_id"].as_object() {
            Some(map) => map
                .iter()
                .filter_map(|(name, id)| Some((language_code(name)?, u32::try_from(id.as_u64()?).ok()?)))
                .collect(),
            None => names.languages(start, card.translate.unwrap_or(no_timestamps)),
        };
        if card.languages.is_empty() || card.transcribe.is_none() {
            let message = "a multilingual Whisper model needs lang_to_id and task_to_id, or their tokens by name";
            return Err(EngineError::new(ErrorKind::Malformed, message));
        }
    }
    Ok(card)
}

/// How clips are prepared: values of the preprocessor config, else Whisper's own.
pub(crate) fn audio(sizes: &WhisperConfig, preprocessor: &Value) -> AudioProcessor {
    let number = |field: &str, default: usize| {
        preprocessor[field].as_u64().and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
    };
    let (sample_rate, hop) = (number("sampling_rate", 16_000), number("hop_length", 160));
    AudioProcessor {
        sample_rate,
        fft: number("n_fft", 400),
        hop,
        bins: sizes.num_mel_bins,
        padding: AudioPadding::Window(sizes.frames()),
        max_seconds: (sizes.frames() * hop) as f64 / sample_rate as f64,
        tokens: AudioTokens::CrossAttention,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn sizes(vocabulary: usize) -> WhisperConfig {
        WhisperConfig::parse(&json!({
            "vocab_size": vocabulary, "num_mel_bins": 80, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
            "max_source_positions": 1500, "max_target_positions": 448,
        }))
        .expect("a good config")
    }

    fn tokenizer(names: &[(&str, u32)]) -> TokenizerSource {
        let tokens: Vec<_> = names.iter().map(|(name, id)| json!({"id": id, "content": name})).collect();
        TokenizerSource::Json(Arc::from(json!({"added_tokens": tokens}).to_string().into_bytes()))
    }

    #[test]
    fn a_full_generation_config_is_enough() {
        let generation = json!({
            "decoder_start_token_id": 11, "eos_token_id": [10, 12], "no_timestamps_token_id": 20,
            "prev_sot_token_id": 18, "is_multilingual": true, "max_initial_timestamp_index": 50,
            "suppress_tokens": [1, -1, 2], "begin_suppress_tokens": [3, 10],
            "lang_to_id": {"<|en|>": 12, "<|de|>": 13}, "task_to_id": {"transcribe": 16, "translate": 15},
        });
        let card = transcription(&sizes(40), &json!({}), &generation, &tokenizer(&[])).expect("complete");
        assert_eq!((card.start, card.end, card.no_timestamps, card.first_timestamp), (11, 10, 20, 21));
        assert_eq!(card.languages, [("en".to_owned(), 12), ("de".to_owned(), 13)]);
        assert_eq!(
            (card.transcribe, card.translate, card.previous, card.no_speech),
            (Some(16), Some(15), Some(18), Some(19))
        );
        assert_eq!((card.suppress, card.begin_suppress, card.max_initial_timestamp), (vec![1, 2], vec![3, 10], 50));
    }

    #[test]
    fn missing_fields_come_from_the_tokenizer() {
        let names = tokenizer(&[
            ("<|endoftext|>", 10),
            ("<|startoftranscript|>", 11),
            ("<|en|>", 12),
            ("<|yue|>", 13),
            ("<|translate|>", 14),
            ("<|transcribe|>", 15),
            ("<|startofprev|>", 17),
            ("<|notimestamps|>", 19),
        ]);
        let card = transcription(&sizes(51865), &json!({}), &json!({}), &names).expect("complete");
        assert_eq!(card.languages, [("en".to_owned(), 12), ("yue".to_owned(), 13)]);
        assert_eq!((card.transcribe, card.previous, card.first_timestamp), (Some(15), Some(17), 20));
        let english = transcription(&sizes(51864), &json!({}), &json!({}), &names).expect("complete");
        assert!(english.languages.is_empty() && english.transcribe.is_none());
    }

    #[test]
    fn a_missing_token_is_named() {
        let error = transcription(&sizes(40), &json!({}), &json!({}), &tokenizer(&[])).expect_err("no tokens at all");
        assert!(error.message.contains("<|startoftranscript|>"), "{error}");
    }
}
