//! Which tokens may come next: [`TokenRules`] turned into the mask of each step.
//!
//! Owns the logit rules of Whisper (suppression, timestamps) and the closed choice of language detection, and asks
//! [`crate::grammar`] for those of structured output. Knows no device: [`RuleState`] follows one answer token by token, and gives the mask of the next step as plain words. Invariant:
//! a mask is never empty.
//!
//! One timestamp rule looks at the logits themselves (when the timestamps together are more probable than any single
//! text token, a timestamp must come), so [`RuleState::mask`] takes the step's raw logits whenever
//! [`RuleState::needs_logits`] says so.
//!
//! Sources: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5;
//! `ApplyTimestampRules` of openai/whisper `decoding.py`, which transformers' `WhisperTimeStampLogitsProcessor` equals.

use std::sync::Arc;

use crate::card::TranscriptionCard;
use crate::error::{EngineError, ErrorKind, Result};
use crate::grammar::GrammarState;
use crate::request::TokenRules;

/// Bits in a mask word.
const WORD: usize = u32::BITS as usize;

/// The rules of one request, which follow its answer.
#[derive(Debug, Clone)]
pub struct RuleState {
    vocabulary: usize,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    OneOf(Vec<u32>),
    Transcription(Speech),
    Grammar(Box<GrammarState>),
}

/// What the transcription rules remember of an answer.
#[derive(Debug, Clone)]
struct Speech {
    card: Arc<TranscriptionCard>,
    timestamps: bool,
    forced: Vec<u32>,
    /// Everything but the suppressed tokens.
    base: Vec<u32>,
    /// Answer tokens so far, the forced ones included.
    produced: usize,
    last: Option<u32>,
    before_last: Option<u32>,
    last_timestamp: Option<u32>,
}

impl RuleState {
    /// State before the first token; `None` when there is nothing to rule. Refuses tokens outside the vocabulary, an
    /// empty choice, and a card whose end token lies outside.
    pub fn new(rules: &TokenRules, vocabulary: usize) -> Result<Option<Self>> {
        let kind = match rules {
            TokenRules::Free => return Ok(None),
            TokenRules::OneOf(tokens) => {
                if tokens.is_empty() {
                    return Err(EngineError::new(ErrorKind::Malformed, "a choice of tokens needs at least one token"));
                }
                check(tokens, vocabulary)?;
                let mut mask = vec![0; vocabulary.div_ceil(WORD)];
                tokens.iter().for_each(|&token| set(&mut mask, token));
                Kind::OneOf(mask)
            }
            TokenRules::Grammar(grammar) => Kind::Grammar(Box::new(grammar.begin(vocabulary)?)),
            TokenRules::Transcription { card, timestamps, forced } => {
                check(forced, vocabulary)?;
                check(&[card.end], vocabulary)?;
                let mut base = full(vocabulary);
                card.suppress.iter().for_each(|&token| clear(&mut base, token));
                Kind::Transcription(Speech {
                    card: Arc::clone(card),
                    timestamps: *timestamps,
                    forced: forced.clone(),
                    base,
                    produced: 0,
                    last: None,
                    before_last: None,
                    last_timestamp: None,
                })
            }
        };
        Ok(Some(Self { vocabulary, kind }))
    }

    /// Whether the next mask depends on the step's logits.
    pub fn needs_logits(&self) -> bool {
        match &self.kind {
            Kind::OneOf(_) | Kind::Grammar(_) => false,
            Kind::Transcription(speech) => speech.timestamps && speech.next_forced().is_none(),
        }
    }

    /// Allowed tokens of the next step, in the layout of `SampleRow::mask`. `logits` are the raw logits of the step's
    /// row; without them the rule that weighs timestamps against text is left out.
    pub fn mask(&self, logits: Option<&[f32]>) -> Vec<u32> {
        match &self.kind {
            Kind::OneOf(mask) => mask.clone(),
            Kind::Grammar(state) => state.mask().to_vec(),
            Kind::Transcription(speech) => speech.mask(self.vocabulary, logits),
        }
    }

    /// Takes note of the token that was chosen.
    pub fn push(&mut self, token: u32) {
        match &mut self.kind {
            Kind::OneOf(_) => {}
            Kind::Transcription(speech) => speech.push(token),
            Kind::Grammar(state) => state.push(token),
        }
    }

    /// Tokens that must come next, whatever the logits are: at most this many. They are not noted yet.
    pub fn forced(&mut self, most: usize) -> Vec<u32> {
        match &mut self.kind {
            Kind::OneOf(_) | Kind::Transcription(_) => Vec::new(),
            Kind::Grammar(state) => state.forced(most),
        }
    }

    /// Whether the answer is complete: nothing may come any more.
    pub fn complete(&self) -> bool {
        matches!(&self.kind, Kind::Grammar(state) if state.complete())
    }

    /// Why the rules can no longer be followed.
    pub fn fault(&self) -> Option<EngineError> {
        match &self.kind {
            Kind::Grammar(state) => state.fault(),
            Kind::OneOf(_) | Kind::Transcription(_) => None,
        }
    }

    /// How many of these tokens may follow one another, as far as that is known without logits. Nothing is noted.
    pub fn allowed(&mut self, tokens: &[u32]) -> usize {
        match &mut self.kind {
            Kind::OneOf(mask) => {
                let inside =
                    |token: u32| mask.get(token as usize / WORD).is_some_and(|w| w >> (token as usize % WORD) & 1 == 1);
                tokens.iter().take_while(|&&token| inside(token)).count()
            }
            Kind::Grammar(state) => state.allowed(tokens),
            Kind::Transcription(_) => tokens.len(),
        }
    }
}

impl Speech {
    fn next_forced(&self) -> Option<u32> {
        self.forced.get(self.produced).copied()
    }

    fn push(&mut self, token: u32) {
        let free = self.produced >= self.forced.len();
        self.produced += 1;
        if free {
            self.before_last = self.last.replace(token);
            if token >= self.card.first_timestamp {
                self.last_timestamp = Some(token);
            }
        }
    }

    fn mask(&self, vocabulary: usize, logits: Option<&[f32]>) -> Vec<u32> {
        if let Some(token) = self.next_forced() {
            let mut mask = vec![0; vocabulary.div_ceil(WORD)];
            set(&mut mask, token);
            return mask;
        }
        let mut mask = self.base.clone();
        let first = self.produced == self.forced.len();
        if first {
            self.card.begin_suppress.iter().for_each(|&token| clear(&mut mask, token));
        }
        if self.timestamps {
            self.keep_timestamps_in_order(&mut mask, vocabulary, first);
            if let Some(logits) = logits {
                self.prefer_timestamps(&mut mask, logits);
            }
        }
        if mask.iter().all(|&word| word == 0) {
            set(&mut mask, self.card.end);
        }
        mask
    }

    /// Timestamps come in pairs (except before the end), never go back, never stand still within a segment, and the first
    /// token is one that is not too late.
    fn keep_timestamps_in_order(&self, mask: &mut [u32], vocabulary: usize, first: bool) {
        let begin = self.card.first_timestamp as usize;
        let is_timestamp = |token: u32| token as usize >= begin;
        clear(mask, self.card.no_timestamps);
        let last_is = self.last.is_some_and(is_timestamp);
        let before_is = self.before_last.is_none_or(is_timestamp);
        if last_is && before_is {
            clear_range(mask, begin, vocabulary);
        } else if last_is {
            clear_range(mask, 0, self.card.end as usize);
        }
        if let Some(timestamp) = self.last_timestamp {
            // The second of a pair may repeat the first; any other must be later.
            let opens_pair = last_is && !before_is;
            clear_range(mask, begin, timestamp as usize + usize::from(!opens_pair));
        }
        if first {
            clear_range(mask, 0, begin);
            clear_range(mask, begin + self.card.max_initial_timestamp as usize + 1, vocabulary);
        }
    }

    /// Forbids text when the timestamps' probabilities add up to more than any one text token's.
    fn prefer_timestamps(&self, mask: &mut [u32], logits: &[f32]) {
        let begin = (self.card.first_timestamp as usize).min(logits.len());
        let allowed = |token: usize| mask[token / WORD] >> (token % WORD) & 1 == 1;
        let largest = |range: std::ops::Range<usize>| {
            range.filter(|&token| allowed(token)).map(|token| logits[token]).fold(f32::NEG_INFINITY, f32::max)
        };
        let text = largest(0..begin);
        let top = largest(begin..logits.len());
        if top == f32::NEG_INFINITY {
            return;
        }
        let sum: f64 = (begin..logits.len())
            .filter(|&token| allowed(token))
            .map(|token| f64::from(logits[token] - top).exp())
            .sum();
        if f64::from(top) + sum.ln() > f64::from(text) {
            clear_range(mask, 0, begin);
        }
    }
}

fn check(tokens: &[u32], vocabulary: usize) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= vocabulary) {
        Some(token) => {
            let message = format!("token {token} is outside the vocabulary of {vocabulary}");
            Err(EngineError::new(ErrorKind::Malformed, message))
        }
        None => Ok(()),
    }
}

/// A mask with every token of the vocabulary.
fn full(vocabulary: usize) -> Vec<u32> {
    let mut mask = vec![u32::MAX; vocabulary.div_ceil(WORD)];
    let words = mask.len();
    clear_range(&mut mask, vocabulary, words * WORD);
    mask
}

fn set(mask: &mut [u32], token: u32) {
    mask[token as usize / WORD] |= 1 << (token as usize % WORD);
}

/// Clears a bit; tokens outside the mask are none of its business.
fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / WORD) {
        *word &= !(1 << (token as usize % WORD));
    }
}

/// Clears bits `from..to`, whole words at a time.
fn clear_range(mask: &mut [u32], from: usize, to: usize) {
    let to = to.min(mask.len() * WORD);
    let mut at = from;
    while at < to {
        let (word, bit) = (at / WORD, at % WORD);
        let bits = (to - at).min(WORD - bit);
        mask[word] &= !((u32::MAX >> (WORD - bits)) << bit);
        at += bits;
    }
}

#[cfg(test)]
mod tests;
