//! Launch: the plan's decode steps and slices on the device, each settled before the next.

use std::time::{Duration, Instant};

use weft_kernels::Backend;

use super::Device;
use super::media::{Run, tower, units};
use super::sequence::{Phase, Progress};
use super::step::Share;
use crate::device::shared::MediaKey;
use crate::error::{EngineError, ErrorKind, Result};
use crate::scheduler::{Chunk, DecodeStep, EncodeWork, Kind, Plan, RunKey, SequenceKey, Slice, Work};
use crate::stats::{StepKind, StepRecord, count};

impl<B: Backend> Device<B> {
    pub(super) fn launch(&mut self, plan: Plan) {
        for model in 0..self.models.len() {
            if !plan.decode.iter().any(|step| step.model == model) {
                self.models[model].decoded = None;
            }
        }
        for step in plan.decode {
            self.decode(step);
        }
        let began = Instant::now();
        for slice in plan.slices {
            match slice {
                Slice::Prefill { model, chunks, .. } => self.prefill(model, &chunks),
                Slice::Encode { work: EncodeWork::Begin(media), layers, .. } => {
                    if let Some(run) = self.begin(&media)
                        && layers > 0
                    {
                        self.advance(run, layers);
                    }
                }
                Slice::Encode { work: EncodeWork::Resume(run), layers, .. } => self.advance(run, layers),
            }
        }
        self.debt = Plan::debt_after(plan.slack, self.debt, began.elapsed());
    }

    fn decode(&mut self, step: DecodeStep) {
        let mut shares = Vec::new();
        for key in step.sequences {
            let Some(sequence) = self.sequences.get(&key) else { continue };
            let Phase::Admitted { progress: Progress::Answer { cached, .. }, .. } = sequence.phase else { continue };
            // What was chosen since the last step is not in the cache yet: this step puts it there.
            shares.push(Share { key, positions: cached..sequence.known(), drafts: Vec::new() });
        }
        if shares.is_empty() {
            return;
        }
        let rows = shares.iter().map(|share| share.positions.len() + share.drafts.len()).sum();
        let work = Work { model: step.model, kind: Kind::Decode, size: rows };
        let began = Instant::now();
        let delay = self.models[step.model].decoded.map_or(Duration::ZERO, |ended| began - ended);
        self.steps += 1;
        let outcomes = self.step(step.model, shares);
        let ended = Instant::now();
        self.models[step.model].decoded = Some(ended);
        self.learn(work, Measured { began, took: ended - began, layers: 0, delay });
        count(&self.shared.counters.decode_steps, 1);
        self.settle_step(outcomes);
    }

    fn prefill(&mut self, model: usize, chunks: &[Chunk]) {
        let mut shares = Vec::new();
        for chunk in chunks {
            if let Err(error) = self.write_cross(chunk.key) {
                self.fail(chunk.key, error);
                continue;
            }
            let Some(sequence) = self.sequences.get_mut(&chunk.key) else { continue };
            let Phase::Admitted { progress: Progress::Prompt { done }, .. } = sequence.phase else { continue };
            sequence.touch();
            shares.push(Share { key: chunk.key, positions: done..done + chunk.rows, drafts: Vec::new() });
        }
        if shares.is_empty() {
            return;
        }
        let rows = shares.iter().map(|share| share.positions.len()).sum();
        let began = Instant::now();
        let outcomes = self.step(model, shares);
        let took = began.elapsed();
        self.learn(
            Work { model, kind: Kind::Prefill, size: rows },
            Measured { began, took, layers: 0, delay: Duration::ZERO },
        );
        count(&self.shared.counters.prefill_slices, 1);
        count(&self.shared.counters.tokens_in, rows);
        self.settle_step(outcomes);
    }

    /// Writes the keys and values of the clip that a sequence attends to, before its first row.
    fn write_cross(&mut self, key: SequenceKey) -> Result<()> {
        let Some(sequence) = self.sequences.get_mut(&key) else { return Ok(()) };
        let Phase::Admitted { seat, .. } = &mut sequence.phase else { return Ok(()) };
        let (Some(cross), Some(ticket)) = (&mut seat.cross, &sequence.prompt.cross) else { return Ok(()) };
        if cross.written {
            return Ok(());
        }
        let missing = || EngineError::new(ErrorKind::Internal, "a planned sequence has no encoder output");
        let encoded = self.media.output(&ticket.lease.key).ok_or_else(missing)?;
        let slots: Vec<u32> = (0..cross.frames).map(|frame| cross.table.slot(frame)).collect();
        let model = &mut self.models[sequence.model];
        model.loaded.write_cross(&self.backend, encoded, &slots, &mut model.pages)?;
        cross.written = true;
        let used = ticket.lease.key;
        self.media.used(&used);
        Ok(())
    }

    /// Begins an encoder run over these media.
    fn begin(&mut self, media: &[MediaKey]) -> Option<RunKey> {
        let inputs = self.media.inputs(media);
        let (first, medium) = inputs.first()?;
        let (model, tower) = (first.model, tower(medium));
        let keys: Vec<MediaKey> = inputs.iter().map(|(key, _)| *key).collect();
        let size = inputs.iter().map(|(_, medium)| units(medium)).sum();
        let given: Vec<_> = inputs.iter().map(|(_, medium)| &**medium).collect();
        let began = Instant::now();
        let state = self.models[model].loaded.begin_encode(&self.backend, &given);
        let state = state.and_then(|state| Ok(self.backend.synchronize().map(|()| state)?));
        match state {
            Ok(state) => {
                let measured = Measured { began, took: began.elapsed(), layers: 0, delay: Duration::ZERO };
                self.learn(Work { model, kind: Kind::Begin(tower), size }, measured);
                Some(self.media.began(Run { model, tower, units: size, media: keys, state }))
            }
            Err(error) => {
                tracing::warn!(%error, media = keys.len(), "an encoder run did not begin");
                self.media.failed(&keys, &error);
                None
            }
        }
    }

    /// Advances a run by up to this many layers.
    fn advance(&mut self, key: RunKey, layers: usize) {
        let Some(run) = self.media.run(key) else { return };
        let before = run.state.done();
        let layers = layers.min(run.state.layers().saturating_sub(before)).max(1);
        let model = run.model;
        let began = Instant::now();
        let outputs = self.models[model].loaded.advance(&self.backend, &mut run.state, layers);
        let outputs = outputs.and_then(|outputs| Ok(self.backend.synchronize().map(|()| outputs)?));
        let took = began.elapsed();
        let (tower, size, ran) = (run.tower, run.units, run.state.done().saturating_sub(before).max(1));
        count(&self.shared.counters.encoder_slices, 1);
        match outputs {
            Ok(outputs) => {
                let measured = Measured { began, took, layers: ran, delay: Duration::ZERO };
                self.learn(Work { model, kind: Kind::Layer(tower), size }, measured);
                if let Some(outputs) = outputs {
                    count(&self.shared.counters.encoder_cache_misses, outputs.len());
                    self.media.finished(&self.backend, key, outputs);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "an encoder run failed");
                self.media.run_failed(key, &error);
            }
        }
    }

    /// Learns from a launch and records it. Encoder layers are learned one by one.
    fn learn(&mut self, work: Work, measured: Measured) {
        let Measured { began, took, layers, delay } = measured;
        let pieces = u32::try_from(layers.max(1)).unwrap_or(u32::MAX);
        let predicted = self.cost.predict(work).saturating_mul(pieces);
        self.cost.observe(work, took / pieces);
        self.shared.steps.push(StepRecord {
            kind: match work.kind {
                Kind::Decode => StepKind::Decode,
                Kind::Prefill => StepKind::Prefill,
                Kind::Begin(_) | Kind::Layer(_) => StepKind::Encode,
            },
            model: work.model,
            rows: work.size,
            layers,
            began_us: micros(began.saturating_duration_since(self.epoch)),
            predicted_us: micros(predicted),
            took_us: micros(took),
            decode_delay_us: micros(delay),
        });
    }
}

/// A launch as it went.
struct Measured {
    began: Instant,
    took: Duration,
    /// Encoder layers.
    layers: usize,
    /// Since the decode step before.
    delay: Duration,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
