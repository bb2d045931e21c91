//! Answer tokens to text, one token at a time.
//!
//! Invariant: the deltas, joined, are exactly what decoding all tokens at once gives, and no delta ends inside a
//! character. The rules of the usual decoders are followed byte by byte; an unusual decoder is asked for the whole text
//! after every token.

use std::sync::Arc;

use serde_json::Value;

use super::tokenizer::TextTokenizer;

const REPLACEMENT: char = '\u{FFFD}';

/// How a tokenizer's decoder joins tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    /// Byte-level BPE: each character of a token is a byte.
    Bytes,
    /// SentencePiece: a mark stands for a space, `<0x41>` for a byte, and up to so many leading spaces are dropped.
    Pieces { mark: char, strip: usize, byte_fallback: bool },
    /// SentencePiece without byte tokens; the first token's marks are dropped when the flag is set.
    Marks { mark: char, drop_first: bool },
    /// Anything else.
    Whole,
}

impl Rule {
    pub(super) fn of(tokenizer: &TextTokenizer) -> Self {
        let decoder = tokenizer.inner().get_decoder().and_then(|decoder| serde_json::to_value(decoder).ok());
        decoder.as_ref().and_then(Self::read).unwrap_or(Self::Whole)
    }

    fn read(decoder: &Value) -> Option<Self> {
        match decoder["type"].as_str()? {
            "ByteLevel" => Some(Self::Bytes),
            "Metaspace" => Some(Self::Marks {
                mark: decoder["replacement"].as_str()?.chars().next()?,
                drop_first: decoder["prepend_scheme"].as_str()? != "never",
            }),
            "Sequence" => {
                let parts = decoder["decoders"].as_array()?;
                let mut types: Vec<&str> = parts.iter().filter_map(|part| part["type"].as_str()).collect();
                let strip = parts.last().filter(|_| types.last() == Some(&"Strip"));
                if strip.is_some_and(|strip| strip["content"] != " " || strip["stop"] != 0) {
                    return None;
                }
                if strip.is_some() {
                    types.pop();
                }
                let byte_fallback = match types.as_slice() {
                    ["Replace", "ByteFallback", "Fuse"] => true,
                    ["Replace", "Fuse"] => false,
                    _ => return None,
                };
                let mut mark = parts[0]["pattern"]["String"].as_str()?.chars();
                let (first, rest) = (mark.next()?, mark.next());
                if rest.is_some() || parts[0]["content"] != " " {
                    return None;
                }
                let strip = strip.and_then(|strip| strip["start"].as_u64()).unwrap_or(0) as usize;
                Some(Self::Pieces { mark: first, strip, byte_fallback })
            }
            _ => None,
        }
    }
}

/// Tokenizer and rule, shared by all answers of a model.
#[derive(Debug)]
pub(super) struct Decoding {
    tokenizer: Arc<TextTokenizer>,
    rule: Rule,
}

impl Decoding {
    pub(super) fn of(tokenizer: Arc<TextTokenizer>) -> Self {
        let rule = Rule::of(&tokenizer);
        Self { tokenizer, rule }
    }
}

/// The state of one answer.
#[derive(Debug)]
pub struct Detokeniser {
    decoding: Arc<Decoding>,
    /// Bytes that are not yet characters.
    bytes: Vec<u8>,
    /// Leading spaces still to be dropped.
    strip: usize,
    /// Whether a token was seen.
    begun: bool,
    /// [`Rule::Whole`]: all tokens, and how much of their text is out.
    ids: Vec<u32>,
    shown: usize,
}

impl Detokeniser {
    pub(super) fn new(decoding: Arc<Decoding>) -> Self {
        let strip = if let Rule::Pieces { strip, .. } = decoding.rule { strip } else { 0 };
        Self { decoding, bytes: Vec::new(), strip, begun: false, ids: Vec::new(), shown: 0 }
    }

    /// Takes the next token; gives the text that is certain now.
    pub fn push(&mut self, id: u32) -> String {
        let decoding = Arc::clone(&self.decoding);
        if decoding.tokenizer.is_special(id) {
            return String::new();
        }
        let Some(token) = decoding.tokenizer.inner().id_to_token(id) else { return String::new() };
        let first = !std::mem::replace(&mut self.begun, true);
        match decoding.rule {
            Rule::Bytes => {
                match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                    Some(bytes) => self.bytes.extend(bytes),
                    None => self.bytes.extend(token.as_bytes()),
                }
                self.characters()
            }
            Rule::Pieces { mark, byte_fallback, .. } => match byte_token(&token).filter(|_| byte_fallback) {
                Some(byte) => {
                    self.bytes.push(byte);
                    String::new()
                }
                None => {
                    let text = self.byte_run() + &token.replace(mark, " ");
                    self.stripped(text)
                }
            },
            Rule::Marks { mark, drop_first } => token.replace(mark, if first && drop_first { "" } else { " " }),
            Rule::Whole => {
                self.ids.push(id);
                self.whole(false)
            }
        }
    }

    /// What is left when the answer ends.
    pub fn finish(&mut self) -> String {
        match self.decoding.rule {
            Rule::Bytes => {
                let text = String::from_utf8_lossy(&self.bytes).into_owned();
                self.bytes.clear();
                text
            }
            Rule::Pieces { .. } => {
                let text = self.byte_run();
                self.stripped(text)
            }
            Rule::Marks { .. } => String::new(),
            Rule::Whole => self.whole(true),
        }
    }

    /// All whole characters of the pending bytes; bytes that can never become one are replaced as a lossy decode does.
    fn characters(&mut self) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(whole) => {
                    text += whole;
                    self.bytes.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text += &String::from_utf8_lossy(&self.bytes[..valid]);
                    let bad = error.error_len();
                    if bad.is_some() {
                        text.push(REPLACEMENT);
                    }
                    self.bytes.drain(..valid + bad.unwrap_or(0));
                    if bad.is_none() {
                        return text;
                    }
                }
            }
        }
    }

    /// The text of a finished run of byte tokens: a run is text as a whole, or one replacement a byte.
    fn byte_run(&mut self) -> String {
        let bytes = std::mem::take(&mut self.bytes);
        let count = bytes.len();
        String::from_utf8(bytes).unwrap_or_else(|_| REPLACEMENT.to_string().repeat(count))
    }

    fn stripped(&mut self, mut text: String) -> String {
        while self.strip > 0 && !text.is_empty() {
            if text.starts_with(' ') {
                text.remove(0);
                self.strip -= 1;
            } else {
                self.strip = 0;
            }
        }
        text
    }

    fn whole(&mut self, last: bool) -> String {
        let text = self.decoding.tokenizer.decode(&self.ids).unwrap_or_default();
        if text.ends_with(REPLACEMENT) && !last {
            return String::new();
        }
        let Some(new) = text.get(self.shown..).map(str::to_owned) else { return String::new() };
        self.shown = text.len();
        new
    }
}

/// The byte that a character of byte-level BPE stands for: printable Latin-1 for itself, the 68 others from U+0100 on.
pub(super) fn byte_of(char: char) -> Option<u8> {
    match u32::from(char) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte of a token such as `<0x0A>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('Ń')), (Some(b' '), Some(b'\n'), Some(0xAD)));
    }
}
