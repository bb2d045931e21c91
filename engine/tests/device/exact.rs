//! The same request gives the same tokens alone and in any batch, sliced or not, and they are the reference's.

use weft_engine::handle::{EngineConfig, Policy};
use weft_engine::request::FinishReason;

use crate::fixtures::{assert_all_returned, cases, prompt, read, request, start};

/// Every golden case, all at once, under this configuration.
fn check(name: &str, change: impl FnOnce(&mut EngineConfig)) {
    let (engine, model) = start(change);
    let cases = cases();
    let streams: Vec<_> = cases
        .iter()
        .map(|case| model.generate(request(prompt(&model, case), case.greedy.len())).expect("admitted"))
        .collect();
    for (case, stream) in cases.iter().zip(streams) {
        let answer = read(stream);
        assert_eq!(answer.ids, case.greedy, "{} under {name}", case.name);
        let (reason, usage) = answer.end.expect("an end").expect("finished");
        assert_eq!(reason, FinishReason::Length);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (case.ids.len(), case.greedy.len()));
    }
    assert_all_returned(&engine);
}

#[test]
fn golden_tokens_one_request_at_a_time() {
    let (engine, model) = start(|_| {});
    for case in cases() {
        let stream = model.generate(request(prompt(&model, &case), case.greedy.len())).expect("admitted");
        assert_eq!(read(stream).ids, case.greedy, "{}", case.name);
    }
    assert_all_returned(&engine);
}

#[test]
fn golden_tokens_in_batches_of_every_kind() {
    check("the defaults", |_| {});
    check("batches of eight, inline", |config| {
        config.max_batch = 8;
        config.policy = Policy::Inline;
    });
    check("batches of three, small pages and chunks", |config| {
        config.max_batch = 3;
        config.page_tokens = 5;
        config.prefill_chunk = 7;
    });
    check("one row a chunk beside decode, a tight target", |config| {
        config.page_tokens = 32;
        config.prefill_chunk = 1;
        config.inter_token_target = 1.01;
    });
    for layers in 1..=3 {
        check("encoders sliced by layers", |config| {
            config.encoder_slice_layers = layers;
            config.max_batch = 8;
        });
    }
}
