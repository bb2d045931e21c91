//! The HTTP door. [`router`] builds the whole application, so that tests need no socket.

mod chat;
mod content;
mod error;
mod health;
mod linger;
mod metrics;
mod models;
mod page;
mod pipelines;
mod serve;
mod sse;
mod transcript_format;
mod transcriptions;
mod upload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use weft_pipelines::config::Limits;
use weft_pipelines::{Class, Entry, Error, ErrorKind, Runtime};

pub use error::{ApiError, status_of};
pub use metrics::Metrics;
pub use serve::{Server, serve};

/// Bytes that a request may have beside its media and text (JSON syntax, multipart borders, base64 overhead).
const ENVELOPE_BYTES: usize = 1 << 20;

/// What every handler can reach. Cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: OnceLock<Result<Runtime, Error>>,
    metrics: Metrics,
    limits: Limits,
    api_keys: Vec<String>,
    started: Instant,
    requests: AtomicU64,
    progress: health::Progress,
}

impl App {
    /// An application whose models are still to come; see [`App::ready`].
    pub fn new(limits: Limits, api_keys: Vec<String>) -> Self {
        let inner = Inner {
            runtime: OnceLock::new(),
            metrics: Metrics::new(),
            limits,
            api_keys,
            started: Instant::now(),
            requests: AtomicU64::new(0),
            progress: health::Progress::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Hands over the runtime, or why there is none. Later calls change nothing.
    pub fn ready(&self, runtime: Result<Runtime, Error>) {
        let _first_wins = self.inner.runtime.set(runtime);
    }

    /// The runtime, or 503 while models load.
    pub(crate) fn runtime(&self) -> Result<&Runtime, ApiError> {
        match self.inner.runtime.get() {
            Some(Ok(runtime)) => Ok(runtime),
            Some(Err(error)) => Err(ApiError::unavailable(format!("the models did not load: {}", error.message))),
            None => Err(ApiError::unavailable("the models are still loading; ask /readyz")),
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn progress(&self) -> &health::Progress {
        &self.inner.progress
    }

    pub(crate) fn uptime(&self) -> std::time::Duration {
        self.inner.started.elapsed()
    }

    /// Seconds until the queue is predicted to be worked off.
    fn retry_after(&self) -> u64 {
        let queue_ms = self.inner.runtime.get().and_then(|runtime| runtime.as_ref().ok());
        seconds(queue_ms.map_or(0, |runtime| runtime.stats().engine.queue_ms.into()))
    }

    /// Takes a place for this request before its body is read, or refuses it at once. A body of unknown length counts as
    /// the longest one.
    pub(crate) fn enter(&self, headers: &HeaderMap, class: Class) -> Result<(&Runtime, Entry), ApiError> {
        let runtime = self.runtime()?;
        let stated = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = stated.unwrap_or(usize::MAX).min(self.body_limit());
        if !runtime.stats().engine.alive {
            return Err(ApiError::unavailable("the device ended by a fault; the service must be restarted"));
        }
        Ok((runtime, runtime.enter(bytes, class)?))
    }

    fn body_limit(&self) -> usize {
        // Base64 in JSON takes a third more.
        let media = self.inner.limits.media_bytes.saturating_mul(4) / 3;
        media.saturating_add(self.inner.limits.prompt_bytes).saturating_add(ENVELOPE_BYTES)
    }
}

/// The whole application.
pub fn router(app: App) -> Router {
    let limit = app.body_limit();
    let guarded = Router::new()
        .route("/v1/pipelines", get(pipelines::list))
        .route("/v1/pipelines/{name}/run", post(pipelines::run))
        .route("/v1/pipelines/{name}/price", post(pipelines::price))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{name}", get(models::show))
        .route("/v1/tokenize", post(models::tokenize))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/audio/transcriptions", post(transcriptions::create))
        .layer(middleware::from_fn_with_state(app.clone(), authorize));
    Router::new()
        .merge(page::routes())
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/metrics", get(metrics::export))
        .merge(guarded)
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(|_payload| ApiError::fault().into_response()))
        .layer(DefaultBodyLimit::max(limit))
        .layer(middleware::from_fn_with_state(app.clone(), identify))
        .with_state(app)
}

/// The id of a request, for its answer, its errors and the log.
#[derive(Debug, Clone)]
pub struct RequestId(pub Arc<str>);

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives every request an id, writes error bodies with it, counts and logs the outcome (never the payload).
async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let number = app.inner.requests.fetch_add(1, Ordering::Relaxed);
    let id: Arc<str> = format!("req-{:x}-{number:x}", std::process::id()).into();
    request.extensions_mut().insert(RequestId(Arc::clone(&id)));
    let request = linger::linger(request);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let retry = response
            .headers()
            .contains_key(header::RETRY_AFTER)
            .then(|| error.retry_after().map_or_else(|| app.retry_after(), |time| seconds(time.as_millis())));
        let status = response.status();
        response = (status, axum::Json(error.body(&id))).into_response();
        if let Some(retry) = retry {
            response.headers_mut().insert(header::RETRY_AFTER, retry.into());
        }
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID.clone(), value);
    }
    let status = response.status().as_u16();
    app.metrics().answered(status);
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    tracing::info!(%id, %method, %path, status, took_ms, "answered");
    response
}

/// Whole seconds for a queue of this many milliseconds: at least one, at most an hour.
fn seconds(queue_ms: u128) -> u64 {
    u64::try_from(queue_ms.div_ceil(1000).clamp(1, 3600)).unwrap_or(3600)
}

/// Asks for a bearer key when any is configured.
async fn authorize(State(app): State<App>, request: Request, next: Next) -> Response {
    let keys = &app.inner.api_keys;
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
    if keys.is_empty() || keys.iter().any(|key| same_bytes(key.as_bytes(), given.as_bytes())) {
        return next.run(request).await;
    }
    ApiError::unauthorized().into_response()
}

/// Compares without telling by its time where the first difference is.
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

async fn unknown_route(request: Request) -> ApiError {
    let path = request.uri().path();
    Error::new(ErrorKind::NotFound, format!("there is no route {path}; see GET / and the README")).into()
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::method(format!("{} does not take {}", request.uri().path(), request.method()))
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn a_longer_queue_says_to_come_back_later() {
        assert_eq!([0, 1, 1000, 1001, 90_000, u128::MAX].map(seconds), [1, 1, 1, 2, 90, 3600]);
    }
}
