//! The device thread: it alone owns tensors, pages, sequences and encoder runs.
//!
//! Its loop has four beats:
//!
//! ```text
//! receive   drain the inbox (bounded); sleep when there is nothing to do
//! plan      scheduler::plan over a snapshot: numbers in, numbers out
//! launch    decode steps first, then slices
//! settle    tokens to their streams, endings, cancellations, deadlines, counters; audit when idle
//! ```
//!
//! Each launch is settled before the next begins, so a decoded token never waits for the slice behind it. Nothing on
//! this thread blocks on a reader: a sequence whose stream is full is left out of the plan.

pub(crate) mod command;
mod draft;
mod launch;
mod media;
mod receive;
mod sequence;
mod settle;
pub(crate) mod shared;
mod step;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_kernels::Backend;

use self::command::Command;
use self::media::MediaDesk;
use self::sequence::Sequence;
use self::shared::Shared;
use crate::books::PageBooks;
use crate::check::ModelFacts;
use crate::checkpoint::Checkpoint;
use crate::config::{EngineConfig, ModelConfig, Speculation};
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::{KvLayout, Loaded};
use crate::scheduler::{self, CostModel, Counts, Identity, LearnedCosts, Limits, Reason, SequenceKey};
use crate::stats::{count, gauge};

/// Room for media in the inbox, beside that for requests.
pub(crate) const MEDIA_INBOX: usize = 256;
/// Bytes of KV pages of a model where neither the configuration nor the device says how many.
const KV_BYTES: usize = 512 << 20;
/// Longest sleep while something is unfinished: a full stream, a deadline.
const NAP: Duration = Duration::from_millis(20);
/// Longest sleep when there is nothing at all.
const SLEEP: Duration = Duration::from_secs(1);

/// The device thread's ends of its channels.
pub(crate) struct Ends {
    pub(crate) inbox: flume::Receiver<Command>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ready: flume::Sender<Result<Opened>>,
}

/// What the handles learn when the models are loaded.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) description: String,
    pub(crate) models: Vec<ModelFacts>,
}

/// Body of the device thread.
pub(crate) fn run<B: Backend>(config: EngineConfig, make: impl FnOnce() -> Result<B>, ends: Ends) {
    let Ends { inbox, shared, ready } = ends;
    shared.register_device();
    // Declared first, so it runs last, also when a panic unwinds.
    let _last = LastAct { inbox: inbox.clone(), shared: shared.clone() };
    let device = match make().and_then(|backend| Device::open(backend, &config, inbox, shared)) {
        Ok(device) => device,
        Err(error) => return answer(&ready, Err(error)),
    };
    let models = device.models.iter().map(|model| model.facts.clone()).collect();
    answer(&ready, Ok(Opened { description: device.backend.describe(), models }));
    drop(ready);
    device.serve();
}

fn answer(ready: &flume::Sender<Result<Opened>>, opened: Result<Opened>) {
    if ready.send(opened).is_err() {
        tracing::warn!("whoever started the engine did not wait for it");
    }
}

/// Marks the thread as ended and closes the streams of requests that it never took.
struct LastAct {
    inbox: flume::Receiver<Command>,
    shared: Arc<Shared>,
}

impl Drop for LastAct {
    fn drop(&mut self) {
        self.shared.mark_dead();
        self.inbox.drain();
    }
}

/// A loaded model with its pages.
struct Resident<B: Backend> {
    loaded: Loaded<B>,
    facts: ModelFacts,
    /// One a decoder layer.
    pages: Vec<B::Pages>,
    books: PageBooks,
    /// Where the keys of its blocks begin.
    root: [u8; 32],
    /// When its last decode step ended, while sequences have been ready to decode ever since.
    decoded: Option<Instant>,
}

/// Everything the thread owns.
struct Device<B: Backend> {
    backend: B,
    models: Vec<Resident<B>>,
    sequences: BTreeMap<SequenceKey, Sequence>,
    media: MediaDesk<B>,
    /// Whether blocks are found again by their content.
    prefixes: bool,
    /// Whether decode steps run guesses of the next tokens.
    guesses: bool,
    cost: CostModel,
    limits: Limits,
    inbox: flume::Receiver<Command>,
    shared: Arc<Shared>,
    epoch: Instant,
    /// Requests taken so far.
    arrivals: u64,
    /// Decode steps so far.
    steps: u64,
    /// Time that slices took beyond what their rounds gave them; see [`scheduler::Plan::debt_after`].
    debt: Duration,
    /// No slice ran since the last decode step.
    undisturbed: bool,
    /// What prompts added to this round's decode steps.
    rode: Duration,
    watch: watch::Watch,
    /// Where learned costs outlive the process.
    costs: Option<PathBuf>,
}

impl<B: Backend> Device<B> {
    fn open(backend: B, config: &EngineConfig, inbox: flume::Receiver<Command>, shared: Arc<Shared>) -> Result<Self> {
        let open = |model| Resident::open(&backend, model, config);
        let models = config.models.iter().map(open).collect::<Result<Vec<_>>>()?;
        let counts = models.iter().map(|model| Counts {
            parameters: model.facts.card.parameters,
            weight_bytes: model.facts.card.weight_bytes,
        });
        let mut cost = CostModel::new(counts.collect());
        recall(&mut cost, config.costs.as_deref(), &models, &backend.describe());
        shared.publish(&cost);
        gauge(&shared.counters.kv_pages_total, models.iter().map(|model| model.books.total()).sum());
        Ok(Self {
            backend,
            models,
            sequences: BTreeMap::new(),
            media: MediaDesk::new(config.encoder_cache_bytes),
            prefixes: config.prefix_cache,
            guesses: config.speculation == Speculation::Ngram,
            cost,
            limits: Limits::new(config),
            inbox,
            shared,
            epoch: Instant::now(),
            arrivals: 0,
            steps: 0,
            debt: Duration::ZERO,
            undisturbed: true,
            costs: config.costs.clone(),
            rode: Duration::ZERO,
            watch: watch::Watch::default(),
        })
    }

    /// Beats until the last handle is dropped.
    fn serve(mut self) {
        while !self.shared.stopping() {
            self.receive();
            let plan = scheduler::plan(&self.survey(), &self.cost, &self.limits);
            tracing::trace!(reason = ?plan.reason, decode = plan.decode.len(), slices = plan.slices.len(), "round");
            count(&self.shared.counters.beats, 1);
            self.admit(&plan.admit);
            let quiet = plan.reason == Reason::Idle && plan.admit.is_empty();
            self.launch(plan);
            self.settle();
            self.watch(quiet);
            if quiet {
                self.audit();
                self.sleep();
            }
        }
        self.keep_costs();
        self.close();
    }

    /// Writes what was learned for the next process.
    fn keep_costs(&self) {
        let Some(path) = &self.costs else { return };
        let device = self.backend.describe();
        // Another process may have written since this one read.
        let mut costs = LearnedCosts::read(path).unwrap_or_default();
        for (index, model) in self.models.iter().enumerate() {
            costs.keep(&self.cost, index, model.identity(&device));
        }
        if let Err(error) = costs.write(path) {
            tracing::warn!(%error, path = %path.display(), "learned costs could not be kept");
        }
    }

    /// Sleeps until a handle wakes the thread, a deadline, or a bounded time.
    fn sleep(&self) {
        let busy = !self.sequences.is_empty() || self.media.pending() > 0;
        let deadlines = self.sequences.values().filter_map(|sequence| sequence.deadline);
        let next = deadlines.min().map_or(SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
        std::thread::park_timeout(next.min(if busy { NAP } else { SLEEP }));
    }
}

/// Teaches the model of costs what an earlier process learned.
fn recall<B: Backend>(cost: &mut CostModel, path: Option<&Path>, models: &[Resident<B>], device: &str) {
    let Some(path) = path else { return };
    match LearnedCosts::read(path) {
        Ok(costs) => {
            models.iter().enumerate().for_each(|(at, model)| costs.teach(cost, at, model.identity(device)));
        }
        Err(error) => tracing::warn!(error, "learned costs could not be read; they are learned again"),
    }
}

impl<B: Backend> Resident<B> {
    fn identity<'a>(&'a self, device: &'a str) -> Identity<'a> {
        let card = &self.facts.card;
        Identity { device, model: &card.name, weight_bytes: card.weight_bytes }
    }

    fn open(backend: &B, model: &ModelConfig, config: &EngineConfig) -> Result<Self> {
        let named = |error: EngineError| EngineError::new(error.kind, format!("model {}: {error}", model.name));
        let checkpoint = Checkpoint::open(&model.source).map_err(named)?;
        let loaded = Loaded::load(backend, &checkpoint, model, config.page_tokens).map_err(named)?;
        let kv = KvLayout { element_bytes: backend.kv_element_bytes(), ..loaded.kv() };
        // More pages than a full batch of longest sequences can never be used.
        let most = loaded.card().context.div_ceil(config.page_tokens).saturating_mul(config.max_batch);
        let most = if kv.cross { usize::MAX } else { most };
        let kv_bytes = match config.kv_bytes {
            0 => backend.free_memory()?.map_or(KV_BYTES, |free| free / 5 * 4 / config.models.len().max(1)),
            given => given,
        };
        let count = (kv_bytes / kv.page_bytes().max(1)).min(most);
        if count == 0 {
            let detail = format!("kv_bytes is {kv_bytes}, less than a page of {} bytes", kv.page_bytes());
            return Err(named(EngineError::new(ErrorKind::TooLarge, detail)));
        }
        let pages = (0..kv.layers).map(|_| backend.pages(kv.pages, count)).collect::<weft_kernels::Result<Vec<_>>>();
        let pages = pages.map_err(|error| named(error.into()))?;
        let encoder_layers = loaded.encoder_layers();
        let facts = ModelFacts { card: loaded.card().clone(), kv, pages: count, encoder_layers };
        let root = *blake3::hash(model.name.as_bytes()).as_bytes();
        Ok(Self { loaded, facts, pages, books: PageBooks::new(count, config.page_tokens), root, decoded: None })
    }
}
