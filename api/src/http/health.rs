//! Alive, making progress, ready.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::{ApiError, App};

/// With work at hand, the device loop must beat at least this often.
const PROGRESS_BOUND: Duration = Duration::from_secs(30);

/// The last time the device was seen to move.
#[derive(Debug)]
pub(crate) struct Progress {
    last: Mutex<(u64, Instant)>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { last: Mutex::new((0, Instant::now())) }
    }
}

impl Progress {
    /// Notes the beat count and says how long it has stood still while there was work.
    fn stalled(&self, beats: u64, has_work: bool) -> Duration {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if beats != last.0 || !has_work {
            *last = (beats, Instant::now());
        }
        last.1.elapsed()
    }
}

/// `GET /healthz`: 200 while the process lives and the device moves; 503 when it has work and stands still.
pub(super) async fn alive(State(app): State<App>) -> Response {
    let stalled = match app.runtime() {
        Ok(runtime) => {
            let stats = runtime.stats();
            app.progress().stalled(stats.engine.beats, stats.engine.running + stats.engine.waiting > 0)
        }
        Err(_) => Duration::ZERO,
    };
    let healthy = stalled < PROGRESS_BOUND;
    let body = json!({
        "status": if healthy { "ok" } else { "stalled" },
        "uptime_s": app.uptime().as_secs(),
        "stalled_s": stalled.as_secs(),
    });
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// `GET /readyz`: 200 when the models are loaded.
pub(super) async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    let runtime = app.runtime()?;
    let models: Vec<_> = runtime.models().into_iter().map(|m| m.name).collect();
    Ok(Json(json!({ "status": "ready", "models": models, "device": runtime.device() })).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_still_counts_only_with_work() {
        let progress = Progress::default();
        progress.stalled(7, true);
        std::thread::sleep(Duration::from_millis(5));
        assert!(progress.stalled(7, true) >= Duration::from_millis(5));
        assert!(progress.stalled(7, false) < Duration::from_millis(5));
        assert!(progress.stalled(8, true) < Duration::from_millis(5));
    }
}
