//! The running whole: engine, stages and validated pipelines.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_stages::{EngineConfig, ModelConfig, Precision, Service, ServiceConfig, StagesConfig};

use crate::admission::{Desk, Permit, Verdict};
use crate::catalog::{self, Bound, Catalog, Read};
use crate::config::{ModelEntry, ModelSource, RuntimeConfig};
use crate::definition::is_path;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Outcome};
use crate::request::{Class, Input, Options, Request};
use crate::run::{self, Checked, Checks, EVENTS, Job, Price, Priced, Pricing};
use crate::summary::{ModelKind, ModelSummary, PipelineSummary, RuntimeStats, StageDepth};

/// Engine, stages and validated pipelines. Clones share it; the last drop stops and joins everything.
#[derive(Debug, Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    service: Service,
    catalog: Catalog,
    models: Vec<ModelEntry>,
    config: RuntimeConfig,
    inbox: usize,
    requests: Arc<AtomicUsize>,
    desk: Arc<Desk>,
}

impl Runtime {
    /// Loads the models and validates the pipelines. A broken definition is an error with file, line and column; one
    /// whose models are not loaded is listed as unavailable. Models that definitions name by a path that exists are
    /// loaded with the others.
    pub async fn start(config: RuntimeConfig) -> Result<Self> {
        let opened = tokio::task::spawn_blocking(move || open(config)).await;
        opened
            .map_err(|error| Error::new(ErrorKind::Internal, format!("the start of the runtime broke off: {error}")))?
    }

    /// Starts a request. Everything that can be refused without work is refused here, before a stream opens. Must be
    /// called inside a tokio runtime.
    pub fn run(&self, request: Request) -> Result<EventStream> {
        let entry = self.enter(request.input.bytes(), request.class)?;
        self.run_entered(entry, request)
    }

    /// Takes a place for a request whose body, of at most so many bytes, is still to be read; refused at once when there is
    /// no room. Dropping it gives the place back.
    ///
    /// # Errors
    /// `Overloaded` with [`crate::Refusal`]; `Internal` when the device has ended.
    pub fn enter(&self, bytes: usize, class: Class) -> Result<Entry> {
        if !self.inner.service.alive() {
            return Err(Error::new(ErrorKind::Internal, "the device ended by a fault; the service must be restarted"));
        }
        Ok(Entry(self.inner.desk.enter(bytes, class)?))
    }

    /// What a request will cost and what it would hear now. Refuses what [`Runtime::run`] would refuse whatever the load.
    pub fn price(&self, request: Request) -> Result<Quote> {
        let bound = Arc::clone(self.inner.catalog.find(&request.target)?);
        let (_, priced) = self.priced(&bound, request.input, &request.options)?;
        let verdict = self.inner.desk.verdict(&priced.load, request.class, request.deadline);
        Ok(Quote { price: priced.price, verdict })
    }

    fn priced(&self, bound: &Arc<Bound>, input: Input, options: &Options) -> Result<(Input, Priced)> {
        let inner = &*self.inner;
        let checks = Checks { service: &inner.service, bound, limits: inner.config.limits };
        let Checked { input, media } = run::checked(&checks, input, options)?;
        let (desk, batch) = (&*inner.desk, inner.config.max_batch);
        let priced = Pricing { checks: &checks, desk, batch, input: &input, options, media: &media }.price()?;
        Ok((input, priced))
    }

    /// Like [`Runtime::run`], for a request that entered.
    pub fn run_entered(&self, entry: Entry, request: Request) -> Result<EventStream> {
        let began = Instant::now();
        let inner = &*self.inner;
        let Request { target, input, options, class, deadline } = request;
        if deadline.is_some_and(|deadline| deadline <= began) {
            return Err(Error::new(ErrorKind::Deadline, "the time for this request is up"));
        }
        let bound = Arc::clone(inner.catalog.find(&target)?);
        let (input, priced) = self.priced(&bound, input, &options)?;
        entry.0.admit(priced.load, class, deadline)?;
        let admitted = run::Admitted { permit: entry.0, desk: Arc::clone(&inner.desk), stages: priced.stages };
        let handle = tokio::runtime::Handle::try_current()
            .map_err(|_| Error::new(ErrorKind::Internal, "requests run inside a tokio runtime"))?;
        let (events, receiver) = flume::bounded(EVENTS);
        let id = inner.service.next_request();
        let job = Arc::new(Job {
            service: inner.service.clone(),
            bound,
            input,
            options,
            class,
            deadline,
            id,
            began,
            events,
            tally: run::Tally::default(),
            admitted,
        });
        let running = Running::new(&inner.requests);
        let task = handle.spawn(async move {
            let _running = running;
            run::drive(job).await;
        });
        Ok(EventStream { id: id.0, events: receiver, task: task.abort_handle(), ended: false })
    }

    /// Pipelines, built-in ones included.
    pub fn pipelines(&self) -> Vec<PipelineSummary> {
        self.inner.catalog.summaries(|model| self.placeholder(model))
    }

    /// Loaded models.
    pub fn models(&self) -> Vec<ModelSummary> {
        let summary = |card: &Arc<weft_stages::ModelCard>| {
            let transcribes = card.transcription.is_some();
            ModelSummary {
                name: card.name.clone(),
                family: card.family.name().to_owned(),
                kind: if transcribes { ModelKind::Transcribe } else { ModelKind::Generate },
                image: card.image.is_some(),
                audio: card.audio.is_some(),
                context: card.context,
                parameters: card.parameters,
                dtype: card.dtype.clone(),
                placeholder: self.placeholder(&card.name),
            }
        };
        self.inner.service.cards().map(summary).collect()
    }

    /// Counts.
    pub fn stats(&self) -> RuntimeStats {
        let depth = self.inner.service.depth();
        let (entered, held_bytes) = self.inner.desk.held();
        let stage = |name: &str, depth: weft_stages::StageDepth| StageDepth {
            stage: name.to_owned(),
            waiting: depth.waiting,
            capacity: self.inner.inbox,
        };
        RuntimeStats {
            engine: self.inner.service.stats(),
            stages: vec![stage("image", depth.image), stage("audio", depth.audio), stage("text", depth.text)],
            requests: self.inner.requests.load(Ordering::Relaxed),
            entered,
            held_bytes,
            wait: self.inner.desk.wait(),
            refused: self.inner.desk.refusals().into_iter().map(|(reason, count)| (reason.name(), count)).collect(),
        }
    }

    /// The device, for people.
    pub fn device(&self) -> String {
        self.inner.service.device()
    }

    /// Token ids of plain text (special tokens in it are text).
    pub fn tokenize(&self, model: &str, text: &str) -> Result<Vec<u32>> {
        let known =
            self.inner.service.text(model).map_err(|error| Error::new(error.kind, error.message).about("model"))?;
        Ok(known.tokenizer().encode_plain(text)?)
    }

    pub(crate) fn limits(&self) -> crate::config::Limits {
        self.inner.config.limits
    }

    fn placeholder(&self, model: &str) -> bool {
        self.inner.models.iter().any(|entry| entry.name == model && entry.placeholder)
    }
}

/// Everything slow about a start, on a thread that may block.
fn open(config: RuntimeConfig) -> Result<Runtime> {
    let read = catalog::read(&config.pipelines).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        Error::new(ErrorKind::Malformed, faults.join("\n"))
    })?;
    let models = with_referenced(&config.models, &read);
    let stages = stages_config(&config);
    let inbox = stages.inbox;
    let engine = engine_config(&config, &models);
    let service = Service::start(ServiceConfig { engine, stages })?;
    let cards: Vec<_> = service.cards().cloned().collect();
    let catalog = Catalog::new(read, &cards, &models);
    let requests = Arc::new(AtomicUsize::new(0));
    let wait = config.admission.wait.unwrap_or(Duration::from_secs_f32(config.slo.first_token_ms / 1e3));
    let desk = Arc::new(Desk::new(config.admission, wait, config.max_batch));
    Ok(Runtime { inner: Arc::new(Inner { service, catalog, models, config, inbox, requests, desk }) })
}

/// What the engine is started with for these models.
pub(crate) fn engine_config(config: &RuntimeConfig, models: &[ModelEntry]) -> EngineConfig {
    EngineConfig {
        models: models.iter().map(model_config).collect(),
        device: config.device,
        threads: config.threads,
        kv_bytes: config.kv_bytes,
        encoder_cache_bytes: config.encoder_cache_bytes,
        max_batch: config.max_batch,
        max_waiting: config.max_waiting,
        policy: config.policy,
        speculation: config.speculation,
        inter_token_ms: config.slo.inter_token_ms,
        first_token_ms: config.slo.first_token_ms,
        costs: config.costs.clone(),
        ..EngineConfig::default()
    }
}

/// The configured models, and those that definitions name by a path that exists, unless a better candidate is there.
fn with_referenced(configured: &[ModelEntry], read: &[Read]) -> Vec<ModelEntry> {
    let mut models = configured.to_vec();
    for Read { definition, folder } in read {
        for model in definition.stages.iter().filter_map(crate::definition::Stage::model) {
            if let Some(entry) = referenced(&model.candidates, folder, &models) {
                models.push(entry);
            }
        }
    }
    models
}

/// The model to load for a reference, if its best candidate is a path that is not loaded yet. It is served under the name
/// that stands before the path, else under the path's own.
fn referenced(candidates: &[String], folder: &Path, models: &[ModelEntry]) -> Option<ModelEntry> {
    let mut name = None;
    for candidate in candidates {
        if models.iter().any(|entry| entry.name == *candidate) {
            return None;
        }
        if !is_path(candidate) {
            name = Some(candidate.clone());
            continue;
        }
        let Ok(path) = folder.join(candidate).canonicalize() else { continue };
        let same = |entry: &ModelEntry| matches!(&entry.source, ModelSource::Path(known) if known.canonicalize().is_ok_and(|known| known == path));
        if models.iter().any(same) {
            return None;
        }
        let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.unwrap_or_else(|| stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default());
        return Some(ModelEntry { name, source: ModelSource::Path(path), float32: false, placeholder: false });
    }
    None
}

fn model_config(entry: &ModelEntry) -> ModelConfig {
    ModelConfig {
        name: entry.name.clone(),
        source: entry.source.resolved(),
        precision: if entry.float32 { Precision::Float32 } else { Precision::Stored },
    }
}

fn stages_config(config: &RuntimeConfig) -> StagesConfig {
    let mut stages = StagesConfig::default();
    stages.limits.image.bytes = config.limits.media_bytes;
    stages.limits.image.pixels = usize::try_from(config.limits.image_pixels).unwrap_or(usize::MAX);
    stages.limits.audio.bytes = config.limits.media_bytes;
    stages.limits.audio.seconds = config.limits.audio_seconds;
    stages
}

/// A place in the house; see [`Runtime::enter`].
#[derive(Debug)]
pub struct Entry(Permit);

/// What a request will cost, and what it would hear now.
#[derive(Debug, Clone, PartialEq)]
pub struct Quote {
    /// The cost.
    pub price: Price,
    /// The answer at the door.
    pub verdict: Verdict,
}

/// Counts a request while it runs.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The events of one request, in order, ending with exactly one [`Event::Done`] or [`Event::Failed`]. Dropping it
/// cancels every step of the request.
#[derive(Debug)]
pub struct EventStream {
    id: u64,
    events: flume::Receiver<Event>,
    task: tokio::task::AbortHandle,
    ended: bool,
}

impl EventStream {
    /// Number of the request in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event; `None` after the terminal one.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.recv_async().await.unwrap_or_else(|_| {
            // The driver always tells the end; only a panic in it closes the channel before.
            Event::Failed(Error::new(ErrorKind::Internal, "the request broke off inside the service"))
        });
        self.ended = matches!(event, Event::Done(_) | Event::Failed(_));
        Some(event)
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

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
