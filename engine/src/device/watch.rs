//! The device thread's look at itself: how long the queue is, and whether something is stuck.
//!
//! A request is stuck when the plan finds nothing to run although its reader keeps up: then nothing that happens on this
//! device will ever move it. Such a request fails after a bound and others go on. (A launch that never returns cannot be
//! ended from here; the beats stand still then, which readers of [`crate::stats::EngineStats`] see.)

use std::time::{Duration, Instant};

use weft_kernels::Backend;

use super::Device;
use super::sequence::{Phase, Progress};
use crate::error::{EngineError, ErrorKind};
use crate::price::encode_time;
use crate::scheduler::{Kind, SequenceKey, Tower, Work};
use crate::stats::{count, gauge};

/// Longest time in which nothing can run while requests are open.
const STUCK: Duration = Duration::from_secs(30);
/// Time between two predictions of the queue.
const BETWEEN: Duration = Duration::from_millis(100);

/// What the watch remembers between beats.
#[derive(Debug, Default)]
pub(super) struct Watch {
    predicted: Option<Instant>,
    idle_since: Option<Instant>,
}

impl<B: Backend> Device<B> {
    /// After every round; `idle` when it had nothing to run.
    pub(super) fn watch(&mut self, idle: bool) {
        let now = Instant::now();
        if self.watch.predicted.is_none_or(|last| now - last >= BETWEEN) {
            self.watch.predicted = Some(now);
            self.shared.publish(&self.cost);
            let millis = self.queue().as_millis();
            gauge(&self.shared.counters.queue_ms, usize::try_from(millis).unwrap_or(usize::MAX));
        }
        let stuck: Vec<SequenceKey> = match idle {
            true => self.sequences.iter().filter(|(_, sequence)| sequence.flows()).map(|(key, _)| *key).collect(),
            false => Vec::new(),
        };
        if stuck.is_empty() {
            self.watch.idle_since = None;
            return;
        }
        if now - *self.watch.idle_since.get_or_insert(now) < STUCK {
            return;
        }
        self.watch.idle_since = None;
        for key in stuck {
            count(&self.shared.counters.stuck, 1);
            let detail = self.sequences.get(&key).map_or("", |sequence| match &sequence.phase {
                Phase::Waiting(_) => "admission",
                Phase::Admitted { progress: Progress::Prompt { .. }, .. } => "a medium of its prompt",
                Phase::Admitted { progress: Progress::Answer { .. }, .. } => "its next token",
            });
            tracing::error!(detail, "a request made no progress and was ended");
            let text = format!("the request made no progress for {} s: it waited for {detail}", STUCK.as_secs());
            self.fail(key, EngineError::new(ErrorKind::Internal, text));
        }
    }

    /// Predicted time of all work that is open, were it run in turns.
    fn queue(&self) -> Duration {
        let state = self.survey();
        let mut time = Duration::ZERO;
        for run in &state.runs {
            time = time.saturating_add(crate::scheduler::remaining(&self.cost, run));
        }
        for medium in &state.media {
            let model = medium.key.model;
            let layers = self.models[model].facts.encoder_layers[usize::from(medium.tower == Tower::Audio)];
            time = time.saturating_add(encode_time(&self.cost, model, (medium.tower, layers), medium.units));
        }
        for (model, room) in state.rooms.iter().enumerate() {
            let own = || self.sequences.values().filter(move |sequence| sequence.model == model);
            let rows: usize = own()
                .map(|sequence| match &sequence.phase {
                    Phase::Waiting(_) => sequence.prompt.ids.len(),
                    Phase::Admitted { progress: Progress::Prompt { done }, .. } => sequence.prompt.ids.len() - done,
                    Phase::Admitted { progress: Progress::Answer { .. }, .. } => 0,
                })
                .sum();
            let chunk = self.limits.prefill_chunk;
            let prefill = self.cost.predict(Work { model, kind: Kind::Prefill, size: rows.min(chunk) });
            time = time.saturating_add(prefill.mul_f64(rows as f64 / rows.min(chunk).max(1) as f64));
            let tokens: usize = own().map(|sequence| sequence.expects()).sum();
            let batch = (room.running + state.waiting.len()).clamp(1, self.limits.max_batch);
            let step = self.cost.predict(Work { model, kind: Kind::Decode, size: batch });
            time = time.saturating_add(step.mul_f64(tokens as f64 / batch as f64));
        }
        time
    }
}
