//! A tokenizer's vocabulary as grammars see it: the bytes that each token adds to a text.
//!
//! Invariant: the bytes of tokens, joined, are what the detokeniser shows for them (but for leading spaces that a decoder
//! drops). A token whose bytes are not known has none, so no grammar allows it.

use std::sync::Arc;

use weft_engine::grammar::{Tokenise, Vocabulary};

use super::detokenise::{Rule, byte_of, byte_token};
use super::tokenizer::TextTokenizer;
use crate::error::{Result, StageError};

/// The vocabulary of a model of this many logits.
pub(super) fn vocabulary(tokenizer: &Arc<TextTokenizer>, logits: usize, end_tokens: &[u32]) -> Result<Vocabulary> {
    let rule = Rule::of(tokenizer);
    if rule == Rule::Whole {
        let text = "this model's tokenizer joins tokens in a way that grammars cannot follow";
        return Err(StageError::unsupported(text));
    }
    let bytes = |id: usize| {
        let id = u32::try_from(id).ok().filter(|id| !tokenizer.is_special(*id) && !end_tokens.contains(id))?;
        Some(token_bytes(&rule, &tokenizer.inner().id_to_token(id)?))
    };
    let tokens = (0..logits).map(|id| bytes(id).unwrap_or_default()).collect();
    Ok(Vocabulary { tokens, end_tokens: end_tokens.to_vec(), tokenise: tokenise(&rule, tokenizer) })
}

fn token_bytes(rule: &Rule, token: &str) -> Vec<u8> {
    match rule {
        Rule::Bytes => token.chars().map(byte_of).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.into()),
        Rule::Pieces { mark, byte_fallback, .. } => match byte_token(token).filter(|_| *byte_fallback) {
            Some(byte) => vec![byte],
            None => token.replace(*mark, " ").into(),
        },
        Rule::Marks { mark, .. } => token.replace(*mark, " ").into(),
        Rule::Whole => Vec::new(),
    }
}

/// The tokenizer's own cut of a text, where it is the same wherever the text stands: byte-level tokenizers that put no
/// space before it.
fn tokenise(rule: &Rule, tokenizer: &Arc<TextTokenizer>) -> Option<Tokenise> {
    let probe = |text: &str| tokenizer.encode_plain(text).ok();
    let joined = |text: &str| -> Vec<u8> {
        let ids = probe(text).unwrap_or_default();
        ids.iter().flat_map(|id| token_bytes(rule, &tokenizer.inner().id_to_token(*id).unwrap_or_default())).collect()
    };
    if *rule != Rule::Bytes || joined("{\"a b\":1}") != b"{\"a b\":1}" {
        return None;
    }
    let tokenizer = Arc::clone(tokenizer);
    Some(Box::new(move |bytes| {
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(|text| tokenizer.encode_plain(text).ok()).unwrap_or_default()
    }))
}
