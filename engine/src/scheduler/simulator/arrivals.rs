//! What arrives in a simulation: replayed from a file of one JSON object a line, or drawn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::request::Class;
use crate::scheduler::snapshot::Tower;

/// A medium of a simulated request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimMedium {
    /// Identity; equal ones are encoded once.
    pub id: u64,
    pub(crate) tower: Tower,
    /// Patches or frames.
    pub units: usize,
    /// Prompt tokens.
    pub tokens: usize,
    /// Its encoder fails.
    pub broken: bool,
}

impl SimMedium {
    /// A picture of this many patches, of which four make a token.
    pub fn picture(id: u64, patches: usize) -> Self {
        Self { id, tower: Tower::Vision, units: patches, tokens: patches.div_ceil(4), broken: false }
    }

    /// A clip of this many log-mel frames, of which four make a token.
    pub fn clip(id: u64, frames: usize) -> Self {
        Self { id, tower: Tower::Audio, units: frames, tokens: frames.div_ceil(4), broken: false }
    }
}

/// A simulated request.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Since the begin.
    pub at: Duration,
    /// Class.
    pub class: Class,
    /// Text tokens of the prompt.
    pub text: usize,
    /// Its media.
    pub media: Vec<SimMedium>,
    /// Tokens of the answer.
    pub answer: usize,
    /// It goes away this long after its arrival.
    pub patience: Option<Duration>,
}

/// A line of a recorded trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceLine {
    /// Milliseconds since the begin.
    pub at_ms: f64,
    /// A batch job.
    pub batch: bool,
    /// Text tokens of the prompt.
    pub text: usize,
    /// Patches of each picture.
    pub pictures: Vec<usize>,
    /// Log-mel frames of each clip.
    pub clips: Vec<usize>,
    /// Tokens of the answer.
    pub answer: usize,
}

/// Reads a recorded trace; an error names its line.
pub fn replay(text: &str) -> Result<Vec<Arrival>, String> {
    let mut media = 0;
    let mut arrivals = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: TraceLine = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        if !line.at_ms.is_finite() || line.at_ms < 0.0 || line.answer == 0 || line.text == 0 {
            return Err(format!("line {}: at_ms must not be negative, text and answer must be at least 1", number + 1));
        }
        let mut next = || {
            media += 1;
            media
        };
        let pictures: Vec<_> = line.pictures.iter().map(|&patches| SimMedium::picture(next(), patches)).collect();
        let clips = line.clips.iter().map(|&frames| SimMedium::clip(next(), frames));
        arrivals.push(Arrival {
            at: Duration::from_secs_f64(line.at_ms / 1e3),
            class: if line.batch { Class::Batch } else { Class::Interactive },
            text: line.text,
            media: pictures.into_iter().chain(clips).collect(),
            answer: line.answer,
            patience: None,
        });
    }
    arrivals.sort_by_key(|arrival: &Arrival| arrival.at);
    Ok(arrivals)
}

/// Drawn traffic.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// How long requests come.
    pub seconds: f64,
    /// Requests a second on average.
    pub rate: f64,
    /// Requests that come at once; 1 is a Poisson process.
    pub burst: usize,
    /// Share of requests with a picture, and with a clip.
    pub pictures: f64,
    /// Share with a clip.
    pub clips: f64,
    /// Share of batch jobs.
    pub batch: f64,
    /// Of the random stream.
    pub seed: u64,
}

/// Draws traffic: exponential gaps between bursts, pictures of 256 to 4096 patches, clips of 2 to 30 s.
pub fn drawn(case: Drawn) -> Vec<Arrival> {
    let mut random = Random(case.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let burst = case.burst.max(1);
    let (mut at, mut media, mut arrivals) = (0.0, 0, Vec::new());
    loop {
        at += -random.uniform().ln() * burst as f64 / case.rate.max(1e-9);
        if at >= case.seconds {
            return arrivals;
        }
        for _ in 0..burst {
            let kind = random.uniform();
            media += 1;
            let medium = if kind < case.pictures {
                Some(SimMedium::picture(media, 256 << (random.uniform() * 5.0) as u32))
            } else if kind < case.pictures + case.clips {
                Some(SimMedium::clip(media, 200 + (random.uniform() * 2800.0) as usize))
            } else {
                None
            };
            arrivals.push(Arrival {
                at: Duration::from_secs_f64(at),
                class: if random.uniform() < case.batch { Class::Batch } else { Class::Interactive },
                text: 16 + (random.uniform() * 200.0) as usize,
                media: medium.into_iter().collect(),
                answer: 16 + (-random.uniform().ln() * 80.0).min(500.0) as usize,
                patience: None,
            });
        }
    }
}

/// A multiplicative generator: the same seed, the same traffic.
struct Random(u64);

impl Random {
    /// In `(0, 1]`.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f64 + 1.0) / (1_u64 << 24) as f64
    }
}
