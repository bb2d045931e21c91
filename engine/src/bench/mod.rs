//! Measurements of a running engine, through its public door.
//!
//! Times come from the device thread's own records of its launches, so that channels and callers are not in them; rates
//! over a whole run include everything. Every figure is a median of repeats after a warm-up.

pub mod mixed;
mod random;

use std::time::{Duration, Instant};

pub use random::write_checkpoint;
pub use weft_kernels::measure::{GpuCeilings, copy_bandwidth};

use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::{Engine, Model, StepKind, StepRecord};
use crate::media::Medium;
use crate::request::{Class, Generate, RequestId, Sampling, Segment, TokenEvent, TokenRules};

/// What the first GPU can do; see [`weft_kernels::measure::gpu_ceilings`].
pub fn gpu_ceilings() -> Result<GpuCeilings> {
    Ok(weft_kernels::measure::gpu_ceilings()?)
}

/// Decode steps at one batch size.
#[derive(Debug, Clone, Copy)]
pub struct DecodeCase {
    /// Sequences.
    pub batch: usize,
    /// Prompt tokens of each.
    pub context: usize,
    /// Steps measured.
    pub steps: usize,
}

/// What decode steps took.
#[derive(Debug, Clone, Copy)]
pub struct DecodeFigures {
    /// Median time from one step's begin to the next one's.
    pub step: Duration,
    /// Median share of a step that the device was launching or computing.
    pub busy: f64,
    /// Bytes that a step reads at least: all weights once, and the keys and values of the middle step.
    pub bytes: u64,
}

/// Measures decode steps of `case.batch` sequences with random prompts.
pub fn decode(engine: &Engine, model: &Model, case: DecodeCase) -> Result<DecodeFigures> {
    let from = engine.steps_since(u64::MAX).1;
    let streams = (0..case.batch).map(|n| start(model, case.context, case.steps + WARM_UP, n as u64));
    let streams = streams.collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let drains: Vec<_> = streams.into_iter().map(|stream| scope.spawn(move || drain(stream))).collect();
        drains.into_iter().map(|drain| drain.join().unwrap_or_else(|_| Err(incomplete()))).collect::<Result<Vec<_>>>()
    })?;
    let (records, _) = engine.steps_since(from);
    let full: Vec<_> = records.iter().filter(|r| r.kind == StepKind::Decode && r.rows == case.batch).collect();
    let steps = full.get(WARM_UP.min(full.len() / 2)..).unwrap_or_default();
    if steps.len() < 3 {
        return Err(EngineError::new(ErrorKind::Internal, "too few full decode steps were recorded to measure"));
    }
    let step = median(steps.windows(2).map(|pair| pair[1].began_us - pair[0].began_us));
    let took = median(steps.iter().map(|r| r.took_us));
    let keys = (case.context + WARM_UP + case.steps / 2) * case.batch;
    let bytes = model.card().weight_bytes + (keys * model.kv_bytes_per_token()) as u64;
    Ok(DecodeFigures { step: Duration::from_micros(step), busy: took as f64 / step.max(1) as f64, bytes })
}

/// Median time to prefill a random prompt of this many tokens, over `repeats` prompts.
pub fn prefill(engine: &Engine, model: &Model, tokens: usize, repeats: usize) -> Result<Duration> {
    let mut times = Vec::new();
    for repeat in 0..=repeats {
        let from = engine.steps_since(u64::MAX).1;
        drain(start(model, tokens, 1, 1000 + repeat as u64)?)?;
        let (records, _) = engine.steps_since(from);
        times.push(records.iter().filter(|r| r.kind == StepKind::Prefill).map(|r| r.took_us).sum());
    }
    // The first one warmed up.
    Ok(Duration::from_micros(median(times.drain(1..))))
}

/// Median device time in which `batch` media that `make` gives (each time different ones) go through their encoder.
pub fn encode(engine: &Engine, model: &Model, case: EncodeCase, make: impl Fn(u64) -> Medium) -> Result<Duration> {
    let mut times = Vec::new();
    for repeat in 0..=case.repeats {
        let from = engine.steps_since(u64::MAX).1;
        let media: Vec<_> = (0..case.batch).map(|n| make((repeat * case.batch + n) as u64)).collect();
        let done = engine.stats().encoder_cache_misses + case.batch as u64;
        let tickets = media.into_iter().map(|medium| model.encode(medium)).collect::<Result<Vec<_>>>()?;
        let began = Instant::now();
        while engine.stats().encoder_cache_misses < done {
            if !engine.stats().alive || began.elapsed() > PATIENCE {
                return Err(EngineError::new(ErrorKind::Internal, "the encoder did not finish the media to measure"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        drop(tickets);
        times.push(encoder_time(&engine.steps_since(from).0).as_micros() as u64);
    }
    Ok(Duration::from_micros(median(times.drain(1..))))
}

/// Media that go through an encoder together.
#[derive(Debug, Clone, Copy)]
pub struct EncodeCase {
    /// Media at once.
    pub batch: usize,
    /// Runs measured.
    pub repeats: usize,
}

fn encoder_time(records: &[StepRecord]) -> Duration {
    Duration::from_micros(records.iter().filter(|r| r.kind == StepKind::Encode).map(|r| r.took_us).sum())
}

/// Longest wait for one batch of media.
const PATIENCE: Duration = Duration::from_secs(300);

/// Steps before the measured ones.
const WARM_UP: usize = 4;

fn start(model: &Model, context: usize, answer: usize, seed: u64) -> Result<crate::handle::TokenStream> {
    model.generate(request(vec![Segment::Text(ids(model, context, seed))], answer, seed))
}

/// A greedy request that ends at its length alone.
fn request(prompt: Vec<Segment>, answer: usize, seed: u64) -> Generate {
    Generate {
        id: RequestId(u64::MAX - seed),
        prompt,
        sampling: Sampling::default(),
        rules: TokenRules::Free,
        end_tokens: Vec::new(),
        max_tokens: answer,
        watch: Vec::new(),
        class: Class::Interactive,
        deadline: None,
    }
}

/// A random prompt.
fn ids(model: &Model, count: usize, seed: u64) -> Vec<u32> {
    let vocabulary = model.card().vocabulary as u64;
    // A multiplicative generator: prompts differ, runs repeat.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary) as u32
    };
    (0..count.max(1)).map(next).collect()
}

fn drain(mut stream: crate::handle::TokenStream) -> Result<()> {
    while let Some(event) = stream.next_blocking() {
        match event {
            TokenEvent::Failed(error) => return Err(error),
            TokenEvent::Finished { .. } => return Ok(()),
            TokenEvent::Started { .. } | TokenEvent::Token(_) => {}
        }
    }
    Err(incomplete())
}

fn incomplete() -> EngineError {
    EngineError::new(ErrorKind::Internal, "an answer ended without its last event")
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
