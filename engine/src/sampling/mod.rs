//! From a request's wishes to the row that the backend samples by: penalties, rules and the request's own random stream.
//!
//! Everything here depends on the request and its answer so far, never on the batch or the clock: the n-th draw is a
//! function of the seed and n.

use std::collections::BTreeMap;

use weft_kernels::shapes::SampleRow;

use crate::error::EngineError;
use crate::request::Sampling;
use crate::rules::RuleState;

/// Follows one answer.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    sampling: Sampling,
    rules: Option<RuleState>,
    watch: Vec<u32>,
    /// Tokens that a penalty looks at, and how often each is in the answer (0: in the prompt only).
    seen: BTreeMap<u32, u32>,
    produced: u64,
}

impl Sampler {
    /// A sampler before the first token.
    pub(crate) fn new(sampling: Sampling, rules: Option<RuleState>, watch: Vec<u32>) -> Self {
        Self { sampling, rules, watch, seen: BTreeMap::new(), produced: 0 }
    }

    /// Notes the prompt's text tokens, which the repetition penalty counts.
    pub(crate) fn note_prompt(&mut self, ids: &[u32]) {
        if self.repeats() {
            self.seen.extend(ids.iter().map(|&id| (id, 0)));
        }
    }

    /// Notes an answer token.
    pub(crate) fn push(&mut self, token: u32) {
        self.produced += 1;
        if let Some(rules) = &mut self.rules {
            rules.push(token);
        }
        if self.repeats() || self.sampling.presence_penalty != 0.0 || self.sampling.frequency_penalty != 0.0 {
            *self.seen.entry(token).or_default() += 1;
        }
    }

    /// Tokens that come next whatever the logits are, at most this many. None when log-probabilities are asked for: those
    /// need logits.
    pub(crate) fn forced(&mut self, most: usize) -> Vec<u32> {
        match (&mut self.rules, self.sampling.logprobs) {
            (Some(rules), None) => rules.forced(most),
            _ => Vec::new(),
        }
    }

    /// How many of these tokens may follow one another by the rules, as far as that is known without logits.
    pub(crate) fn allowed(&mut self, tokens: &[u32]) -> usize {
        self.rules.as_mut().map_or(tokens.len(), |rules| rules.allowed(tokens))
    }

    /// Whether the rules end the answer here.
    pub(crate) fn complete(&self) -> bool {
        self.rules.as_ref().is_some_and(RuleState::complete)
    }

    /// Why the rules cannot be followed any further.
    pub(crate) fn fault(&self) -> Option<EngineError> {
        self.rules.as_ref().and_then(RuleState::fault)
    }

    /// Whether [`Sampler::row`] must see the step's logits.
    pub(crate) fn needs_logits(&self) -> bool {
        (self.repeats() && !self.seen.is_empty()) || self.rules.as_ref().is_some_and(RuleState::needs_logits)
    }

    /// How the next token is chosen.
    pub(crate) fn row(&self, logits: Option<&[f32]>) -> SampleRow {
        let sampling = &self.sampling;
        SampleRow {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            draw: if sampling.temperature > 0.0 { draw(sampling.seed, self.produced) } else { 0.0 },
            bias: self.bias(logits),
            mask: self.rules.as_ref().map(|rules| rules.mask(logits)),
            logprobs: sampling.logprobs,
            watch: if self.produced == 0 { self.watch.clone() } else { Vec::new() },
        }
    }

    /// Penalties and the caller's bias, one amount a token. The repetition penalty (Keskar et al., "CTRL", 2019, in
    /// transformers' form) divides positive and multiplies negative logits, so its amount depends on the logit.
    fn bias(&self, logits: Option<&[f32]>) -> Vec<(u32, f32)> {
        let sampling = &self.sampling;
        let mut amounts: BTreeMap<u32, f32> = BTreeMap::new();
        for (&token, &in_answer) in &self.seen {
            let mut amount = 0.0;
            if let Some(&logit) = logits.and_then(|logits| logits.get(token as usize)).filter(|_| self.repeats()) {
                let penalty = sampling.repetition_penalty;
                amount += if logit > 0.0 { logit / penalty - logit } else { logit * penalty - logit };
            }
            if in_answer > 0 {
                amount -= sampling.presence_penalty + sampling.frequency_penalty * in_answer as f32;
            }
            amounts.insert(token, amount);
        }
        for &(token, bias) in &sampling.logit_bias {
            *amounts.entry(token).or_default() += bias;
        }
        amounts.into_iter().filter(|(_, amount)| *amount != 0.0).collect()
    }

    fn repeats(&self) -> bool {
        self.sampling.repetition_penalty != 1.0
    }
}

/// The n-th draw of a seed, uniform in `[0, 1)`. Steele et al., "Fast Splittable Pseudorandom Number Generators" (2014):
/// the state of the n-th step is `seed + n * gamma`, so no draw depends on an earlier one.
pub(crate) fn draw(seed: u64, n: u64) -> f32 {
    // One mix of the seed first: neighbouring seeds must not give shifted streams.
    let state = mix(seed).wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // 24 bits: every value is exact in a float32 and below 1.
    (mix(state) >> 40) as f32 / (1_u32 << 24) as f32
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_depend_on_seed_and_number_alone() {
        let n = 20_000;
        let mean: f64 = (0..n).map(|i| f64::from(draw(7, i))).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let mut tenths = [0_u32; 10];
        (0..n).for_each(|i| tenths[(draw(7, i) * 10.0) as usize] += 1);
        assert!(tenths.iter().all(|&count| (1800..2200).contains(&count)), "{tenths:?}");
        assert_eq!(draw(7, 3), draw(7, 3));
        // Neighbouring seeds are unrelated, not shifted.
        assert!((0..100).all(|i| draw(7, i) != draw(8, i) && draw(7, i + 1) != draw(8, i)));
    }

    #[test]
    fn a_greedy_request_without_wishes_gives_the_plain_row() {
        let mut sampler = Sampler::new(Sampling::default(), None, vec![5]);
        sampler.note_prompt(&[1, 2, 3]);
        assert!(!sampler.needs_logits());
        assert_eq!(sampler.row(None), SampleRow { watch: vec![5], ..SampleRow::default() });
        sampler.push(4);
        assert_eq!(sampler.row(None), SampleRow::default(), "tokens are watched at the first step only");
    }

    #[test]
    fn penalties_add_up_per_token() {
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(9, 1.0), (3, 1.0)],
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(sampling, None, Vec::new());
        sampler.note_prompt(&[1, 2]);
        sampler.push(3);
        sampler.push(3);
        assert!(sampler.needs_logits());
        let logits = [0.0, 4.0, -4.0, 2.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        // 1: 4 -> 2. 2: -4 -> -8. 3: 2 -> 1, less 0.5 + 2 * 0.25, plus the bias of 1. 9: the bias.
        assert_eq!(sampler.row(Some(&logits)).bias, [(1, -2.0), (2, -4.0), (3, -1.0), (9, 1.0)]);
    }
}
