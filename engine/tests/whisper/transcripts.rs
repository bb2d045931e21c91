//! The whole way through the engine: transcripts of random clips by a random model, equal to transformers'. A random
//! model is a hard judge of the algorithm: it ends windows in every possible way.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use weft_engine::config::EngineConfig;
use weft_engine::handle::{Engine, Model};
use weft_engine::media::LogMel;
use weft_engine::transcribe::{Mode, Task, TranscribeEvent, TranscribeOptions, Transcript, transcribe};
use weft_engine::{ErrorKind, Result};

use super::checkpoint::{Case, FRAMES, clip, model, reference};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn start() -> (Engine, Model) {
    let engine = Engine::start(EngineConfig { models: vec![model()], threads: 2, ..EngineConfig::default() });
    let engine = engine.expect("starts");
    let model = engine.model("ears").expect("is there");
    (engine, model)
}

fn words(tokens: &[u32]) -> String {
    tokens.iter().map(|token| format!(" w{token}")).collect()
}

fn listen(model: &Model, mel: LogMel, options: &TranscribeOptions) -> Result<(Transcript, Vec<TranscribeEvent>)> {
    let mut events = Vec::new();
    let transcript = block_on(transcribe(model, mel, options, &words, &mut |event| events.push(event)))?;
    Ok((transcript, events))
}

/// Greedy, and nothing looks wrong.
fn plain_greedy() -> TranscribeOptions {
    TranscribeOptions {
        temperatures: vec![0.0],
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        ..TranscribeOptions::default()
    }
}

fn options(case: &Case) -> TranscribeOptions {
    TranscribeOptions {
        language: case.language.clone(),
        task: if case.task == "translate" { Task::Translate } else { Task::Transcribe },
        prompt: case.prompt_ids.clone(),
        condition_on_previous: case.condition_on_prev_tokens,
        ..plain_greedy()
    }
}

#[test]
fn transcripts_equal_those_of_transformers() {
    let (_engine, model) = start();
    let codes = [(42, "en"), (43, "de"), (44, "fr")];
    for case in reference().cases {
        let (transcript, events) = listen(&model, clip(&case.name, case.frames), &options(&case)).expect("transcribes");
        let heard = codes.iter().find(|(token, _)| *token == case.heard).expect("a language").1;
        assert_eq!(transcript.language, case.language.as_deref().unwrap_or(heard), "{}", case.name);
        let expected: Vec<_> = case.segments.iter().map(|segment| &segment.tokens).collect();
        let got: Vec<_> = transcript.segments.iter().map(|segment| &segment.tokens).collect();
        assert_eq!(got, expected, "{}", case.name);
        for (got, expected) in transcript.segments.iter().zip(&case.segments) {
            let apart = (got.start - expected.start).abs().max((got.end - expected.end).abs());
            assert!(apart < 1e-4, "{}: {}..{} is not {expected:?}", case.name, got.start, got.end);
        }
        let mut told = vec![TranscribeEvent::Language(transcript.language.clone())];
        told.extend(transcript.segments.iter().cloned().map(TranscribeEvent::Segment));
        assert_eq!(events, told, "{}: segments are told as they come", case.name);
        assert_eq!(
            transcript.text,
            transcript.segments.iter().map(|segment| segment.text.as_str()).collect::<String>()
        );
        assert!((transcript.duration - case.frames as f64 / 100.0).abs() < 1e-9);
    }
}

#[test]
fn plain_windows_lie_side_by_side() {
    let (_engine, model) = start();
    let options = TranscribeOptions { mode: Mode::Plain, ..plain_greedy() };
    let (transcript, _) = listen(&model, clip("plain", 250), &options).expect("transcribes");
    for segment in &transcript.segments {
        assert_eq!(segment.start.fract(), 0.0);
        assert!(segment.end == segment.start + 1.0 || segment.end == 2.5, "{segment:?}");
    }
    assert!(!transcript.segments.is_empty());
}

#[test]
fn known_padding_is_not_searched_for_speech() {
    let (_engine, model) = start();
    let case = &reference().cases[1];
    let mut padded = clip(&case.name, case.frames);
    let whole_windows = case.frames.div_ceil(FRAMES) * FRAMES;
    padded.values.resize(whole_windows * padded.bins, -0.7);
    padded.frames = whole_windows;
    let options = TranscribeOptions { frames: Some(case.frames), ..options(case) };
    let (transcript, _) = listen(&model, padded, &options).expect("transcribes");
    let tokens: Vec<_> = transcript.segments.iter().map(|segment| &segment.tokens).collect();
    assert_eq!(tokens, case.segments.iter().map(|segment| &segment.tokens).collect::<Vec<_>>());
}

#[test]
fn what_looks_wrong_is_tried_again_and_the_last_attempt_stands() {
    let (_engine, model) = start();
    let options =
        TranscribeOptions { temperatures: vec![0.0, 0.4, 0.8], logprob_threshold: Some(0.0), ..plain_greedy() };
    let (first, _) = listen(&model, clip("wrong", 250), &options).expect("transcribes");
    assert!(first.segments.iter().all(|segment| segment.temperature == 0.8 && segment.avg_logprob < 0.0), "{first:?}");
    let (again, _) = listen(&model, clip("wrong", 250), &options).expect("transcribes");
    assert_eq!(first, again, "the same seed gives the same transcript");
    let other = TranscribeOptions { seed: 1, ..options };
    assert_ne!(first.text, listen(&model, clip("wrong", 250), &other).expect("transcribes").0.text);
}

#[test]
fn silence_has_no_segments_and_an_end() {
    let (engine, model) = start();
    let options = TranscribeOptions { logprob_threshold: Some(0.0), no_speech_threshold: Some(-1.0), ..plain_greedy() };
    let (transcript, events) = listen(&model, clip("silence", 333), &options).expect("transcribes");
    assert_eq!((transcript.text.as_str(), transcript.segments.len(), events.len()), ("", 0, 1));
    assert_eq!(engine.stats().audit_failures, 0);
}

#[test]
fn no_speech_is_measured_after_the_start_token() {
    let (_engine, model) = start();
    let case = &reference().cases[0];
    let (told, _) = listen(&model, clip(&case.name, 100), &plain_greedy()).expect("transcribes");
    let french = TranscribeOptions { language: Some("fr".to_owned()), ..plain_greedy() };
    let (asked, _) = listen(&model, clip(&case.name, 100), &french).expect("transcribes");
    let probability = |transcript: &Transcript| transcript.segments.first().expect("speech").no_speech_prob;
    assert!(probability(&told) > 0.0);
    assert_eq!(probability(&told), probability(&asked), "whatever language is given later");
}

#[test]
fn bad_requests_say_why() {
    let (_engine, model) = start();
    let kind = |mel: LogMel, options: TranscribeOptions| listen(&model, mel, &options).expect_err("refused").kind;
    assert_eq!(kind(clip("a", 0), plain_greedy()), ErrorKind::Malformed);
    let beyond = TranscribeOptions { frames: Some(51), ..plain_greedy() };
    assert_eq!(kind(clip("a", 50), beyond), ErrorKind::Malformed);
    let klingon = TranscribeOptions { language: Some("tlh".to_owned()), ..plain_greedy() };
    assert_eq!(kind(clip("a", 50), klingon), ErrorKind::Unsupported);
    let late = TranscribeOptions { deadline: Some(std::time::Instant::now()), ..plain_greedy() };
    assert_eq!(kind(clip("a", 50), late), ErrorKind::Deadline);
    assert!(listen(&model, clip("a", 50), &plain_greedy()).is_ok(), "and the engine goes on");
}
