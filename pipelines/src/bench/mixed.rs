//! `weft bench mixed`: all policies on the same load, one after another in one run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use weft_stages::bench::{Arrival, Bench, Flood, InterToken, write_checkpoint};

use crate::config::{ModelEntry, ModelSource, Policy, RuntimeConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::engine_config;

/// One policy under one load.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MixedLine {
    /// `mixed`.
    pub bench: &'static str,
    /// `flood`: pictures wait all the time. `trace`: texts and bursts of pictures by the clock.
    pub load: &'static str,
    /// Policy.
    pub policy: &'static str,
    /// Inter-token time of the same answers without pictures, in milliseconds: flood, the median; trace, the 99th
    /// percentile.
    pub alone_ms: f64,
    /// Median inter-token time.
    pub token_ms_p50: f64,
    /// 99th percentile of inter-token times.
    pub token_ms_p99: f64,
    /// That over `alone_ms`.
    pub p99_over_alone: f64,
    /// Flood: encoder rate as a share of the rate alone. Trace: share of the time that encoders ran.
    pub encoder_share: f64,
    /// Until the last picture was encoded.
    pub encode_s: f64,
    /// Median time to first token of requests with pictures; trace only.
    pub first_token_ms_p50: f64,
    /// 99th percentile of these.
    pub first_token_ms_p99: f64,
    /// Tokens measured.
    pub tokens: usize,
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct MixedCase {
    /// CPU threads; 0 takes the machine's cores.
    pub threads: usize,
    /// Pixels on a picture's side.
    pub side: usize,
    /// Streams that decode in the flood.
    pub streams: usize,
    /// Pictures in the flood.
    pub pictures: usize,
    /// Seconds of the trace.
    pub seconds: f64,
}

const POLICIES: [(Policy, &str); 4] =
    [(Policy::Inline, "inline"), (Policy::Slice, "slice"), (Policy::Partition, "partition"), (Policy::Auto, "auto")];

/// A checkpoint of random weights with SmolVLM's sizes in a folder of its own, removed on drop.
#[derive(Debug)]
pub struct RandomModel {
    folder: PathBuf,
}

impl RandomModel {
    /// Writes it; `files` are those of the embedded model, which has the same layout.
    pub fn write(files: &[(&str, &[u8])]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("weft-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot make the folder {}: {error}", folder.display()))
        })?;
        let made = Self { folder };
        write_checkpoint(&made.folder, files).map_err(weft_stages::StageError::from)?;
        Ok(made)
    }

    /// As other benchmarks take a model.
    pub fn entry(&self) -> ModelEntry {
        let source = ModelSource::Path(self.folder.clone());
        ModelEntry { name: "random-smolvlm-sized".into(), source, float32: false, placeholder: true }
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for RandomModel {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "a benchmark's checkpoint was left behind");
        }
    }
}

/// Runs every policy on both loads. `told` hears each line as it is measured.
pub fn mixed(model: &ModelEntry, case: MixedCase, mut told: impl FnMut(&MixedLine)) -> Result<Vec<MixedLine>> {
    let mut lines = Vec::new();
    let open = |policy| {
        let config =
            RuntimeConfig { models: vec![model.clone()], threads: case.threads, policy, ..RuntimeConfig::default() };
        Bench::open(engine_config(&config, &config.models))
    };
    let mut picture = Duration::ZERO;
    for (policy, name) in POLICIES {
        let flood = Flood { streams: case.streams, pictures: case.pictures };
        let figures = open(policy)?.flood(case.side, flood)?;
        if figures.alone.tokens == 0 || figures.beside.tokens == 0 {
            let detail =
                format!("policy {name}: no time between two tokens was recorded, so there is nothing to compare");
            return Err(Error::new(ErrorKind::Internal, detail));
        }
        picture = figures.encode_alone / u32::try_from(case.pictures.max(1)).unwrap_or(u32::MAX);
        let line = MixedLine {
            load: "flood",
            policy: name,
            encoder_share: figures.encode_alone.as_secs_f64() / figures.encode.as_secs_f64(),
            encode_s: figures.encode.as_secs_f64(),
            ..line(figures.alone.p50, figures.beside)
        };
        told(&line);
        lines.push(line);
    }
    let arrivals = arrivals(picture, case.seconds);
    // The 99th percentile of the trace's texts without its pictures is the same for every policy: measured once.
    let texts: Vec<Arrival> = arrivals.iter().filter(|arrival| arrival.pictures == 0).cloned().collect();
    let alone = open(Policy::Auto)?.trace(case.side, &texts)?.tokens.p99;
    for (policy, name) in POLICIES {
        let figures = open(policy)?.trace(case.side, &arrivals)?;
        let first = |share: f64| {
            let at = (figures.first_tokens.len() as f64 * share).ceil() as usize;
            figures.first_tokens.get(at.saturating_sub(1)).map_or(0.0, |time| millis(*time))
        };
        let line = MixedLine {
            load: "trace",
            policy: name,
            encoder_share: figures.encoder_busy.as_secs_f64() / figures.encoded.as_secs_f64(),
            encode_s: figures.encoded.as_secs_f64(),
            first_token_ms_p50: first(0.5),
            first_token_ms_p99: first(0.99),
            ..line(alone, figures.tokens)
        };
        told(&line);
        lines.push(line);
    }
    Ok(lines)
}

fn line(alone: Duration, tokens: InterToken) -> MixedLine {
    MixedLine {
        bench: "mixed",
        alone_ms: millis(alone),
        token_ms_p50: millis(tokens.p50),
        token_ms_p99: millis(tokens.p99),
        p99_over_alone: tokens.p99.as_secs_f64() / alone.as_secs_f64().max(1e-9),
        tokens: tokens.tokens,
        ..MixedLine::default()
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Pictures in a burst of the trace.
const BURST: usize = 4;

/// Texts every now and then, and bursts of pictures worth a quarter of the device where one takes `picture` alone.
fn arrivals(picture: Duration, seconds: f64) -> Vec<Arrival> {
    let mut all = Vec::new();
    let between = picture.as_secs_f64() * BURST as f64 / 0.25;
    let mut at = 0.4 * between;
    while at < seconds {
        for n in 0..BURST {
            let at = Duration::from_secs_f64(at + 0.01 * n as f64);
            all.push(Arrival { at, pictures: 1, tokens: 16, answer: 8 });
        }
        at += between;
    }
    let mut state = 7_u64;
    let mut at = 0.2;
    while at < seconds {
        all.push(Arrival { at: Duration::from_secs_f64(at), pictures: 0, tokens: 24, answer: 24 });
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Exponential gaps, two seconds on average.
        let uniform = ((state >> 40) as f64 + 1.0) / (1_u64 << 24) as f64;
        at += -2.0 * uniform.ln();
    }
    all.sort_by_key(|arrival| arrival.at);
    all
}
