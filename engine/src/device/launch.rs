//! Launch: the plan's decode steps and slices on the device, each settled before the next.

use std::time::{Duration, Instant};

use weft_kernels::Backend;

use super::Device;
use super::media::{Run, tower, units};
use super::sequence::{Phase, Progress};
use super::step::Share;
use crate::device::shared::MediaKey;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::Piece;
use crate::scheduler::{
    Chunk, DecodeStep, EncodeWork, Kind, Plan, RunKey, SequenceKey, Slice, Spend, Work, next_piece,
};
use crate::stats::{StepKind, StepRecord, count};

impl<B: Backend> Device<B> {
    pub(super) fn launch(&mut self, plan: Plan) {
        for model in 0..self.models.len() {
            if !plan.decode.iter().any(|step| step.model == model) {
                self.models[model].decoded = None;
            }
        }
        if !plan.decode.is_empty() {
            self.shared.counters.doing(Some(StepKind::Decode));
        }
        for step in plan.decode {
            self.decode(step);
        }
        let rode = std::mem::take(&mut self.rode);
        let began = Instant::now();
        self.undisturbed = plan.slices.is_empty();
        for slice in plan.slices {
            self.shared.counters.doing(Some(match slice {
                Slice::Prefill { .. } => StepKind::Prefill,
                Slice::Encode { .. } => StepKind::Encode,
            }));
            match slice {
                Slice::Prefill { model, chunks, .. } => self.prefill(model, &chunks),
                Slice::Encode { work: EncodeWork::Begin(media), spend, .. } => {
                    let before = Instant::now();
                    if let Some(run) = self.begin(&media) {
                        match spend {
                            // Only begun in this round.
                            Spend::Within(Duration::ZERO) => {}
                            _ => self.advance(run, spend, before),
                        }
                    }
                }
                Slice::Encode { work: EncodeWork::Resume(run), spend, .. } => {
                    self.advance(run, spend, Instant::now());
                }
            }
        }
        self.shared.counters.doing(None);
        self.debt = Plan::debt_after(plan.slack, self.debt, began.elapsed() + rode);
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
        self.draft(step.model, &mut shares);
        let rows = shares.iter().map(|share| share.positions.len() + share.drafts.len()).sum();
        let work = Work { model: step.model, kind: Kind::Decode, size: rows };
        let riders = self.prompt_shares(&step.riders);
        let riding = riders.iter().map(|share| share.positions.len()).sum();
        shares.extend(riders);
        let began = Instant::now();
        let delay = self.models[step.model].decoded.map_or(Duration::ZERO, |ended| began - ended);
        self.steps += 1;
        let outcomes = self.step(step.model, shares);
        let ended = Instant::now();
        self.models[step.model].decoded = Some(ended);
        let measured = Measured { began, took: ended - began, layers: 0, delay };
        if riding == 0 {
            self.learn(work, measured);
            if self.undisturbed {
                self.cost.observe(Work { kind: Kind::LoneDecode, ..work }, ended - began);
            }
        } else {
            let alone = self.cost.predict(work);
            let ride = Work { kind: Kind::Ride, size: riding, ..work };
            let added = (ended - began).saturating_sub(alone);
            self.record(work, measured, alone + self.cost.predict(ride));
            self.cost.observe(ride, added);
            self.rode += added;
            count(&self.shared.counters.tokens_in, riding);
        }
        count(&self.shared.counters.decode_steps, 1);
        self.settle_step(outcomes);
    }

    /// The shares of planned prompt rows, in a state to run.
    fn prompt_shares(&mut self, chunks: &[Chunk]) -> Vec<Share> {
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
        shares
    }

    fn prefill(&mut self, model: usize, chunks: &[Chunk]) {
        let shares = self.prompt_shares(chunks);
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

    /// Advances a run piece by piece for what it may spend since `before`.
    fn advance(&mut self, key: RunKey, spend: Spend, before: Instant) {
        count(&self.shared.counters.encoder_slices, 1);
        let mut first = true;
        let until = match spend {
            Spend::Layers(layers) => self.media.run(key).map(|run| run.state.done().saturating_add(layers)),
            Spend::Within(_) => None,
        };
        while let Some(run) = self.media.run(key) {
            let left = match spend {
                Spend::Within(time) => time.saturating_sub(before.elapsed()),
                Spend::Layers(_) => Duration::MAX,
            };
            let mut running = run.running(key);
            if let Some(until) = until {
                running.left = running.left.min(until.saturating_sub(run.state.done()));
                let layers_go_on = run.state.done() < run.state.layers();
                if running.left == 0 && layers_go_on {
                    return;
                }
            }
            let Some(next) = next_piece(&self.cost, &running, left, first) else { return };
            first = false;
            let began = Instant::now();
            let outputs = run.state.advance_piece(&self.backend, next.piece);
            let outputs = outputs.and_then(|outputs| Ok(self.backend.synchronize().map(|()| outputs)?));
            let took = began.elapsed();
            match outputs {
                Ok(outputs) => {
                    // Convolutions take whole clips or chunks, so more rows may have gone through than were asked for.
                    let after = run.state.place();
                    let same = after.part == running.place.part && outputs.is_none();
                    let rows = running.place.rows - if same { after.rows } else { 0 };
                    let (size, layers) = match next.piece {
                        Piece::Layers(layers) => (next.work.size, layers),
                        Piece::Rows(_) => (rows, 0),
                    };
                    let work = Work { size, ..next.work };
                    self.learn(work, Measured { began, took, layers, delay: Duration::ZERO });
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
    }

    /// Learns from a launch and records it. Encoder layers are learned one by one.
    fn learn(&mut self, work: Work, measured: Measured) {
        let pieces = u32::try_from(measured.layers.max(1)).unwrap_or(u32::MAX);
        let predicted = self.cost.predict(work).saturating_mul(pieces);
        self.cost.observe(work, measured.took / pieces);
        self.record(work, measured, predicted);
    }

    fn record(&self, work: Work, measured: Measured, predicted: Duration) {
        let Measured { began, took, layers, delay } = measured;
        self.shared.steps.push(StepRecord {
            kind: match work.kind {
                Kind::Decode | Kind::LoneDecode => StepKind::Decode,
                Kind::Prefill | Kind::Ride => StepKind::Prefill,
                Kind::Begin(_) | Kind::Layer(_) | Kind::Rows(..) => StepKind::Encode,
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
