//! Server-sent events over a bounded channel. A stream ends with exactly one terminal event; a gone reader drops the
//! sender's peer, which cancels the request.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::mpsc;

/// Events that may wait for a slow reader.
const AHEAD: usize = 32;

/// Where a handler's task puts its events; `Err` means that the reader is gone.
pub(super) struct Sender(mpsc::Sender<SseEvent>);

/// The reader is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl Sender {
    /// Sends an event of this name (empty for none) with JSON data.
    pub(super) async fn json(&self, name: &str, data: &serde_json::Value) -> Result<(), Gone> {
        self.text(name, &data.to_string()).await
    }

    /// Sends an event of this name (empty for none) with text data.
    pub(super) async fn text(&self, name: &str, data: &str) -> Result<(), Gone> {
        let event = SseEvent::default().data(data);
        let event = if name.is_empty() { event } else { event.event(name) };
        self.0.send(event).await.map_err(|_| Gone)
    }

    /// Resolves when the reader is gone.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// A response whose body is what `produce` sends.
pub(super) fn respond<F>(produce: impl FnOnce(Sender) -> F) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(AHEAD);
    let work = produce(Sender(sender));
    tokio::spawn(async move {
        if work.await.is_err() {
            tracing::info!("a reader left before the end of its stream");
        }
    });
    let events = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), receiver))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))).into_response()
}
