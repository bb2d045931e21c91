//! Admission, streams, cancellation, deadlines, caches, sampling.

use std::time::{Duration, Instant};

use weft_engine::ErrorKind;
use weft_engine::handle::StepKind;
use weft_engine::media::Medium;
use weft_engine::request::{Class, FinishReason, Sampling, Segment, TokenEvent, TokenRules};

use crate::fixtures::{Answer, assert_all_returned, case, medium, prompt, read, request, start};

fn kind(answer: &Answer) -> Option<ErrorKind> {
    answer.end.as_ref()?.as_ref().err().map(|error| error.kind)
}

#[test]
fn what_can_never_run_is_refused_at_once_with_a_reason() {
    let (_engine, model) = start(|config| config.kv_bytes = 64 << 10);
    let text = |ids: Vec<u32>| vec![Segment::Text(ids)];
    let refused = |request| model.generate(request).map(drop).expect_err("refused");
    assert_eq!(refused(request(Vec::new(), 4)).kind, ErrorKind::Malformed);
    assert_eq!(refused(request(text(vec![1]), 0)).kind, ErrorKind::Malformed);
    assert_eq!(refused(request(text(vec![2048]), 4)).kind, ErrorKind::Malformed);
    assert_eq!(refused(request(text(vec![1; 5000]), 4)).kind, ErrorKind::TooLarge);
    let large = refused(request(text(vec![1; 1000]), 4));
    assert_eq!(large.kind, ErrorKind::TooLarge);
    assert!(large.message.contains("pages of memory"), "{large}");
    let mut odd = request(text(vec![1]), 4);
    odd.sampling.top_p = f32::NAN;
    assert_eq!(refused(odd).kind, ErrorKind::Malformed);
    let mut closed = request(text(vec![1]), 4);
    closed.rules = TokenRules::OneOf(Vec::new());
    assert_eq!(refused(closed).kind, ErrorKind::Malformed);
}

#[test]
fn too_many_waiting_requests_are_refused_and_the_others_end() {
    let (engine, model) = start(|config| {
        config.max_batch = 1;
        config.max_waiting = 4;
    });
    let ask = || model.generate(request(vec![Segment::Text(vec![5; 30])], 40));
    let results: Vec<_> = (0..40).map(|_| ask()).collect();
    let refused = results.iter().filter_map(|result| result.as_ref().err());
    assert!(refused.clone().count() >= 10 && refused.clone().all(|error| error.kind == ErrorKind::Overloaded));
    for stream in results.into_iter().flatten() {
        assert_eq!(read(stream).ids.len(), 40);
    }
    assert!(ask().is_ok());
    assert_all_returned(&engine);
}

#[test]
fn a_reader_that_does_not_keep_up_pauses_only_its_own_answer() {
    let (engine, model) = start(|_| {});
    let ask = || model.generate(request(vec![Segment::Text(vec![7, 8, 9])], 300)).expect("admitted");
    let slow = ask();
    assert_eq!(read(ask()).ids.len(), 300);
    // The slow one filled its channel and stopped there.
    std::thread::sleep(Duration::from_millis(30));
    let stats = engine.stats();
    assert_eq!(stats.running, 1);
    assert!(stats.tokens_out < 300 + 80, "{stats:?}");
    assert_eq!(read(slow).ids.len(), 300);
    assert_all_returned(&engine);
}

#[test]
fn dropped_streams_and_passed_deadlines_return_everything() {
    let (engine, model) = start(|config| config.max_batch = 2);
    let ask = |deadline| {
        let mut request = request(prompt(&model, &case("case08")), 2000);
        request.deadline = deadline;
        model.generate(request).expect("admitted")
    };
    let mut streams: Vec<_> = (0..6).map(|_| ask(None)).collect();
    assert!(matches!(streams[0].next_blocking(), Some(TokenEvent::Started { .. })));
    // A waiting one goes: the running ones go on.
    drop(streams.pop());
    assert!(matches!(streams[0].next_blocking(), Some(TokenEvent::Token(_))));
    drop(streams);
    assert_all_returned(&engine);
    let late = read(ask(Some(Instant::now() + Duration::from_millis(20))));
    assert_eq!(kind(&late), Some(ErrorKind::Deadline));
    assert_eq!(kind(&read(ask(Some(Instant::now())))), Some(ErrorKind::Deadline));
    assert_all_returned(&engine);
}

#[test]
fn a_medium_is_encoded_once_and_found_again() {
    let (engine, model) = start(|_| {});
    let case = case("case22");
    for _ in 0..3 {
        let stream = model.generate(request(prompt(&model, &case), 4)).expect("admitted");
        assert_eq!(read(stream).ids, case.greedy[..4]);
    }
    let stats = engine.stats();
    assert_eq!((stats.encoder_cache_misses, stats.encoder_cache_hits), (1, 5), "{stats:?}");
    assert!(stats.encoder_cache_bytes > 0);
    assert_all_returned(&engine);
}

#[test]
fn nothing_is_kept_of_a_medium_that_nobody_wants() {
    let (engine, model) = start(|config| config.encoder_cache_bytes = 0);
    for file in ["scene_56x56.png", "word.wav", "scene_140x140.png"] {
        drop(model.encode(medium(file)).expect("room"));
    }
    assert_all_returned(&engine);
    let until = Instant::now() + Duration::from_secs(5);
    while engine.stats().encoder_cache_bytes > 0 {
        assert!(Instant::now() < until, "an output is kept");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn media_beyond_their_bytes_are_refused() {
    let (_engine, model) = start(|config| config.media_bytes = 100_000);
    let held = model.encode(medium("scene_56x56.png")).expect("75 kB fit");
    assert_eq!(held.tokens(), 4);
    let refused = model.encode(medium("scene_140x140.png")).map(drop).expect_err("470 kB never fit");
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    let Medium::Image(mut patches) = medium("scene_56x56.png") else { panic!("an image") };
    patches.values.pop();
    assert_eq!(model.encode(Medium::Image(patches)).map(drop).expect_err("short").kind, ErrorKind::Malformed);
}

#[test]
fn end_tokens_rules_and_watches_are_heeded() {
    let (_engine, model) = start(|_| {});
    let case = case("case00");
    let mut stopping = request(vec![Segment::Text(case.ids.clone())], 32);
    stopping.end_tokens = vec![case.greedy[3]];
    stopping.watch = vec![case.greedy[0], 5];
    let answer = read(model.generate(stopping).expect("admitted"));
    assert_eq!(answer.ids, case.greedy[..3]);
    assert_eq!(answer.end.expect("an end").expect("finished").0, FinishReason::Stop);
    assert!(answer.watched[0] > answer.watched[1] && answer.watched[0] < 0.0, "{:?}", answer.watched);
    let mut closed = request(vec![Segment::Text(case.ids)], 8);
    closed.rules = TokenRules::OneOf(vec![11, 12]);
    let answer = read(model.generate(closed).expect("admitted"));
    assert!(answer.ids.iter().all(|id| [11, 12].contains(id)), "{:?}", answer.ids);
}

#[test]
fn a_seed_gives_the_same_tokens_alone_and_among_others() {
    let (_engine, model) = start(|_| {});
    let case = case("case00");
    let ask = |seed| {
        let mut request = request(vec![Segment::Text(case.ids.clone())], 24);
        let penalties = Sampling { repetition_penalty: 1.2, frequency_penalty: 0.1, ..Sampling::default() };
        request.sampling = Sampling { temperature: 1.0, top_k: 50, top_p: 0.95, seed, ..penalties };
        model.generate(request).expect("admitted")
    };
    let alone = read(ask(7)).ids;
    let together: Vec<_> = [1, 7, 2, 3].map(ask).into_iter().collect();
    let together: Vec<_> = together.into_iter().map(|stream| read(stream).ids).collect();
    assert_eq!(together[1], alone);
    assert_ne!(together[0], alone);
}

#[test]
fn launches_are_recorded_and_batch_requests_wait_their_turn() {
    let (engine, model) = start(|config| config.max_batch = 1);
    let ask = |class| {
        let mut request = request(prompt(&model, &case("case05")), 60);
        request.class = class;
        model.generate(request).expect("admitted")
    };
    let first = ask(Class::Interactive);
    let (batch, interactive) = (ask(Class::Batch), ask(Class::Interactive));
    read(first);
    let interactive = std::thread::spawn(move || (read(interactive), Instant::now()));
    let (_, batch_end) = (read(batch), Instant::now());
    assert!(interactive.join().expect("reads").1 < batch_end, "interactive goes first");
    let (steps, next) = engine.steps_since(0);
    for kind in [StepKind::Decode, StepKind::Prefill, StepKind::Encode] {
        assert!(steps.iter().any(|step| step.kind == kind && step.took_us > 0), "no {kind:?}");
    }
    let stats = engine.stats();
    assert_eq!(steps.iter().filter(|step| step.kind == StepKind::Decode).count() as u64, stats.decode_steps);
    assert_eq!(engine.steps_since(next).0, []);
    assert!(stats.beats > 100 && stats.alive);
}
