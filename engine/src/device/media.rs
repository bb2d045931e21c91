//! Media on the device thread: waiting for their encoder, in a run, encoded, or failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_kernels::Backend;

use crate::books::EncodedBooks;
use crate::device::command::EncodeOrder;
use crate::device::shared::{MediaKey, MediaLease};
use crate::error::{EngineError, ErrorKind};
use crate::families::EncoderRun;
use crate::media::Medium;
use crate::request::Class;
use crate::scheduler::{Claim, RunKey, Running, Tower, WaitingMedium};

/// All media of all models.
pub(super) struct MediaDesk<B: Backend> {
    jobs: BTreeMap<MediaKey, Job>,
    runs: BTreeMap<RunKey, Run<B>>,
    failed: BTreeMap<MediaKey, (Weak<MediaLease>, EngineError)>,
    outputs: EncodedBooks<MediaKey, Weak<MediaLease>, B::Tensor>,
    started: u64,
}

/// A medium that is not encoded yet.
struct Job {
    medium: Arc<Medium>,
    lease: Weak<MediaLease>,
    class: Class,
    arrived: Instant,
    /// Of the most pressing request that waits for it.
    deadline: Option<Instant>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    /// Waiting again, after a batch with it failed.
    Alone,
    InRun,
}

/// Media that go through an encoder together.
pub(super) struct Run<B: Backend> {
    pub(super) model: usize,
    pub(super) tower: Tower,
    pub(super) units: usize,
    pub(super) media: Vec<MediaKey>,
    pub(super) state: EncoderRun<B>,
}

impl<B: Backend> Run<B> {
    /// As the plan sees it, whoever waits for it.
    pub(super) fn running(&self, key: RunKey) -> Running {
        Running {
            key,
            model: self.model,
            tower: self.tower,
            claim: Claim { class: Class::Batch, since: Duration::ZERO, deadline: None },
            units: self.units,
            left: self.state.layers().saturating_sub(self.state.done()),
            place: self.state.place(),
        }
    }
}

/// What a prompt finds when it wants a medium.
pub(super) enum Readiness<'a> {
    Ready,
    Coming,
    Failed(&'a EngineError),
    /// Never ordered: a fault of this crate.
    Unknown,
}

/// What became of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ordered {
    Hit,
    Miss,
}

impl<B: Backend> MediaDesk<B> {
    pub(super) fn new(cache_bytes: usize) -> Self {
        Self {
            jobs: BTreeMap::new(),
            runs: BTreeMap::new(),
            failed: BTreeMap::new(),
            outputs: EncodedBooks::new(cache_bytes),
            started: 0,
        }
    }

    /// Takes an order. `None` when nobody wants it any more.
    pub(super) fn order(&mut self, order: EncodeOrder) -> Option<Ordered> {
        let lease = order.lease.upgrade()?;
        let key = lease.key;
        self.failed.remove(&key);
        if let Some(bytes) = self.outputs.adopt(&key, order.lease.clone()) {
            lease.recharge(bytes);
            return Some(Ordered::Hit);
        }
        // A job whose tickets were all dropped goes on under the new ones.
        let job = self.jobs.entry(key).or_insert_with(|| Job {
            medium: Arc::new(order.medium),
            lease: Weak::new(),
            class: order.class,
            arrived: order.arrived,
            deadline: None,
            stage: Stage::Waiting,
        });
        job.lease = order.lease;
        job.class = job.class.min(order.class);
        Some(Ordered::Miss)
    }

    /// A request of this class and deadline waits for the medium.
    pub(super) fn claim(&mut self, key: &MediaKey, class: Class, deadline: Option<Instant>) {
        if let Some(job) = self.jobs.get_mut(key) {
            job.class = job.class.min(class);
            job.deadline = job.deadline.into_iter().chain(deadline).min();
        }
    }

    pub(super) fn readiness(&self, key: &MediaKey) -> Readiness<'_> {
        if self.outputs.peek(key).is_some() {
            Readiness::Ready
        } else if let Some((_, error)) = self.failed.get(key) {
            Readiness::Failed(error)
        } else if self.jobs.contains_key(key) {
            Readiness::Coming
        } else {
            Readiness::Unknown
        }
    }

    /// The encoder output of a medium that is ready.
    pub(super) fn output(&self, key: &MediaKey) -> Option<&B::Tensor> {
        self.outputs.peek(key)
    }

    /// Counts a use of an output, for the order of eviction.
    pub(super) fn used(&mut self, key: &MediaKey) {
        self.outputs.get(key);
    }

    /// The media of a run to begin, in this order. Those that are gone are left out.
    pub(super) fn inputs(&self, keys: &[MediaKey]) -> Vec<(MediaKey, Arc<Medium>)> {
        keys.iter().filter_map(|key| Some((*key, self.jobs.get(key)?.medium.clone()))).collect()
    }

    /// Enters a run that has begun.
    pub(super) fn began(&mut self, run: Run<B>) -> RunKey {
        for key in &run.media {
            if let Some(job) = self.jobs.get_mut(key) {
                job.stage = Stage::InRun;
            }
        }
        self.started += 1;
        let key = RunKey(self.started);
        self.runs.insert(key, run);
        key
    }

    pub(super) fn run(&mut self, key: RunKey) -> Option<&mut Run<B>> {
        self.runs.get_mut(&key)
    }

    /// A run gave its outputs, one a medium.
    pub(super) fn finished(&mut self, backend: &B, key: RunKey, outputs: Vec<B::Tensor>) {
        let Some(run) = self.runs.remove(&key) else { return };
        if outputs.len() != run.media.len() {
            let detail = format!("an encoder gave {} outputs for {} media", outputs.len(), run.media.len());
            self.failed(&run.media, &EngineError::new(ErrorKind::Internal, detail));
            return;
        }
        for (key, output) in run.media.into_iter().zip(outputs) {
            let Some(job) = self.jobs.remove(&key) else { continue };
            let (rows, cols) = backend.shape(&output);
            let bytes = rows * cols * size_of::<f32>();
            if let Some(lease) = job.lease.upgrade() {
                if lease.shape.encoded_rows() != rows {
                    let detail = format!("an encoder gave {rows} rows, not {}", lease.shape.encoded_rows());
                    self.failed.insert(key, (job.lease, EngineError::new(ErrorKind::Internal, detail)));
                    continue;
                }
                lease.recharge(bytes);
            }
            self.outputs.insert(key, job.lease, (output, bytes));
        }
    }

    /// A run failed: a lone medium fails, several get another try each on its own, so that only the culprit's requests
    /// fail.
    pub(super) fn run_failed(&mut self, key: RunKey, error: &EngineError) {
        if let Some(run) = self.runs.remove(&key) {
            self.failed(&run.media, error);
        }
    }

    /// As [`MediaDesk::run_failed`], for a run that never began.
    pub(super) fn failed(&mut self, media: &[MediaKey], error: &EngineError) {
        if let [key] = media {
            if let Some(job) = self.jobs.remove(key) {
                self.failed.insert(*key, (job.lease, error.clone()));
            }
            return;
        }
        for key in media {
            if let Some(job) = self.jobs.get_mut(key) {
                job.stage = Stage::Alone;
            }
        }
    }

    /// Drops what nobody wants: waiting media, runs of which no medium is wanted, failures, outputs over the budget.
    pub(super) fn sweep(&mut self) {
        let jobs = &self.jobs;
        let wanted = |key: &MediaKey| jobs.get(key).is_some_and(|job| job.lease.strong_count() > 0);
        self.runs.retain(|_, run| run.media.iter().any(wanted));
        let in_run: Vec<MediaKey> = self.runs.values().flat_map(|run| run.media.iter().copied()).collect();
        self.jobs.retain(|key, job| job.lease.strong_count() > 0 || in_run.contains(key));
        self.failed.retain(|_, (lease, _)| lease.strong_count() > 0);
        self.outputs.evict();
    }

    /// Media whose encoder has not finished.
    pub(super) fn pending(&self) -> usize {
        self.jobs.len()
    }

    /// Bytes of encoder outputs.
    pub(super) fn bytes(&self) -> usize {
        self.outputs.bytes()
    }

    /// The waiting media and the runs, as the plan sees them; `clock` gives the device's time of an instant.
    pub(super) fn survey(&self, clock: impl Fn(Instant) -> Duration) -> (Vec<WaitingMedium>, Vec<Running>) {
        let claim =
            |job: &Job| Claim { class: job.class, since: clock(job.arrived), deadline: job.deadline.map(&clock) };
        let waiting = self.jobs.iter().filter(|(_, job)| job.stage != Stage::InRun);
        let media = waiting.map(|(key, job)| WaitingMedium {
            key: *key,
            tower: tower(&job.medium),
            claim: claim(job),
            units: units(&job.medium),
            alone: job.stage == Stage::Alone,
        });
        let runs = self.runs.iter().map(|(key, run)| {
            let claims = run.media.iter().filter_map(|key| self.jobs.get(key)).map(claim);
            let running = run.running(*key);
            Running { claim: claims.reduce(Claim::with).unwrap_or(running.claim), ..running }
        });
        (media.collect(), runs.collect())
    }
}

/// The encoder a medium goes to.
pub(super) fn tower(medium: &Medium) -> Tower {
    match medium {
        Medium::Image(_) => Tower::Vision,
        Medium::Audio(_) => Tower::Audio,
    }
}

/// Its patches or frames.
pub(super) fn units(medium: &Medium) -> usize {
    match medium {
        Medium::Image(patches) => patches.grid.patches(),
        Medium::Audio(mel) => mel.frames,
    }
}
