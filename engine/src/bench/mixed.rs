//! Decode steps beside encoders on a running engine: what running answers and new pictures see under one policy.
//!
//! Two loads. The **flood**: some streams decode while pictures wait for their encoder all the time. The **trace**: texts
//! and bursts of pictures come by the clock. Inter-token times are the device's own: from the end of a model's decode
//! step to the end of its next, while sequences were ready to decode, weighted by sequences.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{drain, start};
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::{Engine, Model, StepKind, StepRecord};
use crate::media::Medium;
use crate::request::{Segment, TokenEvent};

/// Makes the picture of a number.
pub type MakePicture<'a> = &'a (dyn Fn(u64) -> Medium + Sync);

/// What the flood is made of.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Streams that decode.
    pub streams: usize,
    /// Pictures that wait from the beginning.
    pub pictures: usize,
}

/// What running answers saw.
#[derive(Debug, Clone, Copy, Default)]
pub struct InterToken {
    /// Median.
    pub p50: Duration,
    /// The time that 99 of 100 tokens kept.
    pub p99: Duration,
    /// Tokens.
    pub tokens: usize,
}

/// What a flood did.
#[derive(Debug, Clone, Copy)]
pub struct FloodFigures {
    /// Streams alone.
    pub alone: InterToken,
    /// Streams beside the pictures.
    pub beside: InterToken,
    /// The pictures with nothing else.
    pub encode_alone: Duration,
    /// The pictures beside the streams.
    pub encode: Duration,
}

/// Arrivals, in order of time.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Since the begin of the trace.
    pub at: Duration,
    /// Pictures in the prompt.
    pub pictures: usize,
    /// Text tokens in the prompt.
    pub tokens: usize,
    /// Answer tokens.
    pub answer: usize,
}

/// What a trace did.
#[derive(Debug, Clone)]
pub struct TraceFigures {
    /// All answers.
    pub tokens: InterToken,
    /// Times to the first token of requests with pictures, sorted.
    pub first_tokens: Vec<Duration>,
    /// Until the last picture was encoded.
    pub encoded: Duration,
    /// Time that the device spent in encoders.
    pub encoder_busy: Duration,
}

/// Runs a flood. Warms up first, so that the model of costs has seen every kind of work.
pub fn flood(engine: &Engine, model: &Model, case: Flood, make: MakePicture<'_>) -> Result<FloodFigures> {
    let mut pictures = 1_000_000_u64..;
    let encode = |count: usize, from: &mut dyn Iterator<Item = u64>| -> Result<Duration> {
        let began = Instant::now();
        let media: Vec<_> = from.take(count).map(make).collect();
        let prepared = Instant::now();
        let tickets = media.into_iter().map(|medium| model.encode(medium)).collect::<Result<Vec<_>>>()?;
        until_encoded(engine)?;
        drop(tickets);
        tracing::debug!(prepared = ?(prepared - began), "pictures encoded");
        Ok(prepared.elapsed())
    };
    encode(1, &mut pictures)?;
    let encode_alone = encode(case.pictures, &mut pictures)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let longest = model.card().context - 64;
        let streams = (0..case.streams).map(|n| start(model, 32, longest, n as u64)).collect::<Result<Vec<_>>>()?;
        for mut stream in streams {
            let stop = &stop;
            // Ends when told; the dropped stream cancels its answer.
            scope.spawn(move || while !stop.load(Relaxed) && stream.next_blocking().is_some() {});
        }
        let measured = (|| {
            std::thread::sleep(WARM_UP);
            let mut records = Records::from_now(engine);
            std::thread::sleep(ALONE);
            let alone = inter_token(&records.read(), case.streams);
            encode(1, &mut pictures)?;
            records = Records::from_now(engine);
            let encode = std::thread::scope(|inner| {
                let work = inner.spawn(|| encode(case.pictures, &mut pictures));
                // The ring is bounded: read it before it turns over.
                while !work.is_finished() {
                    std::thread::sleep(Duration::from_millis(50));
                    records.read();
                }
                work.join().unwrap_or_else(|_| Err(lost()))
            })?;
            let beside = inter_token(&records.read(), case.streams);
            Ok(FloodFigures { alone, beside, encode_alone, encode })
        })();
        stop.store(true, Relaxed);
        measured
    })
}

/// Runs a trace and waits for its last answer. Warms up with one request of each kind.
pub fn trace(engine: &Engine, model: &Model, arrivals: &[Arrival], make: MakePicture<'_>) -> Result<TraceFigures> {
    let mut pictures = 2_000_000_u64..;
    let warm = [Arrival { at: Duration::ZERO, pictures: 1, tokens: 16, answer: 16 }];
    for _ in 0..2 {
        play(engine, model, &warm, (&mut pictures, make))?;
    }
    play(engine, model, arrivals, (&mut pictures, make))
}

fn play(
    engine: &Engine,
    model: &Model,
    arrivals: &[Arrival],
    (pictures, make): (&mut dyn Iterator<Item = u64>, MakePicture<'_>),
) -> Result<TraceFigures> {
    // Pictures are made beforehand: their making is not what is measured.
    let mut media: Vec<Vec<Medium>> = arrivals.iter().map(|a| pictures.take(a.pictures).map(make).collect()).collect();
    let mut records = Records::from_now(engine);
    let began = Instant::now();
    let first_tokens = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let mut answers = Vec::new();
        for (number, arrival) in arrivals.iter().enumerate() {
            while let Some(left) = arrival.at.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
                std::thread::sleep(left.min(Duration::from_millis(50)));
                records.read();
            }
            let came = Instant::now();
            let own = std::mem::take(&mut media[number]);
            let mut prompt = Vec::new();
            for medium in own {
                prompt.push(Segment::Media(model.encode(medium)?));
            }
            prompt.push(Segment::Text(super::ids(model, arrival.tokens, number as u64)));
            let mut stream = model.generate(super::request(prompt, arrival.answer, number as u64))?;
            let first_tokens = &first_tokens;
            answers.push(scope.spawn(move || -> Result<()> {
                match stream.next_blocking() {
                    Some(TokenEvent::Failed(error)) => return Err(error),
                    None => return Err(lost()),
                    Some(_) if arrival.pictures > 0 => {
                        first_tokens.lock().unwrap_or_else(PoisonError::into_inner).push(came.elapsed());
                    }
                    Some(_) => {}
                }
                drain(stream)
            }));
        }
        while !answers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
            records.read();
        }
        answers.into_iter().try_for_each(|answer| answer.join().unwrap_or_else(|_| Err(lost())))
    })?;
    let records = records.read();
    let encodes = || records.iter().filter(|record| record.kind == StepKind::Encode);
    let start = records.first().map_or(0, |record| record.began_us);
    let end = encodes().map(|record| record.began_us + record.took_us).max().unwrap_or(start);
    let mut first_tokens = first_tokens.into_inner().unwrap_or_else(PoisonError::into_inner);
    first_tokens.sort_unstable();
    Ok(TraceFigures {
        tokens: inter_token(&records, 0),
        first_tokens,
        encoded: Duration::from_micros(end - start),
        encoder_busy: super::encoder_time(&records),
    })
}

const WARM_UP: Duration = Duration::from_secs(1);
const ALONE: Duration = Duration::from_secs(3);

fn until_encoded(engine: &Engine) -> Result<()> {
    // The order must have been taken before its end can be waited for.
    std::thread::sleep(Duration::from_millis(5));
    while engine.stats().media_waiting > 0 {
        if !engine.stats().alive {
            return Err(lost());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn lost() -> EngineError {
    EngineError::new(ErrorKind::Internal, "the engine ended during the measurement")
}

/// Launches since some moment, gathered before the ring forgets them.
struct Records<'a> {
    engine: &'a Engine,
    next: u64,
    found: Vec<StepRecord>,
}

impl<'a> Records<'a> {
    fn from_now(engine: &'a Engine) -> Self {
        Self { engine, next: engine.steps_since(u64::MAX).1, found: Vec::new() }
    }

    fn read(&mut self) -> Vec<StepRecord> {
        let (mut new, next) = self.engine.steps_since(self.next);
        self.next = next;
        self.found.append(&mut new);
        self.found.clone()
    }
}

/// Gaps between decode steps of at least `rows` sequences, one for each token.
fn inter_token(records: &[StepRecord], rows: usize) -> InterToken {
    let steps = records.iter().filter(|r| r.kind == StepKind::Decode && r.rows >= rows && r.decode_delay_us > 0);
    let mut gaps: Vec<(u64, usize)> = steps.map(|r| (r.decode_delay_us + r.took_us, r.rows)).collect();
    gaps.sort_unstable();
    let tokens: usize = gaps.iter().map(|(_, rows)| rows).sum();
    let at = |share: f64| {
        let mut left = (tokens as f64 * share).ceil() as usize;
        let found = gaps.iter().find(|(_, rows)| {
            left = left.saturating_sub(*rows);
            left == 0
        });
        Duration::from_micros(found.map_or(0, |(gap, _)| *gap))
    };
    InterToken { p50: at(0.5), p99: at(0.99), tokens }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_not_steps() {
        let step = |rows, took_us| StepRecord {
            kind: StepKind::Decode,
            model: 0,
            rows,
            layers: 0,
            began_us: 0,
            predicted_us: 0,
            took_us,
            decode_delay_us: 1,
        };
        let mut records = vec![step(1, 999); 2];
        records.extend(vec![step(98, 9); 1]);
        let found = inter_token(&records, 0);
        assert_eq!((found.tokens, found.p50.as_micros(), found.p99.as_micros()), (100, 10, 1000));
        assert_eq!(inter_token(&records, 2).tokens, 98);
    }
}
