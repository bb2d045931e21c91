//! `POST /v1/audio/transcriptions`, as OpenAI clients expect it.

use axum::extract::{FromRequest, Multipart, Request as HttpRequest, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde_json::json;
use weft_pipelines::EventStream;
use weft_pipelines::event::Event;
use weft_pipelines::request::{Class, Input, Options, Request, Target};

use super::metrics::Watch;
use super::models::unknown_model;
use super::pipelines::finish;
use super::transcript_format::Format;
use super::upload::{self, Uploaded};
use super::{ApiError, App, RequestId, sse};

#[derive(Default)]
struct Form {
    file: Option<Bytes>,
    model: Option<String>,
    prompt: Option<String>,
    language: Option<String>,
    format: Format,
    temperature: Option<f32>,
    stream: bool,
}

/// `POST /v1/audio/transcriptions`.
pub(super) async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    request: HttpRequest,
) -> Result<Response, ApiError> {
    let (runtime, entry) = app.enter(request.headers(), Class::Interactive)?;
    let form = read(&app, request).await?;
    let file = form.file.ok_or_else(|| ApiError::malformed("file", "there is no file"))?;
    let models = runtime.models();
    let model = form.model.ok_or_else(|| ApiError::malformed("model", "there is no model name"))?;
    let Some(summary) = models.iter().find(|m| m.name == model) else {
        return Err(unknown_model(&model, &models));
    };
    if !summary.audio {
        return Err(ApiError::unsupported_value("model", format!("the model {model:?} has no ears")));
    }
    let asked = Request {
        target: Target::Model(model),
        input: Input { audios: vec![file], prompt: form.prompt, ..Input::default() },
        options: Options {
            temperature: form.temperature,
            language: form.language,
            timestamps: form.format.wants_times().then_some(true),
            ..Options::default()
        },
        class: Class::Interactive,
        deadline: None,
    };
    let events = runtime.run_entered(entry, asked)?;
    let watch = Watch::new(&app, 0, 1);
    if form.stream {
        return Ok(sse::respond(|sender| stream(events, watch, sender, id)));
    }
    let outcome = finish(events, watch).await?;
    Ok(form.format.render(&outcome))
}

async fn read(app: &App, request: HttpRequest) -> Result<Form, ApiError> {
    let multipart = Multipart::from_request(request, &())
        .await
        .map_err(|e| ApiError::malformed("body", format!("send a multipart form: {}", e.body_text())))?;
    let mut form = Form::default();
    upload::read(multipart, app.limits(), &["file"], |name, value| {
        match (name, value) {
            ("file", Uploaded::File(bytes)) => form.file = Some(bytes),
            ("model", Uploaded::Text(text)) => form.model = Some(text),
            ("prompt", Uploaded::Text(text)) => form.prompt = Some(text),
            ("language", Uploaded::Text(text)) => form.language = Some(text),
            ("response_format", Uploaded::Text(text)) => form.format = Format::parse(&text)?,
            ("temperature", Uploaded::Text(text)) => {
                let value = text.trim().parse().map_err(|_| ApiError::malformed("temperature", "not a number"))?;
                form.temperature = Some(value);
            }
            ("stream", Uploaded::Text(text)) => form.stream = matches!(text.trim(), "true" | "True" | "1"),
            ("timestamp_granularities", Uploaded::Text(text)) if text != "segment" => {
                let detail = "times are given for segments; ask for `segment` or leave it out";
                return Err(ApiError::unsupported_value("timestamp_granularities", detail));
            }
            // Hints of other services that do not change what is said.
            _ => {}
        }
        Ok(())
    })
    .await?;
    Ok(form)
}

async fn stream(mut events: EventStream, mut watch: Watch, to: sse::Sender, id: RequestId) -> Result<(), sse::Gone> {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = to.closed() => return Err(sse::Gone),
        };
        if let Some(event) = &event {
            watch.see(event);
        }
        match event {
            Some(Event::Text { delta, .. }) => {
                to.json("", &json!({ "type": "transcript.text.delta", "delta": delta })).await?;
            }
            Some(Event::Done(outcome)) => {
                to.json("", &json!({ "type": "transcript.text.done", "text": outcome.text.trim() })).await?;
                return to.text("", "[DONE]").await;
            }
            Some(Event::Failed(error)) => return to.json("", &ApiError::from(error).body(&id.0)).await,
            None => {
                let error = ApiError::unavailable("the service stopped before the transcript was complete");
                return to.json("", &error.body(&id.0)).await;
            }
            Some(_) => {}
        }
    }
}

impl Format {
    fn render(self, outcome: &weft_pipelines::event::Outcome) -> Response {
        match self {
            Self::Json => Json(json!({ "text": outcome.text.trim() })).into_response(),
            Self::Verbose => Json(self.verbose(outcome)).into_response(),
            Self::Text | Self::Srt | Self::Vtt => self.text(outcome).into_response(),
        }
    }
}
