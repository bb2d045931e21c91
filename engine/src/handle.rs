//! The handles that everyone but the device thread holds.
//!
//! Handles are cheap to clone and talk to the device thread over one bounded channel; a full channel is `Overloaded`.
//! What can be checked without the device is checked here, before anything is queued.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use weft_kernels::cuda::Activations;
use weft_kernels::{Backend, CpuBackend, CudaBackend};

use crate::card::ModelCard;
use crate::check::ModelFacts;
pub use crate::config::{DeviceChoice, EngineConfig, ModelConfig, ModelSource, Policy, Precision, Speculation};
use crate::device::command::{Command, EncodeOrder, GenerateOrder, STREAM_EVENTS, STREAM_ROOM};
use crate::device::shared::{Freshness, LeaseOrder, MediaKey, MediaLease, Shared, WakeOnDrop};
use crate::device::{self, Opened};
use crate::error::{EngineError, ErrorKind, Result};
use crate::media::{MediaId, Medium};
use crate::request::{Class, Generate, TokenEvent};
use crate::scheduler::CostModel;
pub use crate::stats::{EngineStats, StepKind, StepRecord};

/// Name of the GPU that [`DeviceChoice::Auto`] takes, or why it takes none; cheap, and starts nothing on it.
pub fn gpu() -> Result<String> {
    Ok(CudaBackend::probe()?)
}

/// A running engine: one device thread and its models. Dropping the last [`Engine`] or [`Model`] stops and joins the
/// thread; answers still in flight end with `Cancelled`.
#[derive(Debug, Clone)]
pub struct Engine {
    core: Arc<Core>,
}

/// The end of the device thread that its owners hold.
#[derive(Debug)]
struct Core {
    commands: flume::Sender<Command>,
    /// The other end of `commands`, only for emptying it after the thread's death.
    leftover: flume::Receiver<Command>,
    shared: Arc<Shared>,
    description: String,
    models: Vec<ModelFacts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Core {
    fn send(&self, command: Command) -> Result<()> {
        self.commands.try_send(command).map_err(|error| match error {
            flume::TrySendError::Full(_) => {
                EngineError::new(ErrorKind::Overloaded, "the device's inbox is full; try again later")
            }
            flume::TrySendError::Disconnected(_) => stopped(),
        })?;
        if self.shared.alive() {
            self.shared.wake();
            return Ok(());
        }
        // The thread emptied the inbox when it died; what came later would keep its stream open for ever.
        self.leftover.drain();
        Err(stopped())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.shared.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A thread cannot wait for its own end.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the device thread had ended with a panic");
        }
    }
}

fn stopped() -> EngineError {
    EngineError::new(ErrorKind::Internal, "device stopped")
}

impl Engine {
    /// Starts the device thread on the configured device, loads the models and returns when they are ready.
    ///
    /// On a GPU activations are bf16, and float32 where every model asks for float32 weights.
    pub fn start(config: EngineConfig) -> Result<Self> {
        /// Fewer rows than this leave most of a GPU idle.
        const GPU_PREFILL_ROWS: usize = 2048;
        let (threads, exact) = (config.threads, config.models.iter().all(|m| m.precision == Precision::Float32));
        let reason = match config.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Cuda | DeviceChoice::Auto => {
                let activations = if exact { Activations::F32 } else { Activations::Bf16 };
                let wide = EngineConfig { prefill_chunk: config.prefill_chunk.max(GPU_PREFILL_ROWS), ..config.clone() };
                match gpu().and_then(|_| Self::start_on(wide, move || Ok(CudaBackend::open(activations)?))) {
                    Ok(engine) => return Ok(engine),
                    Err(error) if config.device == DeviceChoice::Cuda => return Err(error),
                    Err(error) => Some(error),
                }
            }
        };
        if let Some(reason) = reason {
            tracing::info!(%reason, "no GPU is used; models run on the CPU");
        }
        Self::start_on(config, move || Ok(CpuBackend::new(threads)))
    }

    /// Like [`Engine::start`] on the backend that `make` gives; `make` runs on the device thread.
    pub fn start_on<B: Backend>(
        config: EngineConfig,
        make: impl FnOnce() -> Result<B> + Send + 'static,
    ) -> Result<Self> {
        config.check()?;
        let (commands, inbox) = flume::bounded(config.max_waiting + device::MEDIA_INBOX);
        let (ready, opened) = flume::bounded(1);
        let shared = Arc::new(Shared::new(config.max_waiting, config.media_bytes));
        let (leftover, theirs) = (inbox.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("weft-device".into())
            .spawn(move || device::run(config, make, device::Ends { inbox, shared: theirs, ready }))
            .map_err(|error| EngineError::new(ErrorKind::Internal, format!("no device thread: {error}")))?;
        let opened = opened.recv().unwrap_or_else(|_| Err(stopped()));
        match opened {
            Ok(Opened { description, models }) => {
                let core = Core { commands, leftover, shared, description, models, thread: Mutex::new(Some(thread)) };
                Ok(Self { core: Arc::new(core) })
            }
            Err(error) => {
                // Its panic, if any, is reported as `stopped` already.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// The loaded models.
    pub fn models(&self) -> Vec<Model> {
        (0..self.core.models.len()).map(|index| Model { core: self.core.clone(), index }).collect()
    }

    /// A model by name, or `NotFound` naming those there are.
    pub fn model(&self, name: &str) -> Result<Model> {
        let index = self.core.models.iter().position(|model| model.card.name == name).ok_or_else(|| {
            let names: Vec<_> = self.core.models.iter().map(|model| model.card.name.as_str()).collect();
            EngineError::new(ErrorKind::NotFound, format!("no model {name:?}; there are: {}", names.join(", ")))
        })?;
        Ok(Model { core: self.core.clone(), index })
    }

    /// Name of the device for people.
    pub fn device(&self) -> String {
        self.core.description.clone()
    }

    /// Counts.
    pub fn stats(&self) -> EngineStats {
        self.core.shared.stats()
    }

    /// Launches from number `from` on, as far as the ring still holds them, and the number to ask with next time (start
    /// with 0). For histograms and benchmarks.
    pub fn steps_since(&self, from: u64) -> (Vec<StepRecord>, u64) {
        self.core.shared.steps.since(from)
    }
}

/// A loaded model.
#[derive(Debug, Clone)]
pub struct Model {
    core: Arc<Core>,
    index: usize,
}

impl Model {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn costs(&self) -> Arc<CostModel> {
        self.core.shared.costs()
    }

    pub(crate) fn facts(&self) -> &ModelFacts {
        &self.core.models[self.index]
    }

    /// What it is.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.facts().card
    }

    /// Bytes of keys and values that one token takes.
    pub fn kv_bytes_per_token(&self) -> usize {
        let kv = &self.facts().kv;
        kv.page_bytes() / kv.pages.page_tokens
    }

    /// Queues a medium for its encoder and returns at once with a lease on the (future) output. A medium whose identity
    /// is in the cache or in the queue is not encoded again. `Overloaded` when the byte budget or the inbox is full.
    pub fn encode(&self, medium: Medium) -> Result<MediaTicket> {
        self.encode_for(medium, Class::Interactive)
    }

    /// Like [`Model::encode`], for a request of this class.
    pub fn encode_for(&self, medium: Medium, class: Class) -> Result<MediaTicket> {
        let shape = self.facts().shape(&medium)?;
        let values = match &medium {
            Medium::Image(patches) => patches.values.len(),
            Medium::Audio(mel) => mel.values.len(),
        };
        let key = MediaKey { model: self.index, id: medium.id() };
        let order = LeaseOrder { key, shape, bytes: values * size_of::<f32>() };
        let (lease, freshness) = self.core.shared.lease(order, |lease| {
            self.core.send(Command::Encode(EncodeOrder { lease, medium, class, arrived: Instant::now() }))
        })?;
        if freshness == Freshness::Shared {
            crate::stats::count(&self.core.shared.counters.encoder_cache_hits, 1);
        }
        Ok(MediaTicket { lease })
    }

    /// Queues a request. Checks what can be checked before any work (context length, media of the right kind, empty
    /// prompt); `Overloaded` when too many wait.
    pub fn generate(&self, request: Generate) -> Result<TokenStream> {
        let rules = self.facts().check(self.index, &request)?;
        let permit = self.core.shared.permit()?;
        let (events, receiver) = flume::bounded(STREAM_ROOM);
        let order = GenerateOrder { model: self.index, request, rules, events, permit, arrived: Instant::now() };
        self.core.send(Command::Generate(Box::new(order)))?;
        Ok(TokenStream { events: receiver, ended: false, device: WakeOnDrop(self.core.shared.clone()) })
    }
}

/// A lease on one encoder output, ready or to come. Cloning shares it; the output may be evicted once all clones are
/// gone. Dropping all clones before the encoder ran cancels its work.
#[derive(Debug, Clone)]
pub struct MediaTicket {
    pub(crate) lease: Arc<MediaLease>,
}

impl MediaTicket {
    /// Identity of the medium.
    pub fn id(&self) -> MediaId {
        self.lease.key.id
    }

    /// Prompt tokens it stands for (0 for Whisper).
    pub fn tokens(&self) -> usize {
        self.lease.shape.tokens()
    }
}

/// The answer to a [`Generate`]: a bounded channel of events. Dropping it cancels the request. A reader that does not
/// keep up pauses its own answer and no other.
#[derive(Debug)]
pub struct TokenStream {
    events: flume::Receiver<TokenEvent>,
    ended: bool,
    // After `events`: the channel is closed by the time the device wakes and looks.
    device: WakeOnDrop,
}

impl TokenStream {
    /// The next event; `None` after the terminal one. Works under any async runtime.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv_async().await;
        Some(self.received(event.ok()))
    }

    /// Blocking form of [`TokenStream::next`].
    pub fn next_blocking(&mut self) -> Option<TokenEvent> {
        if self.ended {
            return None;
        }
        let event = self.events.recv();
        Some(self.received(event.ok()))
    }

    /// Notes the end, and wakes a sequence that paused because this stream was full.
    fn received(&mut self, event: Option<TokenEvent>) -> TokenEvent {
        // The device's end of the channel only closes without a terminal event when its thread has ended.
        let event = event.unwrap_or_else(|| TokenEvent::Failed(stopped()));
        self.ended = matches!(event, TokenEvent::Finished { .. } | TokenEvent::Failed(_));
        if self.events.len() + 1 == STREAM_EVENTS {
            self.device.0.wake();
        }
        event
    }
}
