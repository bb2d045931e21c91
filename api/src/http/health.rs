//! Alive, making progress, ready.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use weft_pipelines::{EngineStats, StepKind};

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
    let stats = app.runtime().ok().map(|runtime| runtime.stats().engine);
    let stalled = stats.as_ref().map_or(Duration::ZERO, |stats| {
        app.progress().stalled(stats.beats, stats.running + stats.waiting + stats.media_waiting > 0)
    });
    let verdict = verdict(stats.as_ref(), stalled);
    let healthy = verdict.is_none();
    let mut body = json!({
        "status": verdict.as_ref().map_or("ok", |(status, _)| status),
        "uptime_s": app.uptime().as_secs(),
        "stalled_s": stalled.as_secs(),
    });
    if let Some((_, detail)) = verdict {
        body["detail"] = detail.into();
    }
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// What is wrong: a word and a sentence.
fn verdict(stats: Option<&EngineStats>, stalled: Duration) -> Option<(&'static str, String)> {
    let stats = stats?;
    if !stats.alive {
        let detail = "the device thread ended by a fault; the log has it; restart the service";
        return Some(("dead", detail.into()));
    }
    if stalled < PROGRESS_BOUND {
        return None;
    }
    let work = match stats.doing {
        Some(StepKind::Decode) => "a decode step",
        Some(StepKind::Prefill) => "a prefill slice",
        Some(StepKind::Encode) => "an encoder slice",
        None => "nothing it says",
    };
    let detail = format!(
        "the device is at {work} and made no progress for {} s, with {} running and {} waiting requests and {} media",
        stalled.as_secs(),
        stats.running,
        stats.waiting,
        stats.media_waiting
    );
    Some(("stalled", detail))
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
    fn health_says_what_is_wrong() {
        let mut stats =
            EngineStats { alive: true, doing: Some(StepKind::Encode), running: 2, ..EngineStats::default() };
        assert_eq!(verdict(Some(&stats), Duration::from_secs(29)), None);
        let (status, detail) = verdict(Some(&stats), Duration::from_secs(31)).expect("it stands still");
        assert_eq!(status, "stalled");
        assert!(detail.contains("an encoder slice") && detail.contains("2 running"), "{detail}");
        stats.alive = false;
        assert_eq!(verdict(Some(&stats), Duration::ZERO).map(|(status, _)| status), Some("dead"));
        assert_eq!(verdict(None, Duration::from_secs(99)), None, "models still load");
    }

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
