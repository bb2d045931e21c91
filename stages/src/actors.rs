//! The worker pools: the only file that knows actix.
//!
//! A pool is a fixed number of plain actors, each alone on its arbiter's thread, over one shared [`Inbox`]: an idle worker
//! never sits beside a waiting job. Actors are woken with `try_send` over a mailbox of one place; a full mailbox means that
//! a wake is already on its way, so nothing is lost and nothing grows. (`do_send` and `SyncArbiter` take work without
//! bound and are banned.) Callers await on any runtime: an answer comes through a channel of one place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Context, Handler, Message};
use actix_rt::{Arbiter, System};
use bytes::Bytes;
use weft_engine::card::{AudioProcessor, ImageProcessor};
use weft_engine::media::{LogMel, Patches};

use crate::cancel::{Cancel, Waiting};
use crate::error::{ErrorKind, Result, StageError, guarded};
use crate::inbox::{Inbox, Job};
use crate::limits::Limits;
use crate::prepared::{Prepared, Worked};

/// Sizes of the pools and of what they accept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StagesConfig {
    /// Threads that prepare pictures.
    pub image_workers: usize,
    /// Threads that prepare clips.
    pub audio_workers: usize,
    /// Threads that run text jobs.
    pub text_workers: usize,
    /// Jobs that may wait for one stage; one more is [`ErrorKind::Overloaded`].
    pub inbox: usize,
    /// Bytes of media that may wait for one stage.
    pub inbox_bytes: usize,
    /// Threads that one job may use for its largest steps (resizing, hashing, mel frames).
    pub threads_per_job: usize,
    /// What a file may cost.
    pub limits: Limits,
}

impl Default for StagesConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            image_workers: cores.clamp(1, 8),
            audio_workers: cores.clamp(1, 4),
            text_workers: cores.clamp(1, 4),
            inbox: 64,
            inbox_bytes: 256 << 20,
            threads_per_job: cores.min(4),
            limits: Limits::default(),
        }
    }
}

/// Load of one stage at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageDepth {
    /// Jobs that wait.
    pub waiting: usize,
    /// Workers at work.
    pub busy: usize,
    /// Workers in all.
    pub workers: usize,
}

/// Load of all stages, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageDepths {
    /// Pictures.
    pub image: StageDepth,
    /// Clips.
    pub audio: StageDepth,
    /// Text.
    pub text: StageDepth,
}

/// Handle of the running stages. Clones share them; the drop of the last one stops and joins their threads.
#[derive(Clone)]
pub struct Stages {
    running: Arc<Running>,
}

impl Stages {
    /// Starts the pools.
    pub fn start(config: StagesConfig) -> Result<Self> {
        let pool = |name, workers: usize| Arc::new(Desk::new(name, workers.max(1), &config));
        let desks = [
            pool("image", config.image_workers),
            pool("audio", config.audio_workers),
            pool("text", config.text_workers),
        ];
        let (ready, started) = flume::bounded(1);
        let theirs = desks.clone();
        let thread = std::thread::Builder::new()
            .name("weft-stages".into())
            .spawn(move || host(&theirs, &ready))
            .map_err(|error| no_start(&error))?;
        let (system, workers) = started.recv().map_err(|error| no_start(&error))?.map_err(|error| no_start(&error))?;
        let [image, audio, text] = desks;
        let [image_workers, audio_workers, text_workers] = workers;
        let running = Running {
            config,
            image: Pool { desk: image, workers: image_workers },
            audio: Pool { desk: audio, workers: audio_workers },
            text: Pool { desk: text, workers: text_workers },
            system,
            thread: Some(thread),
        };
        Ok(Self { running: Arc::new(running) })
    }

    /// Turns a picture's file into patches. Dropping the future cancels the work at its next step.
    pub async fn image(&self, bytes: Bytes, processor: Arc<ImageProcessor>) -> Result<Prepared<Patches>> {
        let config = self.running.config;
        config.limits.image.check_bytes(bytes.len())?;
        let size = bytes.len();
        let work = move |cancel: &Cancel| {
            let task = crate::image::Task { limits: config.limits.image, threads: config.threads_per_job, cancel };
            task.prepare(&bytes, &processor)
        };
        self.running.image.media(size, work).await
    }

    /// Turns a clip's file into log-mel frames. Dropping the future cancels the work at its next step.
    pub async fn audio(&self, bytes: Bytes, processor: Arc<AudioProcessor>) -> Result<Prepared<LogMel>> {
        let config = self.running.config;
        config.limits.audio.check_bytes(bytes.len())?;
        let size = bytes.len();
        let work = move |cancel: &Cancel| {
            let task = crate::audio::Task { limits: config.limits.audio, threads: config.threads_per_job, cancel };
            task.prepare(bytes, &processor)
        };
        self.running.audio.media(size, work).await
    }

    /// Runs a text job (rendering a template, tokenising) on the text workers.
    pub async fn text<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (value, _, _) = self.running.text.submit(0, move |_| Ok(work())).await?;
        Ok(value)
    }

    /// Load of all stages.
    pub fn depth(&self) -> StageDepths {
        let running = &*self.running;
        StageDepths { image: running.image.depth(), audio: running.audio.depth(), text: running.text.depth() }
    }
}

struct Running {
    config: StagesConfig,
    image: Pool,
    audio: Pool,
    text: Pool,
    system: System,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for pool in [&self.image, &self.audio, &self.text] {
            pool.desk.inbox.close();
        }
        self.system.stop();
        // A text job may hold the last handle: a worker cannot wait for its own end, so it leaves the join out.
        if let Some(thread) = self.thread.take()
            && !ON_WORKER.get()
            && thread.join().is_err()
        {
            tracing::error!("the thread that hosts the stages ended with a panic");
        }
    }
}

thread_local! {
    static ON_WORKER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A pool's inbox and counters, shared with its workers.
struct Desk {
    inbox: Inbox,
    busy: AtomicUsize,
    workers: usize,
}

impl Desk {
    fn new(name: &'static str, workers: usize, config: &StagesConfig) -> Self {
        Self { inbox: Inbox::new(name, config.inbox, config.inbox_bytes), busy: AtomicUsize::new(0), workers }
    }

    fn work_off(&self) {
        while let Some((queued, job)) = self.inbox.pop() {
            self.busy.fetch_add(1, Ordering::Relaxed);
            (job.run)(queued);
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

struct Pool {
    desk: Arc<Desk>,
    workers: Vec<Addr<Worker>>,
}

impl Pool {
    fn depth(&self) -> StageDepth {
        let Desk { inbox, busy, workers } = &*self.desk;
        StageDepth { waiting: inbox.len(), busy: busy.load(Ordering::Relaxed), workers: *workers }
    }

    async fn media<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Cancel) -> Result<Worked<T>> + Send + 'static,
    ) -> Result<Prepared<T>> {
        let (Worked { value, warnings, source }, queued, worked) = self.submit(bytes, work).await?;
        Ok(Prepared { value, queued, worked, warnings, source })
    }

    async fn submit<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Cancel) -> Result<T> + Send + 'static,
    ) -> Result<(T, Duration, Duration)> {
        let waiting = Waiting::default();
        let cancel = waiting.cancel();
        let (reply, answer) = flume::bounded(1);
        let theirs = cancel.clone();
        let run = move |queued| {
            let begun = Instant::now();
            let result = guarded(|| work(&theirs));
            // Nobody to tell when the caller has gone meanwhile.
            let _gone = reply.try_send(result.map(|value| (value, queued, begun.elapsed())));
        };
        self.desk.inbox.push(Job { run: Box::new(run), cancel, bytes })?;
        for worker in &self.workers {
            // Full: a wake is on its way already. Closed: the job is dropped with the inbox and the answer says so.
            let _woken = worker.try_send(Wake);
        }
        let outcome = answer.recv_async().await;
        drop(waiting);
        outcome.map_err(|_| StageError::new(ErrorKind::Internal, "the service is shutting down"))?
    }
}

struct Worker {
    desk: Arc<Desk>,
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1);
        ON_WORKER.set(true);
    }
}

struct Wake;

impl Message for Wake {
    type Result = ();
}

impl Handler<Wake> for Worker {
    type Result = ();

    fn handle(&mut self, _: Wake, _: &mut Self::Context) {
        self.desk.work_off();
    }
}

type Started = std::io::Result<(System, [Vec<Addr<Worker>>; 3])>;

/// Body of the thread that hosts the actor system; returns when the system is stopped and all workers have ended.
fn host(desks: &[Arc<Desk>; 3], ready: &flume::Sender<Started>) {
    let runner = System::new();
    let mut arbiters = Vec::new();
    let mut pools = [const { Vec::new() }; 3];
    for (desk, pool) in desks.iter().zip(&mut pools) {
        for _ in 0..desk.workers {
            match Arbiter::try_new() {
                Ok(arbiter) => {
                    let desk = Arc::clone(desk);
                    pool.push(Worker::start_in_arbiter(&arbiter.handle(), move |_| Worker { desk }));
                    arbiters.push(arbiter);
                }
                Err(error) => {
                    let _told = ready.send(Err(error));
                    return;
                }
            }
        }
    }
    let _told = ready.send(Ok((System::current(), pools)));
    if let Err(error) = runner.run() {
        tracing::error!(%error, "the actor system of the stages ended early");
    }
    for arbiter in arbiters {
        arbiter.stop();
        if arbiter.join().is_err() {
            tracing::error!("a stage worker ended with a panic");
        }
    }
}

fn no_start(error: &dyn std::error::Error) -> StageError {
    StageError::new(ErrorKind::Internal, format!("the stages cannot start their threads: {error}"))
}
