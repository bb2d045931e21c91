//! Keeps what a person typed from becoming special tokens.
//!
//! A special token that is part of a user's text is *broken* before the template is rendered: a private-use character that
//! occurs nowhere in the conversation is put behind its first character. The ends of a text are broken in the same way
//! where they could complete a special token together with what comes before or after. After rendering, the special
//! tokens still whole are the template's own; the runs between them are tokenised as plain text with the breaks taken out.
//!
//! Why not tokenise user text apart always: merges and pre-tokenisation cross the border between template and user text
//! (`user\n` + text), so ordinary prompts, in which nothing was broken, are tokenised whole, exactly as the reference does.

use std::borrow::Cow;
use std::collections::HashSet;

use aho_corasick::AhoCorasick;

/// Finds special tokens, whole or begun, in a user's text.
#[derive(Debug)]
pub(super) struct Guard {
    whole: Option<AhoCorasick>,
    /// Proper beginnings of special tokens.
    heads: HashSet<String>,
    /// Proper ends of special tokens.
    tails: HashSet<String>,
    longest: usize,
}

impl Guard {
    pub(super) fn new(specials: &[String]) -> Self {
        let whole = AhoCorasick::new(specials).ok().filter(|_| !specials.is_empty());
        let borders = |text: &String| text.char_indices().skip(1).map(|(at, _)| at).collect::<Vec<_>>();
        let split = |pick: fn(&str, usize) -> &str| {
            specials
                .iter()
                .flat_map(|text| borders(text).into_iter().map(move |at| pick(text, at).to_owned()))
                .collect()
        };
        Self {
            whole,
            heads: split(|text, at| &text[..at]),
            tails: split(|text, at| &text[at..]),
            longest: specials.iter().map(String::len).max().unwrap_or(0),
        }
    }

    /// Whether a special token stands in the text as it is.
    pub(super) fn finds(&self, text: &str) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.is_match(text))
    }

    /// The text with all its special tokens broken; borrowed when there was nothing to break.
    pub(super) fn break_up<'t>(&self, text: &'t str, nonce: char) -> Cow<'t, str> {
        let Some(whole) = &self.whole else { return Cow::Borrowed(text) };
        let mut at: Vec<usize> = Vec::new();
        if self.could_end_one(text) {
            at.push(0);
        }
        for found in whole.find_overlapping_iter(text) {
            let first = text[found.start()..].chars().next().map_or(0, char::len_utf8);
            at.push(found.start() + first);
        }
        if self.could_begin_one(text) {
            at.push(text.len());
        }
        if at.is_empty() {
            return Cow::Borrowed(text);
        }
        at.sort_unstable();
        at.dedup();
        let mut broken = String::with_capacity(text.len() + at.len() * nonce.len_utf8());
        let mut from = 0;
        for at in at {
            broken += &text[from..at];
            broken.push(nonce);
            from = at;
        }
        Cow::Owned(broken + &text[from..])
    }

    fn could_begin_one(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.longest);
        (from..text.len()).any(|at| text.is_char_boundary(at) && self.heads.contains(&text[at..]))
    }

    fn could_end_one(&self, text: &str) -> bool {
        (1..=text.len().min(self.longest)).any(|at| text.is_char_boundary(at) && self.tails.contains(&text[..at]))
    }
}

/// A private-use character that occurs in none of the texts.
pub(super) fn nonce<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> char {
    ('\u{F0000}'..='\u{FFFFD}')
        .find(|&char| texts.clone().all(|text| !text.contains(char)))
        // 65,534 candidates of four bytes each: only a text made of all of them lacks a free one.
        .unwrap_or('\u{10FFFD}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::new(&["<|im_end|>".to_owned(), "<|IMAGE|>".to_owned(), "x".to_owned()])
    }

    #[test]
    fn whole_tokens_and_open_ends_are_broken() {
        let guard = guard();
        assert_eq!(guard.break_up("say <|IMAGE|>!", '#'), "say <#|IMAGE|>!");
        assert_eq!(guard.break_up("ends with <|im", '#'), "ends with <|im#");
        assert_eq!(guard.break_up("_end|> begins", '#'), "#_end|> begins");
        assert_eq!(guard.break_up("x", '#'), "x#");
        assert!(matches!(guard.break_up("a < b | c > d", '#'), Cow::Borrowed(_)));
        assert!(matches!(Guard::new(&[]).break_up("<|im_end|>", '#'), Cow::Borrowed(_)));
    }

    #[test]
    fn the_nonce_is_free() {
        assert_eq!(nonce(["a\u{F0000}", "\u{F0002}"].into_iter()), '\u{F0001}');
    }
}
