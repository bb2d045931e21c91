//! Guesses of an answer's next tokens: what followed the last time that its text stood as it stands now.
//!
//! Owns the lookup, the share of guesses that came true, and the choice of how many a step runs. Knows no device: a guess
//! only adds rows to a decode step, and the sampler chooses as it would without (the n-th draw is a function of seed and
//! n), so answers are the same with guesses and without.

use std::collections::HashMap;
use std::time::Duration;

use weft_kernels::Backend;

use super::Device;
use super::command::MOST_DRAFTS;
use super::step::Share;
use crate::scheduler::{Kind, Work};
use crate::stats::count;

/// Tokens that must agree with an earlier place.
const NGRAM: usize = 3;
/// Stands for rows that are no tokens.
const NO_TOKEN: u32 = u32::MAX;
/// Share of guesses that is expected to come true before any did.
const FIRST_HIT: f64 = 0.6;
/// Weight of one guess's fate.
const WEIGHT: f64 = 0.1;
/// Guesses run only where they promise at least this many times the tokens a second.
const LEAST_GAIN: f64 = 1.05;

/// Follows the text of one sequence.
#[derive(Debug)]
pub(super) struct Drafter {
    text: Vec<u32>,
    /// Tokens of the text whose places are entered in `after`.
    entered: usize,
    /// Where the text went on after the latest place of these tokens.
    after: HashMap<[u32; NGRAM], usize>,
    /// Share of guesses that came true among those whose predecessors did.
    hit: f64,
    /// What was guessed after the last token, whether a step runs it or not.
    guess: Vec<u32>,
}

impl Drafter {
    pub(super) fn new() -> Self {
        Self { text: Vec::new(), entered: 0, after: HashMap::new(), hit: FIRST_HIT, guess: Vec::new() }
    }

    /// Adds a token.
    pub(super) fn push(&mut self, token: u32) {
        self.text.push(token);
    }

    /// Adds rows of a medium.
    pub(super) fn push_medium(&mut self, rows: usize) {
        (0..rows).for_each(|_| self.push(NO_TOKEN));
    }

    /// Guesses up to this many tokens.
    fn look(&mut self, most: usize) {
        self.guess.clear();
        // Each place is entered when a token stands behind it: the last ones of the text must not find themselves.
        for at in self.entered.max(NGRAM)..self.text.len() {
            if let Some(&before) = self.text[..at].last_chunk::<NGRAM>() {
                self.after.insert(before, at);
            }
        }
        self.entered = self.text.len();
        let found = self.text.last_chunk::<NGRAM>().and_then(|last| self.after.get(last));
        let Some(&from) = found else { return };
        for at in from..from + most {
            // What was found may run up to the end of the text: then it is taken to repeat.
            let token = self.text.get(at).or_else(|| self.guess.get(at - self.text.len()));
            match token {
                Some(&token) if token != NO_TOKEN => self.guess.push(token),
                _ => return,
            }
        }
    }

    /// Learns from the tokens that came. A guess that no step ran counts too, so one that was given up is taken up again
    /// when the text becomes repetitive.
    pub(super) fn learn(&mut self, came: &[u32]) {
        for (guess, token) in self.guess.iter().zip(came) {
            let hit = f64::from(u8::from(guess == token));
            self.hit += WEIGHT * (hit - self.hit);
            if guess != token {
                break;
            }
        }
        self.guess.clear();
    }
}

/// What a sequence could add to a step.
#[derive(Debug, Clone, Copy)]
struct Offer {
    guesses: usize,
    hit: f64,
}

impl Offer {
    /// Tokens that a step is expected to give with at most this many guesses.
    fn tokens(self, most: usize) -> f64 {
        let run = self.guesses.min(most);
        (0..=run).map(|n| self.hit.powi(i32::try_from(n).unwrap_or(i32::MAX))).sum()
    }
}

/// Guesses a sequence with which a step gives most tokens a second; 0 where they do not pay. `time` is that of a step of
/// so many rows, `rows` those without guesses.
fn best(offers: &[Offer], rows: usize, time: impl Fn(usize) -> Duration) -> usize {
    let rate = |most: usize| {
        let added: usize = offers.iter().map(|offer| offer.guesses.min(most)).sum();
        let tokens: f64 = offers.iter().map(|offer| offer.tokens(most)).sum();
        tokens / time(rows + added).as_secs_f64().max(1e-9)
    };
    let longest = offers.iter().map(|offer| offer.guesses).max().unwrap_or(0);
    let mut chosen = (0, rate(0) * LEAST_GAIN);
    for most in 1..=longest {
        let rate = rate(most);
        if rate > chosen.1 {
            chosen = (most, rate);
        }
    }
    chosen.0
}

impl<B: Backend> Device<B> {
    /// Adds guesses to the shares of a decode step, as many as pay by the times of steps so far.
    pub(super) fn draft(&mut self, model: usize, shares: &mut [Share]) {
        if !self.guesses {
            return;
        }
        let mut offers = Vec::new();
        for share in shares.iter() {
            let Some(sequence) = self.sequences.get_mut(&share.key) else { continue };
            // The last token of an answer is never fed back.
            let most = MOST_DRAFTS.min(sequence.expects().saturating_sub(1));
            sequence.drafter.look(most);
            // A guess that the rules forbid cannot come true.
            let allowed = sequence.sampler.allowed(&sequence.drafter.guess);
            sequence.drafter.guess.truncate(allowed);
            offers.push(Offer { guesses: sequence.drafter.guess.len(), hit: sequence.drafter.hit });
        }
        let rows = shares.iter().map(|share| share.positions.len()).sum();
        let most = best(&offers, rows, |size| self.cost.predict(Work { model, kind: Kind::Decode, size }));
        for share in shares.iter_mut() {
            let Some(sequence) = self.sequences.get(&share.key) else { continue };
            share.drafts.extend(sequence.drafter.guess.iter().take(most));
            count(&self.shared.counters.drafted, share.drafts.len());
        }
    }
}

#[cfg(test)]
#[path = "draft_tests.rs"]
mod tests;
