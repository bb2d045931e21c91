//! Requests through the real engine with the embedded model.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::OnceCell;
use weft_pipelines::*;

const MODEL: &str = "tiny-omni";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn config() -> RuntimeConfig {
    let path = root().join("samples/models/tiny-omni");
    let model = ModelEntry { name: MODEL.into(), source: ModelSource::Path(path), float32: true, placeholder: true };
    RuntimeConfig {
        models: vec![model],
        pipelines: vec![root().join("samples/pipelines/describe.yaml"), root().join("samples/pipelines/caption.yaml")],
        threads: 2,
        kv_bytes: 64 << 20,
        ..RuntimeConfig::default()
    }
}

/// One runtime for all tests; it must not hang on the tokio runtime of one of them, and does not.
async fn runtime() -> Runtime {
    static RUNTIME: OnceCell<Runtime> = OnceCell::const_new();
    RUNTIME.get_or_init(|| async { Runtime::start(config()).await.unwrap() }).await.clone()
}

fn request(target: Target, input: Input) -> Request {
    let options = Options { max_tokens: Some(32), ..Options::default() };
    Request { target, input, options, class: Class::Interactive, deadline: None }
}

fn model() -> Target {
    Target::Model(MODEL.into())
}

fn prompt(text: &str) -> Input {
    Input { prompt: Some(text.into()), ..Input::default() }
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/golden/embedded/prompts.json")).unwrap()
}

/// A golden case's messages with their media read.
fn conversation(case: &Value) -> Input {
    let media =
        |file: &Value| std::fs::read(root().join("tests/golden/media").join(file.as_str().unwrap())).unwrap().into();
    let part = |part: &Value| match part["type"].as_str().unwrap() {
        "text" => Part::Text(part["text"].as_str().unwrap().into()),
        "image" => Part::Image(media(&part["image"])),
        "audio" => Part::Audio(media(&part["audio"])),
        other => panic!("golden part of kind {other}"),
    };
    let message = |message: &Value| Message {
        role: serde_json::from_value(message["role"].clone()).unwrap(),
        parts: message["content"].as_array().unwrap().iter().map(part).collect(),
    };
    Input { messages: case["messages"].as_array().unwrap().iter().map(message).collect(), ..Input::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_give_the_reference_text() {
    let runtime = runtime().await;
    for case in golden()["cases"].as_array().unwrap() {
        let outcome = runtime.run(request(model(), conversation(case))).unwrap().finish().await.unwrap();
        assert_eq!(outcome.text, case["greedy_text"].as_str().unwrap(), "{}", case["id"]);
        assert_eq!(outcome.usage.prompt_tokens, case["prompt_ids"].as_array().unwrap().len(), "{}", case["id"]);
        assert_eq!(outcome.finish_reason, Some(FinishReason::Length));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_one_terminal_event_and_its_deltas_are_the_text() {
    let runtime = runtime().await;
    let mut stream = runtime.run(request(model(), prompt("What is a loom?"))).unwrap();
    let (mut text, mut ends, mut started) = (String::new(), 0, Vec::new());
    let mut done = None;
    while let Some(event) = stream.next().await {
        assert_eq!(ends, 0, "an event after the end");
        match event {
            Event::Text { delta, .. } => text += &delta,
            Event::StageStarted { stage } => started.push(stage),
            Event::Done(outcome) => {
                ends += 1;
                done = Some(outcome);
            }
            Event::Failed(error) => panic!("{error}"),
            Event::StageFinished { .. } | Event::Segment(_) => {}
        }
    }
    let done = done.unwrap();
    assert_eq!((ends, &done.text), (1, &text));
    assert!(started.contains(&"answer".to_owned()), "{started:?}");
    assert!(done.spans.iter().any(|span| span.name == "answer/prefill"), "{:?}", done.spans);
    assert!(stream.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_texts_and_logprobs_reach_the_caller() {
    let runtime = runtime().await;
    let plain = runtime.run(request(model(), prompt("What is a loom?"))).unwrap().finish().await.unwrap();
    let stop: String = plain.text.chars().skip(5).take(4).collect();
    let mut asked = request(model(), prompt("What is a loom?"));
    asked.options.stop = vec![stop.clone()];
    asked.options.logprobs = Some(2);
    let stopped = runtime.run(asked).unwrap().finish().await.unwrap();
    assert_eq!(stopped.finish_reason, Some(FinishReason::Stop));
    assert_eq!(Some(stopped.text.len()), plain.text.find(&stop));
    assert!(
        !stopped.logprobs.is_empty()
            && stopped.logprobs.iter().all(|token| token.top.len() == 2 && token.logprob <= 0.0)
    );
}

#[track_caller]
fn refused(runtime: &Runtime, request: Request) -> Error {
    match runtime.run(request) {
        Err(error) => error,
        Ok(_) => panic!("this request is wrong"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_refused_before_a_stream_opens() {
    let runtime = runtime().await;
    let describe = || Target::Pipeline("describe".into());
    let check = |request: Request, kind: ErrorKind, param: &str, text: &str| {
        let error = refused(&runtime, request);
        assert_eq!((error.kind, error.param.as_deref()), (kind, Some(param)), "{error}");
        assert!(error.message.contains(text), "{error} lacks {text:?}");
    };
    check(request(describe(), Input::default()), ErrorKind::Malformed, "prompt", "needs a prompt");
    check(request(Target::Pipeline("nope".into()), prompt("a")), ErrorKind::NotFound, "pipeline", "describe");
    check(request(Target::Model("nope".into()), prompt("a")), ErrorKind::NotFound, "model", MODEL);
    let empty = Input { images: vec![Default::default()], ..prompt("a") };
    check(request(describe(), empty), ErrorKind::Malformed, "image[0]", "empty");
    let two = Input { images: vec![vec![1].into(), vec![1].into()], ..Input::default() };
    check(request(Target::Pipeline("caption".into()), two), ErrorKind::Malformed, "image[1]", "takes one image");
    let many = Input { images: vec![vec![1].into(); 33], ..prompt("a") };
    let error = refused(&runtime, request(describe(), many));
    assert_eq!(error.kind, ErrorKind::TooLarge, "{error}");
    let mut hot = request(describe(), prompt("a"));
    hot.options.temperature = Some(9.0);
    check(hot, ErrorKind::Malformed, "options.temperature", "from 0 to 2");
    let mut long = request(model(), prompt(&"word ".repeat(6000)));
    long.options.max_tokens = None;
    check(long, ErrorKind::TooLarge, "prompt", "4096");
    let mut late = request(model(), prompt("a"));
    late.deadline = Some(Instant::now());
    assert_eq!(refused(&runtime, late).kind, ErrorKind::Deadline);
    let text = Input { images: vec![b"not a picture".to_vec().into()], ..prompt("a") };
    assert_eq!(refused(&runtime, request(describe(), text)).param.as_deref(), Some("image[0]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_and_dropped_streams_end_the_work() {
    let runtime = runtime().await;
    let mut hurried = request(model(), prompt("Count to a million."));
    hurried.options.max_tokens = Some(4000);
    hurried.options.logit_bias = vec![(2038, -100.0), (2039, -100.0)];
    hurried.deadline = Some(Instant::now() + Duration::from_millis(60));
    let error = runtime.run(hurried.clone()).unwrap().finish().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Deadline);
    hurried.deadline = None;
    let mut stream = runtime.run(hurried).unwrap();
    while let Some(event) = stream.next().await {
        if matches!(event, Event::Text { .. }) {
            break;
        }
    }
    drop(stream);
    let idle = || async {
        for _ in 0..500 {
            let stats = runtime.stats();
            if stats.requests == 0 && stats.engine.running == 0 {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    };
    assert!(idle().await, "{:?}", runtime.stats());
    assert_eq!(runtime.stats().engine.audit_failures, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_say_what_there_is() {
    let runtime = runtime().await;
    let pipelines = runtime.pipelines();
    let describe = pipelines.iter().find(|pipeline| pipeline.name == "describe").unwrap();
    assert_eq!((describe.images, describe.prompt, describe.placeholder), (Arity::Many, Arity::Required, true));
    assert_eq!(describe.models, [MODEL]);
    assert!(pipelines.iter().any(|pipeline| pipeline.source == "built-in" && pipeline.name == MODEL));
    let models = runtime.models();
    assert_eq!((models.len(), models[0].image, models[0].audio, models[0].context), (1, true, true, 4096));
    assert_eq!(runtime.tokenize(MODEL, "<|IMAGE|>").unwrap().iter().filter(|&&id| id == 2040).count(), 0);
    let report = inspect::model(&weft_pipelines::ModelSource::Path(root().join("samples/models/tiny-omni"))).unwrap();
    assert_eq!((report.context, report.vocabulary, report.kv_bytes_per_token), (4096, 2048, 2 * 4 * 4 * 2 * 32));
    assert!(report.to_string().contains("640x480 picture"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_without_its_model_is_listed_with_the_reason() {
    let folder = super::batch::Folder::new("missing-model");
    let yaml = "version: 1\ninputs: {audios: required}\nmodels: {ear: {use: [whisper-nowhere], get: ask a friend}}\nstages:\n  - id: t\n    kind: transcribe\n    model: ear\n";
    std::fs::write(folder.0.join("hear.yaml"), yaml).unwrap();
    let runtime = Runtime::start(RuntimeConfig { pipelines: vec![folder.0.clone()], ..config() }).await.unwrap();
    let listed = runtime.pipelines().into_iter().find(|pipeline| pipeline.name == "hear").unwrap();
    let reason = listed.unavailable.unwrap();
    assert!(
        reason.contains("hear.yaml:7:12") && reason.contains("whisper-nowhere") && reason.contains("ask a friend"),
        "{reason}"
    );
    let error = refused(&runtime, request(Target::Pipeline("hear".into()), Input::default()));
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(error.message.contains("ask a friend"), "{error}");
    std::fs::write(folder.0.join("bad.yaml"), "version: 1\nstage: []\n").unwrap();
    let error = Runtime::start(RuntimeConfig { pipelines: vec![folder.0.clone()], ..config() }).await.unwrap_err();
    assert!(error.message.contains("bad.yaml:2:1") && error.message.contains("`stages`"), "{error}");
}
