//! `POST /v1/chat/completions`, as OpenAI clients expect it.

use axum::extract::{Request as HttpRequest, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use weft_pipelines::EventStream;
use weft_pipelines::event::{Event, FinishReason, Outcome, TokenLogprob, Usage};
use weft_pipelines::request::{Class, Format, Input, Message, Options, Part, Request, Target};

use super::content::{WireMessage, messages};
use super::metrics::Watch;
use super::models::{json_body, unknown_model};
use super::pipelines::finish;
use super::{ApiError, App, RequestId, sse};

/// The request. Fields that would change the answer and are not served are refused, not ignored.
#[derive(Debug, Deserialize)]
struct ChatBody {
    model: String,
    messages: Vec<WireMessage>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
    stop: Option<Stop>,
    #[serde(default)]
    logprobs: bool,
    top_logprobs: Option<u32>,
    logit_bias: Option<std::collections::BTreeMap<String, f32>>,
    n: Option<u32>,
    tools: Option<Value>,
    functions: Option<Value>,
    response_format: Option<Value>,
    modalities: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

impl ChatBody {
    fn options(&self) -> Result<Options, ApiError> {
        self.refuse_what_is_not_served()?;
        let stop = match &self.stop {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text.clone()],
            Some(Stop::Several(texts)) => texts.clone(),
        };
        let bias = |(token, bias): (&String, &f32)| match token.parse() {
            Ok(token) => Ok((token, *bias)),
            Err(_) => Err(ApiError::malformed("logit_bias", format!("{token:?} is not a token id"))),
        };
        let logit_bias = self.logit_bias.iter().flatten().map(bias).collect::<Result<_, _>>()?;
        Ok(Options {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop,
            logprobs: self.logprobs.then(|| self.top_logprobs.unwrap_or(0)),
            logit_bias,
            format: self.response_format.as_ref().map(format).transpose()?.flatten(),
            ..Options::default()
        })
    }

    fn refuse_what_is_not_served(&self) -> Result<(), ApiError> {
        let given = |value: &Option<Value>| value.as_ref().is_some_and(|v| !v.is_null() && v != &json!([]));
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported_value("n", "one answer a request: leave n out or send 1"));
        }
        if given(&self.tools) || given(&self.functions) {
            return Err(ApiError::unsupported_value("tools", "tools are not served yet"));
        }
        if self.modalities.iter().flatten().any(|m| m != "text") {
            return Err(ApiError::unsupported_value("modalities", "answers are text"));
        }
        Ok(())
    }
}

/// `response_format`: OpenAI's `text`, `json_object` and `json_schema`, and beyond them `regex`, `choice` and `lark`, each
/// with its value under the same name.
fn format(given: &Value) -> Result<Option<Format>, ApiError> {
    let wrong = |text: String| ApiError::malformed("response_format", text);
    let part = |name: &str| given.get(name).ok_or_else(|| wrong(format!("the format `{name}` needs `{name}`")));
    let text = |name: &str| {
        let text = part(name)?.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(format!("`{name}` must be a text")))
    };
    Ok(Some(match given.get("type").and_then(Value::as_str) {
        None if given.is_null() => return Ok(None),
        Some("text") => return Ok(None),
        Some("json_object") => Format::Json,
        Some("json_schema") => {
            let schema = part("json_schema")?.get("schema");
            Format::JsonSchema(schema.ok_or_else(|| wrong("`json_schema` needs `schema`".into()))?.clone())
        }
        Some("regex") => Format::Regex(text("regex")?),
        Some("lark") => Format::Lark(text("lark")?),
        Some("choice") => {
            let choice = serde_json::from_value(part("choice")?.clone());
            Format::Choice(choice.map_err(|_| wrong("`choice` must be a list of texts".into()))?)
        }
        other => {
            let known = "text, json_object, json_schema, regex, choice, lark";
            return Err(wrong(format!("the type is {}; known are {known}", other.unwrap_or("missing"))));
        }
    }))
}

/// `POST /v1/chat/completions`.
pub(super) async fn completions(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    request: HttpRequest,
) -> Result<Response, ApiError> {
    let (runtime, entry) = app.enter(request.headers(), Class::Interactive)?;
    let mut body: ChatBody = json_body(request).await?;
    let models = runtime.models();
    if !models.iter().any(|m| m.name == body.model) {
        return Err(unknown_model(&body.model, &models));
    }
    let options = body.options()?;
    let messages = messages(std::mem::take(&mut body.messages))?;
    let watch = Watch::new(&app, count(&messages, true), count(&messages, false));
    let asked = Request {
        target: Target::Model(body.model.clone()),
        input: Input { messages, ..Input::default() },
        options,
        class: Class::Interactive,
        deadline: None,
    };
    let events = runtime.run_entered(entry, asked)?;
    let envelope = Envelope::new(&id, body.model);
    if body.stream {
        let usage = body.stream_options.unwrap_or_default().include_usage;
        return Ok(sse::respond(move |sender| stream(Answer { events, watch, envelope, usage }, sender, id)));
    }
    let outcome = finish(events, watch).await?;
    Ok(Json(envelope.whole(&outcome)).into_response())
}

fn count(messages: &[Message], images: bool) -> usize {
    let is = |part: &&Part| if images { matches!(part, Part::Image(_)) } else { matches!(part, Part::Audio(_)) };
    messages.iter().flat_map(|m| &m.parts).filter(is).count()
}

struct Answer {
    events: EventStream,
    watch: Watch,
    envelope: Envelope,
    usage: bool,
}

/// The fields that every chunk and the whole answer share.
struct Envelope {
    id: String,
    model: String,
    created: u64,
}

impl Envelope {
    fn new(id: &RequestId, model: String) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { id: format!("chatcmpl-{}", id.0), model, created: now.as_secs() }
    }

    fn whole(&self, outcome: &Outcome) -> Value {
        json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{
                "index": 0,
                "message": { "role": "assistant", "content": outcome.text },
                "finish_reason": reason(outcome),
                "logprobs": logprobs_json(&outcome.logprobs),
            }],
            "usage": usage_json(&outcome.usage),
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": choices,
        })
    }

    fn delta(&self, delta: Value, finish: Option<&str>, logprobs: &[TokenLogprob]) -> Value {
        self.chunk(json!([{
            "index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs_json(logprobs),
        }]))
    }
}

async fn stream(mut answer: Answer, to: sse::Sender, id: RequestId) -> Result<(), sse::Gone> {
    let envelope = &answer.envelope;
    to.json("", &envelope.delta(json!({ "role": "assistant", "content": "" }), None, &[])).await?;
    loop {
        let event = tokio::select! {
            event = answer.events.next() => event,
            () = to.closed() => return Err(sse::Gone),
        };
        if let Some(event) = &event {
            answer.watch.see(event);
        }
        match event {
            Some(Event::Text { delta, logprobs }) => {
                to.json("", &envelope.delta(json!({ "content": delta }), None, &logprobs)).await?;
            }
            Some(Event::Done(outcome)) => {
                to.json("", &envelope.delta(json!({}), Some(reason(&outcome)), &[])).await?;
                if answer.usage {
                    let mut chunk = envelope.chunk(json!([]));
                    chunk["usage"] = usage_json(&outcome.usage);
                    to.json("", &chunk).await?;
                }
                return to.text("", "[DONE]").await;
            }
            Some(Event::Failed(error)) => return to.json("", &ApiError::from(error).body(&id.0)).await,
            None => {
                let error = ApiError::unavailable("the service stopped before the answer was complete");
                return to.json("", &error.body(&id.0)).await;
            }
            Some(_) => {}
        }
    }
}

fn reason(outcome: &Outcome) -> &'static str {
    match outcome.finish_reason {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::Stop) | None => "stop",
    }
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "media_tokens": usage.media_tokens },
    })
}

fn logprobs_json(logprobs: &[TokenLogprob]) -> Value {
    if logprobs.is_empty() {
        return Value::Null;
    }
    let entry = |token: &str, logprob: f32| json!({ "token": token, "logprob": logprob, "bytes": token.as_bytes() });
    let content: Vec<_> = logprobs
        .iter()
        .map(|l| {
            let mut one = entry(&l.token, l.logprob);
            one["top_logprobs"] = l.top.iter().map(|(t, p)| entry(t, *p)).collect();
            one
        })
        .collect();
    json!({ "content": content })
}
