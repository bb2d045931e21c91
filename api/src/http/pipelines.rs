//! `GET /v1/pipelines`, `POST /v1/pipelines/{name}/run`.

use std::time::{Duration, Instant};

use axum::extract::{FromRequest, Multipart, Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_pipelines::event::{Event, Outcome};
use weft_pipelines::request::{Class, Input, Options, Request};
use weft_pipelines::{EventStream, Quote, Refusal, Runtime, Verdict};

use super::content::{WireMessage, data_url, messages};
use super::metrics::Watch;
use super::upload::{self, Uploaded};
use super::{ApiError, App, RequestId, sse};

/// `GET /v1/pipelines`.
pub(super) async fn list(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let pipelines = app.runtime()?.pipelines();
    Ok(Json(json!({ "pipelines": pipelines })))
}

/// The JSON form of a run.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunBody {
    prompt: Option<String>,
    images: Vec<String>,
    audios: Vec<String>,
    messages: Vec<WireMessage>,
    options: Options,
    stream: bool,
    timeout_ms: Option<u64>,
}

/// `POST /v1/pipelines/{name}/run`: multipart or JSON; `Accept: text/event-stream` streams.
pub(super) async fn run(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Path(name): Path<String>,
    request: HttpRequest,
) -> Result<Response, ApiError> {
    let (runtime, entry) = app.enter(request.headers(), Class::Interactive)?;
    let streams = accepts_events(request.headers());
    let asked = read(&app, request).await?;
    let streams = asked.stream || streams;
    let (images, audios) = (asked.input.images.len(), asked.input.audios.len());
    let events = runtime.run_entered(entry, asked.request(runtime, &name))?;
    let watch = Watch::new(&app, images, audios);
    if streams {
        return Ok(sse::respond(|sender| stream(events, watch, sender, id)));
    }
    let outcome = finish(events, watch).await?;
    Ok(Json(outcome_json(&id, &name, &outcome)).into_response())
}

/// `POST /v1/pipelines/{name}/price`: takes what a run takes; says what it would cost and what it would hear, and does none
/// of the work.
pub(super) async fn price(
    State(app): State<App>,
    Path(name): Path<String>,
    request: HttpRequest,
) -> Result<Json<Value>, ApiError> {
    // As a batch request, so that a long queue can still be asked about; the place is given back with the answer.
    let (runtime, _entry) = app.enter(request.headers(), Class::Batch)?;
    let asked = read(&app, request).await?.request(runtime, &name);
    let Quote { price, verdict } = runtime.price(asked)?;
    let admission = match verdict {
        Verdict::Accept => json!({ "verdict": "accept", "wait_ms": 0.0 }),
        Verdict::Queue(wait) => json!({ "verdict": "queue", "wait_ms": wait.as_secs_f64() * 1e3 }),
        Verdict::Refuse(Refusal { reason, retry_after }) => {
            let retry = super::seconds(retry_after.as_millis());
            json!({ "verdict": "refuse", "reason": reason, "retry_after_s": retry })
        }
    };
    Ok(Json(json!({ "pipeline": name, "price": price, "admission": admission })))
}

struct Asked {
    input: Input,
    options: Options,
    stream: bool,
    timeout_ms: Option<u64>,
}

impl Asked {
    fn request(self, runtime: &Runtime, name: &str) -> Request {
        Request {
            target: crate::target::named(runtime, name),
            input: self.input,
            options: self.options,
            class: Class::Interactive,
            deadline: self.timeout_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
        }
    }
}

async fn read(app: &App, request: HttpRequest) -> Result<Asked, ApiError> {
    match content_type(request.headers()).starts_with("multipart/form-data") {
        true => from_multipart(app, request).await,
        false => from_json(request).await,
    }
}

async fn from_json(request: HttpRequest) -> Result<Asked, ApiError> {
    let body: RunBody = super::models::json_body(request).await?;
    let read = |kind: &str, urls: Vec<String>| {
        let one = |(n, url): (usize, String)| data_url(&format!("{kind}[{n}]"), &url);
        urls.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()
    };
    let input = Input {
        messages: if body.messages.is_empty() { Vec::new() } else { messages(body.messages)? },
        images: read("images", body.images)?,
        audios: read("audios", body.audios)?,
        prompt: body.prompt,
    };
    Ok(Asked { input, options: body.options, stream: body.stream, timeout_ms: body.timeout_ms })
}

async fn from_multipart(app: &App, request: HttpRequest) -> Result<Asked, ApiError> {
    let form = Multipart::from_request(request, &())
        .await
        .map_err(|e| ApiError::malformed("body", format!("broken multipart upload: {}", e.body_text())))?;
    let mut asked = Asked { input: Input::default(), options: Options::default(), stream: false, timeout_ms: None };
    upload::read(form, app.limits(), &["image", "audio"], |name, value| {
        match (name, value) {
            ("image", Uploaded::File(bytes)) => asked.input.images.push(bytes),
            ("audio", Uploaded::File(bytes)) => asked.input.audios.push(bytes),
            ("prompt", Uploaded::Text(text)) => asked.input.prompt = Some(text),
            ("options", Uploaded::Text(text)) => {
                asked.options =
                    serde_json::from_str(&text).map_err(|e| ApiError::malformed("options", e.to_string()))?;
            }
            ("stream", Uploaded::Text(text)) => asked.stream = matches!(text.trim(), "true" | "1"),
            ("timeout_ms", Uploaded::Text(text)) => {
                let ms = text.trim().parse().map_err(|_| ApiError::malformed("timeout_ms", "not a whole number"))?;
                asked.timeout_ms = Some(ms);
            }
            (other, _) => {
                let known = "image, audio, prompt, options, stream, timeout_ms";
                return Err(ApiError::malformed(other, format!("unknown field; known fields are {known}")));
            }
        }
        Ok(())
    })
    .await?;
    Ok(asked)
}

/// Drains a run's events; records metrics on the way.
pub(super) async fn finish(mut events: EventStream, mut watch: Watch) -> Result<Outcome, ApiError> {
    while let Some(event) = events.next().await {
        watch.see(&event);
        match event {
            Event::Done(outcome) => return Ok(*outcome),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(ApiError::unavailable("the service stopped before the answer was complete"))
}

async fn stream(mut events: EventStream, mut watch: Watch, to: sse::Sender, id: RequestId) -> Result<(), sse::Gone> {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = to.closed() => return Err(sse::Gone),
        };
        let Some(event) = event else {
            let error = ApiError::unavailable("the service stopped before the answer was complete");
            return to.json("error", &error.body(&id.0)).await;
        };
        watch.see(&event);
        match event {
            Event::StageStarted { stage } => to.json("stage", &json!({ "stage": stage, "state": "started" })).await?,
            Event::StageFinished { stage, took, note } => {
                let took_ms = took.as_secs_f64() * 1e3;
                to.json("stage", &json!({ "stage": stage, "state": "finished", "took_ms": took_ms, "note": note }))
                    .await?;
            }
            Event::Text { delta, logprobs } => {
                let mut data = json!({ "delta": delta });
                if !logprobs.is_empty() {
                    data["logprobs"] = json!(logprobs);
                }
                to.json("text", &data).await?;
            }
            Event::Segment(segment) => to.json("segment", &json!(segment)).await?,
            Event::Done(outcome) => return to.json("done", &outcome_json(&id, "", &outcome)).await,
            Event::Failed(error) => return to.json("error", &ApiError::from(error).body(&id.0)).await,
        }
    }
}

fn outcome_json(id: &RequestId, pipeline: &str, outcome: &Outcome) -> Value {
    let outputs: serde_json::Map<_, _> =
        outcome.outputs.iter().map(|(stage, text)| (stage.clone(), Value::from(text.as_str()))).collect();
    let mut body = json!({
        "id": &*id.0,
        "text": outcome.text,
        "outputs": outputs,
        "finish_reason": outcome.finish_reason,
        "usage": outcome.usage,
        "timeline": outcome.spans,
        "warnings": outcome.warnings,
    });
    if !pipeline.is_empty() {
        body["pipeline"] = pipeline.into();
    }
    if let Some(duration) = outcome.duration {
        body["segments"] = json!(outcome.segments);
        body["language"] = json!(outcome.language);
        body["duration"] = duration.into();
    }
    if !outcome.logprobs.is_empty() {
        body["logprobs"] = json!(outcome.logprobs);
    }
    body
}

pub(super) fn content_type(headers: &HeaderMap) -> &str {
    headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default()
}

fn accepts_events(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("text/event-stream"))
}
