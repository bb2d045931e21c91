//! Tests of guesses: where they are found, when they pay, and that they change no distribution.

use proptest::prelude::*;
use weft_kernels::{Backend, CpuBackend};

use super::*;
use crate::device::step::accepted;
use crate::request::Sampling;
use crate::sampling::Sampler;

fn after(text: &[u32], most: usize) -> Vec<u32> {
    let mut drafter = Drafter::new();
    text.iter().for_each(|&token| drafter.push(token));
    drafter.look(most);
    drafter.guess
}

#[test]
fn a_guess_is_what_followed_the_latest_place() {
    assert_eq!(after(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 4), [4, 5, 6, 1]);
    assert_eq!(after(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2), [5, 1]);
    assert_eq!(after(&[7, 8, 7, 8, 7, 8], 5), [7, 8, 7, 8, 7], "what runs up to the end is taken to repeat");
    assert!(after(&[1, 2, 3, 4, 2, 3], 4).is_empty(), "two tokens are no place");
    assert!(after(&[1, 2], 4).is_empty() && after(&[], 4).is_empty());
    assert!(after(&[1, 2, 3, 4, 1, 2, 3], 0).is_empty());
}

#[test]
fn media_are_neither_found_nor_guessed() {
    let mut drafter = Drafter::new();
    [1, 2, 3].iter().for_each(|&token| drafter.push(token));
    drafter.push_medium(4);
    drafter.look(8);
    assert!(drafter.guess.is_empty());
    [1, 2, 3].iter().for_each(|&token| drafter.push(token));
    drafter.look(8);
    assert!(drafter.guess.is_empty(), "a picture followed");
}

#[test]
fn guesses_stop_where_they_do_not_pay_and_come_back() {
    // A step of n rows takes 10 + 4 n.
    let time = |rows: usize| Duration::from_millis(10 + 4 * rows as u64);
    let most = |hit| best(&[Offer { guesses: 8, hit }], 1, time);
    assert_eq!(most(0.95), 8);
    assert!((1..4).contains(&most(0.6)));
    assert_eq!(most(0.2), 0);
    // A free row is worth any guess, a row that takes as long as a step none.
    assert_eq!(best(&[Offer { guesses: 8, hit: 0.2 }], 1, |_| Duration::from_millis(5)), 8);
    assert_eq!(best(&[Offer { guesses: 8, hit: 0.95 }], 1, |rows| Duration::from_millis(rows as u64)), 0);
    // Beside sequences without guesses, each row slows everyone.
    let crowd = [Offer { guesses: 8, hit: 0.6 }, Offer { guesses: 0, hit: 0.6 }];
    assert!(best(&crowd, 2, time) <= most(0.6));
    let mut drafter = Drafter::new();
    let mut learn = |came: u32| {
        drafter.guess = vec![5];
        drafter.learn(&[came]);
        most(drafter.hit)
    };
    assert!((0..12).map(|_| learn(6)).last() == Some(0), "misses switch it off");
    assert!((0..12).map(|_| learn(5)).last() > Some(0), "guesses that would have come true switch it on");
}

proptest! {
    #[test]
    fn a_guess_was_seen_after_the_same_tokens(text in prop::collection::vec(0_u32..4, 0..60), most in 0_usize..9) {
        let guess = after(&text, most);
        prop_assert!(guess.len() <= most);
        if let Some(&first) = guess.first() {
            let last = &text[text.len() - NGRAM..];
            prop_assert!(text.windows(NGRAM + 1).any(|w| w[..NGRAM] == *last && w[NGRAM] == first));
        } else if most > 0 && text.len() >= NGRAM {
            let last = &text[text.len() - NGRAM..];
            prop_assert!(!text[..text.len() - 1].windows(NGRAM).any(|w| w == last));
        }
    }
}

/// Logits of the token after `last`, in a text where some tokens are likely.
fn logits(last: u32) -> Vec<f32> {
    (0..TOKENS).map(|token| ((last * 7 + token * 5) % 11) as f32 * 0.3).collect()
}

const TOKENS: u32 = 6;
const DRAWS: u64 = 50_000;

/// One decode step of a sequence whose answer stands at `last`, with these guesses: the tokens that come of it.
fn step(backend: &CpuBackend, sampler: &mut Sampler, last: u32, guesses: &[u32]) -> Vec<u32> {
    let mut values = logits(last);
    guesses.iter().for_each(|&guess| values.extend(logits(guess)));
    let rows: Vec<_> = std::iter::once(&last).chain(guesses).copied().collect();
    let values = backend.upload(rows.len(), TOKENS as usize, &values).expect("fits");
    let mut fork = sampler.clone();
    let mut choices = vec![fork.row(None)];
    for &guess in guesses {
        fork.push(guess);
        choices.push(fork.row(None));
    }
    let sampled = backend.sample(&values, &choices).expect("samples");
    let came: Vec<u32> = sampled.iter().map(|sampled| sampled.token).collect();
    let taken = came[..=accepted(guesses, &came)].to_vec();
    taken.iter().for_each(|&token| sampler.push(token));
    taken
}

#[test]
fn the_sampled_distribution_is_unchanged_over_fifty_thousand_draws() {
    let backend = CpuBackend::new(1);
    let chance = |last: u32| {
        let weights: Vec<f64> = logits(last).iter().map(|&logit| f64::from(logit).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(move |weight| weight / sum).collect::<Vec<_>>()
    };
    let cells = (TOKENS * TOKENS) as usize;
    let mut counts = vec![0_u32; cells];
    let (mut drafted, mut true_ones) = (0, 0);
    for seed in 0..DRAWS {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling.clone(), None, Vec::new());
        // The likeliest pair, so that guesses come true often, and wrong ones often too.
        let mut came = step(&backend, &mut sampler, 0, &[4, 1]);
        drafted += 1;
        true_ones += usize::from(came.len() > 1);
        while came.len() < 2 {
            let last = came[came.len() - 1];
            came.extend(step(&backend, &mut sampler, last, &[]));
        }
        counts[(came[0] * TOKENS + came[1]) as usize] += 1;
        // Stronger than the distribution: the very tokens are those without guesses.
        let mut plain = Sampler::new(sampling, None, Vec::new());
        let mut alone = step(&backend, &mut plain, 0, &[]);
        alone.extend(step(&backend, &mut plain, alone[0], &[]));
        assert_eq!(came[..2], alone);
    }
    assert!(true_ones * 10 > drafted && true_ones * 10 < 9 * drafted, "{true_ones} of {drafted} guesses came true");
    let first = chance(0);
    let expected = (0..cells).map(|cell| {
        let (one, two) = (cell / TOKENS as usize, cell % TOKENS as usize);
        first[one] * chance(one as u32)[two] * DRAWS as f64
    });
    let square: f64 = counts.iter().zip(expected).map(|(&seen, mean)| (f64::from(seen) - mean).powi(2) / mean).sum();
    // 35 degrees of freedom: 66.6 is exceeded once in a thousand.
    assert!(square < 66.6, "chi-square {square:.1} over {DRAWS} draws");
}
