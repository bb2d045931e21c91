//! The service: engine and stages behind one door.
//!
//! ```text
//! image, audio: bytes -> stage -> encoder queued at once -> Lease
//! answer:       turns with leases -> layout -> engine -> TextStream
//! transcribe:   bytes -> stage -> windows of the engine -> TranscriptStream
//! ```
//!
//! Invariant: whatever is handed out (a lease, a stream, a future) cancels its work when dropped.

mod answer;
mod price;
mod transcribe;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use weft_engine::card::ModelCard;
use weft_engine::handle::{Engine, EngineConfig, EngineStats, MediaTicket, Model};
use weft_engine::media::Medium;
use weft_engine::request::{Class, RequestId};

use crate::actors::{StageDepths, Stages, StagesConfig};
use crate::error::{ErrorKind, Result, StageError};
use crate::prepared::{MediaFacts, Prepared};
use crate::text::TextModel;

pub use answer::{AnswerOptions, Logprob, TextEvent, TextStream};
pub use price::{MediumPrice, TextPrice};
pub use transcribe::{TranscribeOptions, TranscriptEvent, TranscriptStream};

/// Sizes of engine and stages.
#[derive(Debug, Clone, Default)]
pub struct ServiceConfig {
    /// Of the engine.
    pub engine: EngineConfig,
    /// Of the stages.
    pub stages: StagesConfig,
}

/// Engine and stages. Clones share them; the drop of the last one stops and joins their threads.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Engine,
    stages: Stages,
    models: Vec<Served>,
    requests: AtomicU64,
}

#[derive(Clone)]
struct Served {
    model: Model,
    text: Arc<TextModel>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("device", &self.device()).finish_non_exhaustive()
    }
}

/// A prepared medium on its way to, or out of, its encoder. Clones share it; the drop of the last one cancels what has
/// not run yet.
#[derive(Debug, Clone)]
pub struct Lease {
    ticket: MediaTicket,
    /// Time in the stage's inbox.
    pub queued: Duration,
    /// Time of the stage's work.
    pub worked: Duration,
    /// What was tolerated in the file.
    pub warnings: Vec<String>,
    /// What the file turned out to be.
    pub source: MediaFacts,
}

impl Lease {
    /// Prompt tokens it stands for.
    pub fn tokens(&self) -> usize {
        self.ticket.tokens()
    }
}

impl Service {
    /// Starts the device thread and the stages, loads the models and reads their tokenizers and templates.
    pub fn start(config: ServiceConfig) -> Result<Self> {
        let engine = Engine::start(config.engine)?;
        let serve = |model: Model| {
            let text = Arc::new(TextModel::new(Arc::clone(model.card()))?);
            Ok(Served { model, text })
        };
        let models = engine.models().into_iter().map(serve).collect::<Result<Vec<_>>>()?;
        let stages = Stages::start(config.stages)?;
        Ok(Self { inner: Arc::new(Inner { engine, stages, models, requests: AtomicU64::new(1) }) })
    }

    /// Cards of the loaded models.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<ModelCard>> {
        self.inner.models.iter().map(|served| served.model.card())
    }

    /// Card of a model, or `NotFound` naming those there are.
    pub fn card(&self, model: &str) -> Result<&Arc<ModelCard>> {
        Ok(self.served(model)?.model.card())
    }

    /// Tokenizer and template of a model.
    pub fn text(&self, model: &str) -> Result<&Arc<TextModel>> {
        Ok(&self.served(model)?.text)
    }

    /// Name of the device for people.
    pub fn device(&self) -> String {
        self.inner.engine.device()
    }

    /// Whether the device still works.
    pub fn alive(&self) -> bool {
        self.inner.engine.stats().alive
    }

    /// Counts of the engine.
    pub fn stats(&self) -> EngineStats {
        self.inner.engine.stats()
    }

    /// Load of the stages.
    pub fn depth(&self) -> StageDepths {
        self.inner.stages.depth()
    }

    /// A number for a new request, unique in this service.
    pub fn next_request(&self) -> RequestId {
        RequestId(self.inner.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Prepares a picture and queues its encoder as soon as it is ready, whatever else the request still waits for.
    pub async fn image(&self, model: &str, bytes: Bytes, class: Class) -> Result<Lease> {
        let served = self.served(model)?;
        let processor = served.model.card().image.clone().ok_or_else(|| {
            StageError::unsupported(format!(
                "model `{model}` does not take pictures{}",
                self.others(|card| card.image.is_some())
            ))
        })?;
        let prepared = self.inner.stages.image(bytes, Arc::new(processor)).await?;
        queue(&served.model, prepared, class, Medium::Image)
    }

    /// Prepares a clip and queues its encoder as soon as it is ready, whatever else the request still waits for.
    pub async fn audio(&self, model: &str, bytes: Bytes, class: Class) -> Result<Lease> {
        let served = self.served(model)?;
        let card = served.model.card();
        let hears = card.audio.clone().filter(|_| card.transcription.is_none());
        let processor = hears.ok_or_else(|| {
            let takes = |card: &ModelCard| card.audio.is_some() && card.transcription.is_none();
            StageError::unsupported(format!(
                "model `{model}` does not take clips in a conversation{}",
                self.others(takes)
            ))
        })?;
        let prepared = self.inner.stages.audio(bytes, Arc::new(processor)).await?;
        let lease = queue(&served.model, prepared, class, Medium::Audio)?;
        if lease.tokens() == 0 {
            return Err(StageError::malformed("the clip is too short: it makes no token"));
        }
        Ok(lease)
    }

    fn served(&self, model: &str) -> Result<&Served> {
        self.inner.models.iter().find(|served| served.model.card().name == model).ok_or_else(|| {
            let names: Vec<_> = self.cards().map(|card| card.name.as_str()).collect();
            let text = format!("no model `{model}` is loaded; there are: {}", names.join(", "));
            StageError::new(ErrorKind::NotFound, text)
        })
    }

    /// Names of other models that can do it, as the end of an error.
    fn others(&self, can: impl Fn(&ModelCard) -> bool) -> String {
        let names: Vec<_> = self.cards().filter(|card| can(card)).map(|card| card.name.as_str()).collect();
        if names.is_empty() { String::new() } else { format!("; these do: {}", names.join(", ")) }
    }
}

fn queue<T>(model: &Model, prepared: Prepared<T>, class: Class, medium: fn(T) -> Medium) -> Result<Lease> {
    let Prepared { value, queued, worked, warnings, source } = prepared;
    let ticket = model.encode_for(medium(value), class)?;
    Ok(Lease { ticket, queued, worked, warnings, source })
}
