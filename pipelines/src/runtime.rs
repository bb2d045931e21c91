//! The running whole: engine, stages and validated pipelines.

use crate::config::RuntimeConfig;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Outcome};
use crate::request::Request;
use crate::summary::{ModelSummary, PipelineSummary, RuntimeStats};

/// Engine, stages and validated pipelines. Clones share it; the last drop stops and joins everything.
#[derive(Debug, Clone)]
pub struct Runtime {}

impl Runtime {
    /// Loads the models and validates the pipelines. A broken definition is an error with file, line and column; one
    /// whose models are not loaded is listed as unavailable.
    pub async fn start(config: RuntimeConfig) -> Result<Self> {
        let _ = config;
        Err(Error::new(ErrorKind::Internal, "the runtime is not built yet"))
    }

    /// Starts a request. Everything that can be refused without work is refused here, before a stream opens. Must be
    /// called inside a tokio runtime.
    pub fn run(&self, request: Request) -> Result<EventStream> {
        let _ = request;
        Err(Error::new(ErrorKind::Internal, "the runtime is not built yet"))
    }

    /// Pipelines, built-in ones included.
    pub fn pipelines(&self) -> Vec<PipelineSummary> {
        Vec::new()
    }

    /// Loaded models.
    pub fn models(&self) -> Vec<ModelSummary> {
        Vec::new()
    }

    /// Counts.
    pub fn stats(&self) -> RuntimeStats {
        RuntimeStats::default()
    }

    /// The device, for people.
    pub fn device(&self) -> String {
        String::new()
    }

    /// Token ids of plain text (special tokens in it are text).
    pub fn tokenize(&self, model: &str, text: &str) -> Result<Vec<u32>> {
        let _ = (model, text);
        Err(Error::new(ErrorKind::Internal, "the runtime is not built yet"))
    }
}

/// The events of one request, in order, ending with exactly one [`Event::Done`] or [`Event::Failed`]. Dropping it
/// cancels every step of the request.
#[derive(Debug)]
pub struct EventStream {
    id: u64,
}

impl EventStream {
    /// Number of the request in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event; `None` after the terminal one.
    pub async fn next(&mut self) -> Option<Event> {
        None
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Result<Outcome> {
        while let Some(event) = self.next().await {
            match event {
                Event::Done(outcome) => return Ok(*outcome),
                Event::Failed(error) => return Err(error),
                _ => {}
            }
        }
        Err(Error::new(ErrorKind::Internal, "the request ended without an outcome"))
    }
}
