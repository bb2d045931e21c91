//! A fault costs the requests it concerns, and nobody waits for ever.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use weft_engine::ErrorKind;
use weft_engine::handle::{Engine, ModelSource};
use weft_engine::media::{MediaId, Medium};
use weft_engine::request::{Segment, TokenEvent};
use weft_kernels::CpuBackend;

use crate::faulty::{FATAL_WATCH, Faulty, POISON};
use crate::fixtures::{assert_all_returned, case, config, medium, prompt, read, request, start};

fn faulty() -> Engine {
    Engine::start_on(config(|_| {}), || Ok(Faulty(CpuBackend::new(1)))).expect("the engine starts")
}

#[test]
fn a_medium_that_cannot_be_encoded_fails_its_own_requests_only() {
    let engine = faulty();
    let model = engine.model("omni").expect("there");
    let good = case("case08");
    let first = model.generate(request(prompt(&model, &good), 8)).expect("admitted");
    let Medium::Image(mut patches) = medium("scene_56x56.png") else { panic!("an image") };
    patches.values[3] = POISON;
    patches.id = MediaId([99; 32]);
    let bad = model.encode(Medium::Image(patches)).expect("queued");
    let others: Vec<_> = ["case05", "case11", "case16"].map(case).into_iter().collect();
    let others: Vec<_> = others
        .iter()
        .map(|case| (case, model.generate(request(prompt(&model, case), 8)).expect("admitted")))
        .collect();
    let ask = || model.generate(request(vec![Segment::Text(vec![1, 2]), Segment::Media(bad.clone())], 8));
    let doomed = [ask().expect("queued"), ask().expect("queued")];
    for stream in doomed {
        assert_eq!(read(stream).end.expect("an end").expect_err("failed").kind, ErrorKind::Internal);
    }
    // A request that comes after the failure learns of it too.
    assert!(read(ask().expect("queued")).end.expect("an end").is_err());
    assert_eq!(read(first).ids, good.greedy[..8]);
    for (case, stream) in others {
        assert_eq!(read(stream).ids, case.greedy[..8], "{}", case.name);
    }
    drop(bad);
    assert_all_returned(&engine);
}

#[test]
fn a_panic_on_the_device_fails_every_request_and_later_calls() {
    let engine = faulty();
    let model = engine.model("omni").expect("there");
    let ask = |watch| {
        let mut request = request(vec![Segment::Text(vec![1, 2, 3])], 2000);
        request.watch = watch;
        model.generate(request)
    };
    let mut running = ask(Vec::new()).expect("admitted");
    assert!(matches!(running.next_blocking(), Some(TokenEvent::Started { .. })));
    let fatal = ask(vec![FATAL_WATCH]).expect("admitted");
    for stream in [running, fatal] {
        assert_eq!(read_rest(stream), (ErrorKind::Internal, "device stopped".to_owned()));
    }
    let until = Instant::now() + Duration::from_secs(5);
    while engine.stats().alive {
        assert!(Instant::now() < until, "the engine does not know that its thread is gone");
        std::thread::yield_now();
    }
    let later = ask(Vec::new()).map(drop).expect_err("refused");
    assert_eq!((later.kind, later.message.as_str()), (ErrorKind::Internal, "device stopped"));
    assert_eq!(model.encode(medium("word.wav")).map(drop).expect_err("refused").kind, ErrorKind::Internal);
}

/// The error at the end of a stream that may have given tokens before.
fn read_rest(mut stream: weft_engine::handle::TokenStream) -> (ErrorKind, String) {
    let mut last = None;
    while let Some(event) = stream.next_blocking() {
        last = Some(event);
    }
    match last {
        Some(TokenEvent::Failed(error)) => (error.kind, error.message),
        other => panic!("the stream ended with {other:?}"),
    }
}

#[test]
fn dropping_the_last_handle_ends_the_answers_and_the_thread() {
    let (engine, model) = start(|_| {});
    let mut stream = model.generate(request(vec![Segment::Text(vec![1, 2, 3])], 4000)).expect("admitted");
    let ticket = model.encode(medium("word.wav")).expect("room");
    assert!(matches!(stream.next_blocking(), Some(TokenEvent::Started { .. })));
    drop((engine, model));
    assert_eq!(read_rest(stream).0, ErrorKind::Cancelled);
    assert_eq!(ticket.tokens(), 17);
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error_that_names_it() {
    let missing = config(|config| config.models[0].source = ModelSource::Path(PathBuf::from("no/such/folder")));
    let error = Engine::start(missing).map(drop).expect_err("nothing to load");
    assert!(error.message.contains("omni"), "{error}");
    assert!(Engine::start(config(|config| config.page_tokens = 0)).is_err());
    let (engine, _) = start(|_| {});
    let unknown = engine.model("other").map(drop).expect_err("no such model");
    assert_eq!(unknown.kind, ErrorKind::NotFound);
    assert!(unknown.message.contains("omni"), "{unknown}");
}
