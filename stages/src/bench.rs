//! Measurements of engine and stages, for `weft bench`. Random media and prompts; figures are medians after a warm-up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use weft_engine::bench as engine;
use weft_engine::handle::{Engine, Model};
use weft_engine::media::{LogMel, MediaId, Medium, Patches};

use crate::actors::{Stages, StagesConfig};
use crate::error::{Result, StageError};
use crate::{EngineConfig, ModelCard};

pub use weft_engine::bench::mixed::{Arrival, Flood, FloodFigures, InterToken, TraceFigures};
pub use weft_engine::bench::{
    DecodeCase, DecodeFigures, EncodeCase, GpuCeilings, copy_bandwidth, gpu_ceilings, write_checkpoint,
};
pub use weft_engine::simulator;

/// An engine with one model to measure.
pub struct Bench {
    engine: Engine,
    model: Model,
}

impl Bench {
    /// Loads the first model of this configuration.
    pub fn open(config: EngineConfig) -> Result<Self> {
        let engine = Engine::start(config)?;
        let model = engine.models().into_iter().next();
        let model = model.ok_or_else(|| StageError::unsupported("a benchmark needs a model: give --model"))?;
        Ok(Self { engine, model })
    }

    /// The model.
    pub fn card(&self) -> &ModelCard {
        self.model.card()
    }

    /// Name of the device.
    pub fn device(&self) -> String {
        self.engine.device()
    }

    /// Decode steps.
    pub fn decode(&self, case: DecodeCase) -> Result<DecodeFigures> {
        Ok(engine::decode(&self.engine, &self.model, case)?)
    }

    /// Time to prefill a prompt of this many tokens.
    pub fn prefill(&self, tokens: usize, repeats: usize) -> Result<Duration> {
        Ok(engine::prefill(&self.engine, &self.model, tokens, repeats)?)
    }

    /// Time of the vision tower on pictures of this size, and patches of one picture.
    pub fn vision(&self, width: usize, height: usize, case: EncodeCase) -> Result<(Duration, usize)> {
        let Some(processor) = &self.card().image else {
            return Err(StageError::unsupported(format!("{} does not see", self.card().name)));
        };
        let plan = processor.plan(width, height)?;
        let values = plan.grid.patches() * processor.patch_values();
        let make = |seed| Medium::Image(Patches { values: noise(seed, values), grid: plan.grid, id: id(seed) });
        Ok((engine::encode(&self.engine, &self.model, case, make)?, plan.grid.patches()))
    }

    /// Decode streams beside pictures of this size that always wait.
    pub fn flood(&self, side: usize, case: Flood) -> Result<FloodFigures> {
        Ok(engine::mixed::flood(&self.engine, &self.model, case, &self.pictures(side)?)?)
    }

    /// Texts and pictures of this size by the clock.
    pub fn trace(&self, side: usize, arrivals: &[Arrival]) -> Result<TraceFigures> {
        Ok(engine::mixed::trace(&self.engine, &self.model, arrivals, &self.pictures(side)?)?)
    }

    fn pictures(&self, side: usize) -> Result<impl Fn(u64) -> Medium + Sync> {
        let Some(processor) = &self.card().image else {
            return Err(StageError::unsupported(format!("{} does not see", self.card().name)));
        };
        let grid = processor.plan(side, side)?.grid;
        let values = grid.patches() * processor.patch_values();
        Ok(move |seed| Medium::Image(Patches { values: noise(seed, values), grid, id: id(seed) }))
    }

    /// Time of the audio tower on clips of this many frames.
    pub fn audio(&self, frames: usize, case: EncodeCase) -> Result<Duration> {
        let Some(processor) = &self.card().audio else {
            return Err(StageError::unsupported(format!("{} does not hear", self.card().name)));
        };
        let bins = processor.bins;
        let make = |seed| Medium::Audio(LogMel { values: noise(seed, frames * bins), frames, bins, id: id(seed) });
        Ok(engine::encode(&self.engine, &self.model, case, make)?)
    }
}

/// Median time of the media stages on one file, for a model's processors.
pub async fn media(card: &ModelCard, file: Bytes, kind: MediaKind, repeats: usize) -> Result<Duration> {
    let stages = Stages::start(StagesConfig::default())?;
    let mut times = Vec::new();
    for _ in 0..=repeats {
        let began = Instant::now();
        match (kind, &card.image, &card.audio) {
            (MediaKind::Image, Some(processor), _) => {
                stages.image(file.clone(), Arc::new(processor.clone())).await?;
            }
            (MediaKind::Audio, _, Some(processor)) => {
                stages.audio(file.clone(), Arc::new(processor.clone())).await?;
            }
            _ => return Err(StageError::unsupported(format!("{} has no tower for this file", card.name))),
        }
        times.push(began.elapsed());
    }
    // The first one warmed up.
    times.remove(0);
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Which stage a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// Pictures.
    Image,
    /// Clips.
    Audio,
}

fn id(seed: u64) -> MediaId {
    let mut bytes = [0xbe; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    MediaId(bytes)
}

/// Values in [-1, 1], different for every seed.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}
