//! Each rule by hand-made cases that fail without it, on a vocabulary of 40: text 0..20, end 20, start 21,
//! no-timestamps 24, timestamps 25..40.

use std::sync::Arc;

use super::*;

const VOCABULARY: usize = 40;
const END: u32 = 20;
const ZERO: u32 = 25;

fn card() -> TranscriptionCard {
    TranscriptionCard {
        start: 21,
        end: END,
        no_timestamps: 24,
        first_timestamp: ZERO,
        suppress: vec![3, 21, 22, 23],
        begin_suppress: vec![5, END],
        max_initial_timestamp: 4,
        max_length: 448,
        ..Default::default()
    }
}

fn state(timestamps: bool, forced: &[u32], answer: &[u32]) -> RuleState {
    let rules = TokenRules::Transcription { card: Arc::new(card()), timestamps, forced: forced.to_vec() };
    let mut state = RuleState::new(&rules, VOCABULARY).expect("valid").expect("ruled");
    answer.iter().for_each(|&token| state.push(token));
    state
}

fn tokens(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|&token| mask[token as usize / 32] >> (token % 32) & 1 == 1).collect()
}

fn allowed(answer: &[u32]) -> Vec<u32> {
    tokens(&state(true, &[], answer).mask(None))
}

fn text() -> impl Iterator<Item = u32> {
    (0..20).filter(|&token| token != 3)
}

#[test]
fn free_rules_need_no_state() {
    assert!(RuleState::new(&TokenRules::Free, VOCABULARY).expect("valid").is_none());
}

#[test]
fn one_of_allows_exactly_its_tokens() {
    let state = RuleState::new(&TokenRules::OneOf(vec![39, 0, 7]), VOCABULARY).expect("valid").expect("ruled");
    assert_eq!(tokens(&state.mask(None)), [0, 7, 39]);
    assert!(!state.needs_logits());
}

#[test]
fn impossible_rules_are_refused() {
    assert!(RuleState::new(&TokenRules::OneOf(Vec::new()), VOCABULARY).is_err());
    assert!(RuleState::new(&TokenRules::OneOf(vec![40]), VOCABULARY).is_err());
    let rules = TokenRules::Transcription { card: Arc::new(card()), timestamps: true, forced: vec![] };
    assert!(RuleState::new(&rules, 10).is_err(), "the end token is outside");
}

#[test]
fn suppressed_tokens_never_come_and_begin_suppressed_not_first() {
    let first = tokens(&state(false, &[], &[]).mask(None));
    assert!(!first.contains(&3) && !first.contains(&5) && !first.contains(&END));
    let later = tokens(&state(false, &[], &[1]).mask(None));
    assert!(!later.contains(&3) && later.contains(&5) && later.contains(&END));
}

#[test]
fn without_timestamps_their_tokens_are_left_alone() {
    let later = tokens(&state(false, &[], &[1]).mask(None));
    assert!(later.contains(&24) && later.contains(&ZERO) && later.contains(&39));
}

#[test]
fn forced_tokens_come_first_and_do_not_count_as_answer() {
    let fresh = state(true, &[22, 23], &[]);
    assert_eq!(tokens(&fresh.mask(None)), [22]);
    assert!(!fresh.needs_logits());
    assert_eq!(tokens(&state(true, &[22, 23], &[22]).mask(None)), [23]);
    let begun = state(true, &[22, 23], &[22, 23]);
    assert!(begun.needs_logits());
    assert_eq!(begun.mask(None), state(true, &[], &[]).mask(None), "begins as if nothing was forced");
}

#[test]
fn the_first_token_is_an_early_timestamp() {
    assert_eq!(allowed(&[]), [25, 26, 27, 28, 29]);
}

#[test]
fn text_follows_the_first_timestamp() {
    assert_eq!(allowed(&[ZERO]), text().chain([END]).collect::<Vec<_>>());
}

#[test]
fn after_text_only_later_timestamps() {
    assert_eq!(allowed(&[27, 1]), text().chain([END]).chain(28..40).collect::<Vec<_>>());
}

#[test]
fn a_closing_timestamp_asks_for_its_pair_or_the_end() {
    assert_eq!(allowed(&[25, 1, 30]), [END].into_iter().chain(30..40).collect::<Vec<_>>());
}

#[test]
fn a_pair_is_followed_by_text() {
    assert_eq!(allowed(&[25, 1, 30, 30]), text().chain([END]).collect::<Vec<_>>());
}

#[test]
fn timestamps_win_when_together_more_probable_than_any_text() {
    let after_text = state(true, &[], &[25, 1]);
    let mut logits = vec![-20.0; VOCABULARY];
    logits[2] = 1.0;
    logits[30] = 0.5;
    assert_eq!(after_text.mask(Some(&logits)), after_text.mask(None), "one timestamp is less probable than the text");
    logits[31] = 0.5;
    assert_eq!(tokens(&after_text.mask(Some(&logits))), (26..40).collect::<Vec<_>>(), "two together are more");
}

#[test]
fn forbidden_tokens_do_not_weigh_in() {
    let after_text = state(true, &[], &[29, 1]);
    let mut logits = vec![-20.0; VOCABULARY];
    (logits[3], logits[2], logits[27], logits[30]) = (9.0, 1.0, 8.0, 0.0);
    assert_eq!(after_text.mask(Some(&logits)), after_text.mask(None), "27 lies in the past");
    logits[30] = 2.0;
    assert!(!tokens(&after_text.mask(Some(&logits))).contains(&2), "3 is suppressed and cannot hold text up");
}

#[test]
fn a_mask_is_never_empty() {
    // Deterministic walk over answers and cards, extreme ones included: everything suppressed, no room for timestamps.
    let mut seed = 7_u64;
    let mut random = move |limit: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % limit
    };
    for round in 0..500 {
        let mut card = card();
        if round % 3 == 0 {
            card.suppress = (0..VOCABULARY as u32).filter(|_| random(4) > 0).collect();
        }
        if round % 5 == 0 {
            card.begin_suppress = (0..VOCABULARY as u32).collect();
        }
        let rules = TokenRules::Transcription { card: Arc::new(card), timestamps: round % 2 == 0, forced: vec![] };
        let mut state = RuleState::new(&rules, VOCABULARY).expect("valid").expect("ruled");
        for _ in 0..30 {
            let logits: Vec<f32> = (0..VOCABULARY).map(|_| random(1000) as f32 / 50.0 - 10.0).collect();
            let choice = tokens(&state.mask(Some(&logits)));
            assert!(!choice.is_empty() && choice.iter().all(|&token| (token as usize) < VOCABULARY));
            state.push(choice[random(choice.len() as u64) as usize]);
        }
    }
}
