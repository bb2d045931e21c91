//! Grammars on the device: beside other requests, with media, with forced tokens.

use weft_engine::ErrorKind;
use weft_engine::grammar::{Grammar, GrammarSpec, Grammars, Vocabulary};
use weft_engine::request::{FinishReason, Sampling, Segment, TokenRules};

use crate::fixtures::{assert_all_returned, case, prompt, read, request, start};

pub const END: u32 = 2047;

/// The tiny model's vocabulary, read as bytes: 0 to 255 are single bytes, the others cannot be in a text.
pub fn grammars(canonical: bool) -> Grammars {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.resize(2048, Vec::new());
    let tokenise = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).collect();
    Grammars::new(Vocabulary { tokens, end_tokens: vec![END], tokenise: canonical.then(|| Box::new(tokenise) as _) })
        .expect("valid")
}

fn text(ids: &[u32]) -> String {
    ids.iter().map(|&id| char::from(u8::try_from(id).expect("a byte"))).collect()
}

fn digits() -> GrammarSpec {
    GrammarSpec::Regex(r#"\{"a long forced name": [0-9]{3}, "another forced name": (true|false)\}"#.into())
}

fn ask(grammar: &Grammar, segments: Vec<Segment>) -> weft_engine::request::Generate {
    let mut request = request(segments, 200);
    request.rules = TokenRules::Grammar(grammar.clone());
    request.end_tokens = vec![END];
    request
}

#[test]
fn forced_tokens_need_no_step_of_their_own_and_change_nothing() {
    let (engine, model) = start(|_| {});
    let case = case("case22");
    let mut answers = Vec::new();
    let mut steps = Vec::new();
    for grammars in [grammars(true), grammars(false)] {
        let grammar = grammars.compile(&digits()).expect("compiles");
        for logprobs in [None, Some(0)] {
            let before = engine.stats();
            let mut request = ask(&grammar, prompt(&model, &case));
            request.sampling.logprobs = logprobs;
            let answer = read(model.generate(request).expect("admitted"));
            let (reason, usage) = answer.end.expect("an end").expect("finished");
            assert_eq!((reason, usage.completion_tokens), (FinishReason::Stop, answer.ids.len()));
            answers.push(text(&answer.ids));
            steps.push(engine.stats().decode_steps - before.decode_steps);
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(answers[0].starts_with(r#"{"a long forced name": "#) && answers[0].ends_with('}'), "{answers:?}");
    // With log-probabilities every token is chosen by a step; else only the digits and the branch are.
    assert_eq!(steps[1], answers[0].len() as u64 - 1);
    assert!(steps[0] <= 6 && steps[2] <= 6, "{steps:?}");
    assert_all_returned(&engine);
}

#[test]
fn grammars_run_beside_free_requests_and_each_other() {
    let (engine, model) = start(|_| {});
    let grammars = grammars(true);
    let digits = grammars.compile(&digits()).expect("compiles");
    let choice = grammars.compile(&GrammarSpec::Choice(vec!["yes, certainly".into(), "no".into()])).expect("compiles");
    let case = case("case00");
    let segments = || vec![Segment::Text(case.ids.clone())];
    let alone = read(model.generate(ask(&digits, segments())).expect("admitted")).ids;
    let streams: Vec<_> = (0..12)
        .map(|at| {
            let mut request = match at % 3 {
                0 => ask(&digits, segments()),
                1 => ask(&choice, segments()),
                _ => request(segments(), case.greedy.len()),
            };
            if at % 3 == 1 {
                request.sampling = Sampling { temperature: 2.0, seed: at, ..Sampling::default() };
            }
            model.generate(request).expect("admitted")
        })
        .collect();
    for (at, stream) in streams.into_iter().enumerate() {
        let ids = read(stream).ids;
        match at % 3 {
            0 => assert_eq!(ids, alone),
            1 => assert!(["yes, certainly", "no"].contains(&text(&ids).as_str())),
            _ => assert_eq!(ids, case.greedy),
        }
    }
    assert_all_returned(&engine);
}

#[test]
fn an_answer_cut_short_says_so_and_a_grammar_without_a_way_on_fails_its_request_only() {
    let (engine, model) = start(|_| {});
    let grammar = grammars(true).compile(&digits()).expect("compiles");
    let mut short = ask(&grammar, vec![Segment::Text(vec![1, 2, 3])]);
    short.max_tokens = 10;
    let answer = read(model.generate(short).expect("admitted"));
    assert_eq!(answer.end.expect("an end").expect("finished").0, FinishReason::Length);
    assert_eq!(answer.ids.len(), 10);
    // Only the first 40 bytes are tokens, so the closing brace is not.
    let mut tokens: Vec<Vec<u8>> = (0..50).map(|byte| vec![byte]).collect();
    tokens.push(Vec::new());
    let poor = Grammars::new(Vocabulary { tokens, end_tokens: vec![50], tokenise: None }).expect("valid");
    let stuck = poor.compile(&GrammarSpec::Regex("[0-1]a".into())).expect("its first byte is there");
    let answer = read(model.generate(ask(&stuck, vec![Segment::Text(vec![1, 2, 3])])).expect("admitted"));
    assert_eq!(answer.end.expect("an end").expect_err("stuck").kind, ErrorKind::Unsupported);
    assert_all_returned(&engine);
}
