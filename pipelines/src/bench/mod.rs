//! Benchmarks as lines with stable fields: what `weft bench` prints.

pub mod mixed;
pub mod simulated;
pub mod speculation;

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use weft_stages::bench::{self as stages, Bench, DecodeCase, EncodeCase, MediaKind, copy_bandwidth, gpu_ceilings};

use crate::config::{DeviceChoice, ModelEntry, Policy, RuntimeConfig};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::inspect;
use crate::request::{Class, Input, Options, Request, Target};
use crate::runtime::{Runtime, engine_config};

/// What the GPU can do.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceLine {
    /// `device`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Copy on the device, bytes read and written.
    pub copy_bytes_per_s: f64,
    /// Operations of a large bf16 product of random numbers.
    pub product_flops_per_s: f64,
}

/// Measures the GPU; an error where there is none.
pub fn device() -> Result<DeviceLine> {
    let device = weft_stages::gpu().map_err(weft_stages::StageError::from)?;
    let ceilings = gpu_ceilings().map_err(weft_stages::StageError::from)?;
    Ok(DeviceLine { bench: "device", device, copy_bytes_per_s: ceilings.copy, product_flops_per_s: ceilings.product })
}

/// Decode steps at one batch size.
#[derive(Debug, Clone, Serialize)]
pub struct DecodeLine {
    /// `decode`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Model.
    pub model: String,
    /// Storage of most weights.
    pub dtype: String,
    /// Sequences.
    pub batch: usize,
    /// Prompt tokens of each.
    pub context: usize,
    /// Median milliseconds from step to step.
    pub step_ms_p50: f64,
    /// Tokens a second, over the batch.
    pub tokens_per_s: f64,
    /// Bytes a step reads at least.
    pub bytes_per_step: u64,
    /// These bytes over the copy bandwidth measured in the same run.
    pub bandwidth_fraction: f64,
}

/// Prefill of one prompt.
#[derive(Debug, Clone, Serialize)]
pub struct PrefillLine {
    /// `prefill`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Model.
    pub model: String,
    /// Storage of most weights.
    pub dtype: String,
    /// Prompt tokens.
    pub tokens: usize,
    /// Median milliseconds.
    pub ms_p50: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Operations of the products (two a decoder weight and token) a second, in units of 10^12.
    pub tflops: f64,
}

/// Media through a tower.
#[derive(Debug, Clone, Serialize)]
pub struct EncodeLine {
    /// `encode`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Model.
    pub model: String,
    /// `vision` or `audio`.
    pub tower: &'static str,
    /// Media at once.
    pub batch: usize,
    /// Patches or frames of one medium.
    pub units: usize,
    /// Median milliseconds of the batch.
    pub ms_p50: f64,
    /// Patches or frames a second.
    pub units_per_s: f64,
}

/// One file through a media stage.
#[derive(Debug, Clone, Serialize)]
pub struct MediaLine {
    /// `media`.
    pub bench: &'static str,
    /// File.
    pub case: String,
    /// Median milliseconds.
    pub ms_p50: f64,
    /// Millions of pixels a second; pictures only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megapixels_per_s: Option<f64>,
    /// Seconds of sound a second; clips only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realtime_factor: Option<f64>,
}

/// From nothing to ready and to the first token, in this process.
#[derive(Debug, Clone, Serialize)]
pub struct StartLine {
    /// `start`.
    pub bench: &'static str,
    /// Model.
    pub model: String,
    /// Until the models are loaded.
    pub to_ready_ms: f64,
    /// Until the first text of a short prompt.
    pub to_first_token_ms: f64,
    /// Most memory this process held, in MB; 0 where the system does not tell.
    pub peak_rss_mb: f64,
}

/// A clip through transcription.
#[derive(Debug, Clone, Serialize)]
pub struct TranscribeLine {
    /// `transcribe`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Model.
    pub model: String,
    /// File.
    pub case: String,
    /// Seconds of sound.
    pub seconds: f64,
    /// Median milliseconds from bytes to text.
    pub ms_p50: f64,
    /// Seconds of sound a second.
    pub realtime_factor: f64,
    /// The text.
    pub text: String,
}

/// A model opened for `decode`, `prefill` and `encode`.
pub struct Opened {
    bench: Bench,
    threads: usize,
    parameters: Vec<(String, u64)>,
}

impl Opened {
    /// Loads one model.
    pub fn open(model: &ModelEntry, device: DeviceChoice, threads: usize) -> Result<Self> {
        let report = inspect::model(&model.source)?;
        let parameters = report.parts.into_iter().map(|part| (part.name, part.parameters)).collect();
        // Whole prompts before the next step: otherwise the first answers end before the last prompts begin.
        let policy = Policy::Inline;
        let config = RuntimeConfig { models: vec![model.clone()], device, threads, policy, ..RuntimeConfig::default() };
        let bench = Bench::open(engine_config(&config, &config.models))?;
        let threads = if threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { threads };
        Ok(Self { bench, threads, parameters })
    }

    /// Decode steps at each batch size.
    pub fn decode(&self, batches: &[usize], context: usize, steps: usize) -> Result<Vec<DecodeLine>> {
        let bandwidth = match self.bench.device().starts_with("cuda") {
            true => gpu_ceilings().map_err(weft_stages::StageError::from)?.copy,
            false => copy_bandwidth(self.threads),
        };
        let card = self.bench.card();
        let measure = |&batch: &usize| {
            let figures = self.bench.decode(DecodeCase { batch, context, steps })?;
            let seconds = figures.step.as_secs_f64();
            Ok(DecodeLine {
                bench: "decode",
                device: self.bench.device(),
                model: card.name.clone(),
                dtype: card.dtype.clone(),
                batch,
                context,
                step_ms_p50: seconds * 1e3,
                tokens_per_s: batch as f64 / seconds,
                bytes_per_step: figures.bytes,
                bandwidth_fraction: figures.bytes as f64 / seconds / bandwidth,
            })
        };
        batches.iter().map(measure).collect()
    }

    /// Prompts of each length.
    pub fn prefill(&self, lengths: &[usize], repeats: usize) -> Result<Vec<PrefillLine>> {
        let card = self.bench.card();
        let decoder = self.parameters.iter().find(|(name, _)| name == "text").map_or(card.parameters, |part| part.1);
        let measure = |&tokens: &usize| {
            let seconds = self.bench.prefill(tokens, repeats)?.as_secs_f64();
            Ok(PrefillLine {
                bench: "prefill",
                device: self.bench.device(),
                model: card.name.clone(),
                dtype: card.dtype.clone(),
                tokens,
                ms_p50: seconds * 1e3,
                tokens_per_s: tokens as f64 / seconds,
                tflops: 2.0 * decoder as f64 * tokens as f64 / seconds / 1e12,
            })
        };
        lengths.iter().map(measure).collect()
    }

    /// Every tower of the model at each batch size: pictures of `side` x `side` pixels, clips of 30 s.
    pub fn encode(&self, batches: &[usize], side: usize, repeats: usize) -> Result<Vec<EncodeLine>> {
        let card = self.bench.card();
        let mut lines = Vec::new();
        for &batch in batches {
            let case = EncodeCase { batch, repeats };
            let mut line = |tower, time: Duration, units: usize| {
                lines.push(EncodeLine {
                    bench: "encode",
                    device: self.bench.device(),
                    model: card.name.clone(),
                    tower,
                    batch,
                    units,
                    ms_p50: time.as_secs_f64() * 1e3,
                    units_per_s: (batch * units) as f64 / time.as_secs_f64(),
                });
            };
            if card.image.is_some() {
                let (time, patches) = self.bench.vision(side, side, case)?;
                line("vision", time, patches);
            }
            if card.audio.is_some() {
                line("audio", self.bench.audio(FRAMES, case)?, FRAMES);
            }
        }
        if lines.is_empty() {
            return Err(Error::new(ErrorKind::Unsupported, format!("{} has no tower to measure", card.name)));
        }
        Ok(lines)
    }

    /// Files through the stages, with this model's processors.
    pub async fn media(&self, files: &[(String, Bytes)], repeats: usize) -> Result<Vec<MediaLine>> {
        let mut lines = Vec::new();
        for (case, file) in files {
            let image = weft_stages::image_facts(file);
            let kind = if image.is_ok() { MediaKind::Image } else { MediaKind::Audio };
            let time = stages::media(self.bench.card(), file.clone(), kind, repeats).await?.as_secs_f64();
            let pixels = image.ok().map(|facts| (facts.width * facts.height) as f64);
            let sound = match kind {
                MediaKind::Audio => weft_stages::audio_facts(file).ok().map(|facts| facts.length.seconds()),
                MediaKind::Image => None,
            };
            lines.push(MediaLine {
                bench: "media",
                case: case.clone(),
                ms_p50: time * 1e3,
                megapixels_per_s: pixels.map(|pixels| pixels / 1e6 / time),
                realtime_factor: sound.map(|seconds| seconds / time),
            });
        }
        Ok(lines)
    }
}

/// Frames of 30 s of sound.
const FRAMES: usize = 3000;

/// Loads a model in this process, answers a short prompt, and says how long it took from `began`.
pub async fn start(config: RuntimeConfig, began: Instant) -> Result<StartLine> {
    let model = config.models.first().map(|m| m.name.clone()).unwrap_or_default();
    let runtime = Runtime::start(config).await?;
    let to_ready = began.elapsed();
    let input = Input { prompt: Some("Hello".into()), ..Input::default() };
    let options = Options { max_tokens: Some(4), ..Options::default() };
    let target = Target::Model(model.clone());
    let mut events = runtime.run(Request { target, input, options, class: Class::Interactive, deadline: None })?;
    let mut first = None;
    while let Some(event) = events.next().await {
        match event {
            Event::Text { .. } if first.is_none() => first = Some(began.elapsed()),
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    let first = first.unwrap_or_else(|| began.elapsed());
    Ok(StartLine {
        bench: "start",
        model,
        to_ready_ms: to_ready.as_secs_f64() * 1e3,
        to_first_token_ms: first.as_secs_f64() * 1e3,
        peak_rss_mb: peak_rss_mb(),
    })
}

/// Clips through the first model's transcription.
pub async fn transcribe(
    config: RuntimeConfig,
    files: &[(String, Bytes)],
    repeats: usize,
) -> Result<Vec<TranscribeLine>> {
    let model = config.models.first().map(|m| m.name.clone()).unwrap_or_default();
    // A repeat must do all of the work again.
    let runtime = Runtime::start(RuntimeConfig { encoder_cache_bytes: 0, ..config }).await?;
    let mut lines = Vec::new();
    for (case, file) in files {
        let mut times = Vec::new();
        let mut last = None;
        for _ in 0..=repeats {
            let began = Instant::now();
            let input = Input { audios: vec![file.clone()], ..Input::default() };
            let (target, options) = (Target::Model(model.clone()), Options::default());
            let request = Request { target, input, options, class: Class::Interactive, deadline: None };
            last = Some(runtime.run(request)?.finish().await?);
            times.push(began.elapsed());
        }
        times.remove(0);
        times.sort_unstable();
        let Some((time, outcome)) = times.get(times.len() / 2).zip(last) else { continue };
        let seconds = outcome.duration.unwrap_or(0.0);
        lines.push(TranscribeLine {
            bench: "transcribe",
            device: runtime.device(),
            model: model.clone(),
            case: case.clone(),
            seconds,
            ms_p50: time.as_secs_f64() * 1e3,
            realtime_factor: seconds / time.as_secs_f64(),
            text: outcome.text.trim().to_owned(),
        });
    }
    Ok(lines)
}

/// Reads a file for the media benchmarks.
pub fn file(path: &Path) -> Result<(String, Bytes)> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let bytes = std::fs::read(path)
        .map_err(|e| Error::new(ErrorKind::NotFound, format!("cannot read {}: {e}", path.display())))?;
    Ok((name, bytes.into()))
}

fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
    kib.map_or(0.0, |kib| kib * 1024.0 / 1e6)
}
