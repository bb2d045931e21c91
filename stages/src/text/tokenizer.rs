//! A model's tokenizer, with the two ways of reading text: as the reference does, and with special tokens as plain text.

use std::sync::OnceLock;

use tokenizers::{NormalizedString, Normalizer, Tokenizer};
use weft_engine::card::TokenizerSource;

use super::guard::Guard;
use crate::error::{ErrorKind, Result, StageError};

/// See the module.
#[derive(Debug)]
pub struct TextTokenizer {
    full: Tokenizer,
    /// Reads special tokens as text; made when first needed, because few prompts need it.
    plain: OnceLock<Box<Tokenizer>>,
    specials: Vec<u32>,
    guard: Guard,
    /// Whether special tokens are looked for in normalised text too.
    after_normalising: bool,
}

impl TextTokenizer {
    /// Builds a tokenizer. `placeholders` are tokens that must never come from a user's text, whatever the file says.
    pub fn new(source: &TokenizerSource, placeholders: &[u32]) -> Result<Self> {
        let mut full = match source {
            TokenizerSource::Json(bytes) => Tokenizer::from_bytes(bytes.as_ref())
                .map_err(|error| StageError::unsupported(format!("tokenizer.json cannot be read: {error}")))?,
            TokenizerSource::Gguf(vocabulary) => super::gguf::tokenizer(vocabulary)?,
        };
        full.with_padding(None);
        full.with_truncation(None).map_err(|error| unreadable(&error))?;
        let added = full.get_added_tokens_decoder();
        let special = |id: &u32, token: &tokenizers::AddedToken| token.special || placeholders.contains(id);
        let mut guarded: Vec<_> = added.iter().filter(|(id, token)| special(id, token)).collect();
        guarded.sort_by_key(|(id, _)| **id);
        let forced: Vec<_> = guarded
            .iter()
            .filter(|(_, token)| !token.special)
            .map(|(_, token)| tokenizers::AddedToken { special: true, ..(*token).clone() })
            .collect();
        if !forced.is_empty() {
            full.add_special_tokens(&forced);
        }
        let texts: Vec<String> = guarded.iter().map(|(_, token)| token.content.clone()).collect();
        Ok(Self {
            plain: OnceLock::new(),
            specials: guarded.iter().map(|(id, _)| **id).collect(),
            guard: Guard::new(&texts),
            after_normalising: guarded.iter().any(|(_, token)| token.normalized),
            full,
        })
    }

    /// Token ids of a text made by a template: its special tokens are read as such, none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.full.encode_fast(text, false).map_err(|error| unreadable(&error))?.get_ids().to_vec())
    }

    /// Token ids of a user's text: special tokens in it are text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let plain = self.plain.get_or_init(|| {
            let mut plain = Box::new(self.full.clone());
            plain.set_encode_special_tokens(true);
            plain
        });
        let ids = plain.encode_fast(text, false).map_err(|error| unreadable(&error))?.get_ids().to_vec();
        if ids.iter().any(|id| self.is_special(*id)) {
            let text = "the text holds a control token of this model that it cannot spell as plain text";
            return Err(StageError::malformed(text));
        }
        Ok(ids)
    }

    /// Token ids of a rendered prompt whose user texts were broken with `nonce`: special tokens still whole are the
    /// template's, the runs between them are text.
    pub(super) fn encode_guarded(&self, rendered: &str, nonce: char) -> Result<Vec<u32>> {
        let whole = self.full.encode(rendered, false).map_err(|error| unreadable(&error))?;
        let mut ids = Vec::with_capacity(whole.len());
        let mut from = 0;
        let run = |range: std::ops::Range<usize>, ids: &mut Vec<u32>| -> Result<()> {
            let text = rendered.get(range).unwrap_or_default().replace(nonce, "");
            if !text.is_empty() {
                ids.extend(self.encode_plain(&text)?);
            }
            Ok(())
        };
        for (&id, &(start, end)) in whole.get_ids().iter().zip(whole.get_offsets()) {
            if self.is_special(id) {
                run(from..start.max(from), &mut ids)?;
                ids.push(id);
                from = end;
            }
        }
        run(from..rendered.len(), &mut ids)?;
        Ok(ids)
    }

    /// The text with special tokens broken; borrowed when there are none.
    pub(super) fn break_up<'t>(&self, text: &'t str, nonce: char) -> std::borrow::Cow<'t, str> {
        if self.after_normalising
            && let Some(normalizer) = self.full.get_normalizer()
        {
            let mut normalised = NormalizedString::from(text);
            if normalizer.normalize(&mut normalised).is_ok()
                && self.guard.finds(normalised.get())
                && !self.guard.finds(text)
            {
                return self.guard.break_up(normalised.get(), nonce).into_owned().into();
            }
        }
        self.guard.break_up(text, nonce)
    }

    /// Whether this token is left out of texts.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.binary_search(&id).is_ok()
    }

    /// Text of an answer, special tokens left out: what the deltas of a [`super::Detokeniser`] add up to.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.full
            .decode(ids, true)
            .map_err(|error| StageError::new(ErrorKind::Internal, format!("tokens cannot be decoded: {error}")))
    }

    /// Text of one token alone, special ones included; lossy when it is a part of a character.
    pub fn token_text(&self, id: u32) -> String {
        self.full.decode(&[id], false).unwrap_or_default()
    }

    /// Id of a token by its exact text.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.full.token_to_id(token)
    }

    /// Tokens in the vocabulary, added ones included.
    pub fn size(&self) -> usize {
        self.full.get_vocab_size(true)
    }

    pub(super) fn inner(&self) -> &Tokenizer {
        &self.full
    }
}

fn unreadable(error: &tokenizers::Error) -> StageError {
    StageError::new(ErrorKind::Internal, format!("text cannot be tokenised: {error}"))
}
