//! Guesses of the next tokens change how many steps an answer takes, and nothing else.

use weft_engine::grammar::GrammarSpec;
use weft_engine::handle::{Model, Speculation};
use weft_engine::request::{Generate, Sampling, Segment, TokenRules};

use crate::fixtures::{Answer, assert_all_returned, cases, prompt, read, request, start};
use crate::structured::{END, grammars};

fn on(config: &mut weft_engine::handle::EngineConfig) {
    config.speculation = Speculation::Ngram;
}

/// Requests of every kind, long enough to repeat themselves.
fn requests(model: &Model) -> Vec<Generate> {
    let words: Vec<u32> = (0..120).map(|at| 10 + at % 12).collect();
    let repeating = || vec![Segment::Text(words.clone())];
    let mut requests: Vec<Generate> = cases().iter().take(8).map(|case| request(prompt(model, case), 120)).collect();
    requests.push(request(repeating(), 150));
    for seed in 0..4 {
        let mut sampled = request(repeating(), 60);
        sampled.sampling = Sampling { temperature: 0.4 * seed as f32 + 0.2, top_p: 0.9, seed, ..Sampling::default() };
        requests.push(sampled);
    }
    let mut penalised = request(repeating(), 60);
    penalised.sampling = Sampling { repetition_penalty: 1.1, presence_penalty: 0.1, ..Sampling::default() };
    requests.push(penalised);
    let mut told = request(repeating(), 60);
    told.sampling.logprobs = Some(2);
    requests.push(told);
    let digits = GrammarSpec::Regex(r"([0-9]{2}, ){30}end".into());
    let mut bound = request(repeating(), 200);
    bound.rules = TokenRules::Grammar(grammars(true).compile(&digits).expect("compiles"));
    bound.end_tokens = vec![END];
    requests.push(bound);
    let mut closed = request(repeating(), 40);
    closed.rules = TokenRules::OneOf(vec![10, 11, 12, 13]);
    requests.push(closed);
    requests
}

fn answers(model: &Model) -> Vec<Answer> {
    let streams: Vec<_> =
        requests(model).into_iter().map(|request| model.generate(request).expect("admitted")).collect();
    streams.into_iter().map(read).collect()
}

#[test]
fn answers_of_every_kind_are_the_same_with_guesses_and_without() {
    let (_plain, plain) = start(|config| config.max_batch = 4);
    let expected = answers(&plain);
    for (batch, page, chunk) in [(1, 16, 256), (4, 5, 7), (32, 16, 64)] {
        let (engine, model) = start(|config| {
            on(config);
            (config.max_batch, config.page_tokens, config.prefill_chunk) = (batch, page, chunk);
        });
        for (at, (got, wanted)) in answers(&model).iter().zip(&expected).enumerate() {
            assert_eq!(got.ids, wanted.ids, "request {at} in batches of {batch}");
            let end = |answer: &Answer| answer.end.as_ref().map(|end| end.as_ref().map(|(why, _)| *why).ok());
            assert_eq!(end(got), end(wanted), "request {at}");
        }
        let stats = engine.stats();
        assert!(stats.drafted > 0 && stats.accepted > 0 && stats.accepted <= stats.drafted, "{stats:?}");
        assert_all_returned(&engine);
    }
}

#[test]
fn guesses_that_come_true_save_steps() {
    let (engine, model) = start(on);
    let (other, plain) = start(|_| {});
    let ask = |model: &Model| {
        let mut request = request(vec![Segment::Text(vec![1, 2, 3])], 300);
        // An answer that repeats itself, so that every guess comes true.
        request.rules = TokenRules::OneOf(vec![10]);
        read(model.generate(request).expect("admitted")).ids
    };
    assert_eq!(ask(&model), ask(&plain));
    let (with, without) = (engine.stats(), other.stats());
    assert_eq!(without.drafted, 0, "off is off");
    assert_eq!(with.drafted, with.accepted, "{with:?}");
    assert!(with.accepted > 0);
    assert_eq!(with.decode_steps + with.accepted, without.decode_steps, "each one that came true is a step less");
    assert_all_returned(&engine);
}
