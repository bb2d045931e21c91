//! `GET /v1/models`, `POST /v1/tokenize`, and the reading of JSON bodies.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Path, Request, State};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weft_pipelines::{Error, ErrorKind, ModelSummary};

use super::{ApiError, App};

/// `GET /v1/models`.
pub(super) async fn list(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let models: Vec<_> = app.runtime()?.models().iter().map(model_json).collect();
    Ok(Json(json!({ "object": "list", "data": models })))
}

/// `GET /v1/models/{name}`.
pub(super) async fn show(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let models = app.runtime()?.models();
    match models.iter().find(|m| m.name == name) {
        Some(model) => Ok(Json(model_json(model))),
        None => Err(unknown_model(&name, &models)),
    }
}

/// The error for a model that is not here; it names those that are.
pub(super) fn unknown_model(name: &str, models: &[ModelSummary]) -> ApiError {
    let here: Vec<_> = models.iter().map(|m| m.name.as_str()).collect();
    let detail = format!("there is no model {name:?}; here are: {}", here.join(", "));
    Error::new(ErrorKind::NotFound, detail).about("model").into()
}

fn model_json(model: &ModelSummary) -> Value {
    let mut body = json!(model);
    body["id"] = model.name.as_str().into();
    body["object"] = "model".into();
    body["created"] = 0.into();
    body["owned_by"] = "weft".into();
    body
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizeBody {
    model: String,
    text: String,
}

/// `POST /v1/tokenize`: `{"model", "text"}` to `{"tokens", "count"}`.
pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body: TokenizeBody = json_body(request).await?;
    let tokens = app.runtime()?.tokenize(&body.model, &body.text)?;
    Ok(Json(json!({ "count": tokens.len(), "tokens": tokens })))
}

/// Reads a JSON body whatever its content type says; the router's body limit applies.
pub(super) async fn json_body<T: DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    use axum::RequestExt as _;
    let body = request.into_limited_body();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| -> ApiError {
        let limit = std::error::Error::source(&error).is_some_and(|e| e.to_string().contains("limit"));
        if limit || error.to_string().contains("limit") {
            return Error::new(ErrorKind::TooLarge, "the body is larger than this server accepts").about("body").into();
        }
        ApiError::malformed("body", "the body could not be read to its end")
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        ApiError::malformed("body", format!("broken JSON at {place}: {error}"))
    })
}
