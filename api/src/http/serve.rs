//! Listening, loading models behind an open door, and stopping in order.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use weft_pipelines::config::RuntimeConfig;
use weft_pipelines::{Error, ErrorKind, Result, Runtime};

use super::{App, router};
use crate::settings::ServeSettings;

/// A server on its own task.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    app: App,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

/// Opens the door, then loads the models; `/readyz` answers 503 meanwhile. Returns when the models are ready, or with
/// the reason why they are not.
pub async fn serve(settings: ServeSettings, config: RuntimeConfig) -> Result<Server> {
    let listen = settings.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        let detail = format!("cannot listen on {listen}: {error}; choose another address with --listen");
        Error::new(ErrorKind::Malformed, detail).about("listen")
    })?;
    let address = listener.local_addr().map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let app = App::new(settings.limits, settings.api_keys);
    let (stop, stopped) = oneshot::channel::<()>();
    let service = router(app.clone());
    let task = tokio::spawn(async move {
        let until = async move {
            let _sender_dropped_also_stops = stopped.await;
        };
        axum::serve(listener, service).with_graceful_shutdown(until).await
    });
    let server = Server { address, app: app.clone(), stop: Some(stop), task };
    match Runtime::start(config).await {
        Ok(runtime) => {
            app.ready(Ok(runtime));
            Ok(server)
        }
        Err(error) => {
            app.ready(Err(error.clone()));
            server.stop().await;
            Err(error)
        }
    }
}

impl Server {
    /// The application behind the door.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Takes no new requests, finishes those that run, and returns.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _receiver_gone_means_stopped = stop.send(());
        }
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the server task failed");
        }
    }
}
