//! The media stages through their front door: golden numbers, every container, broken files, hostile bytes, overload.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test's panic is its report")]

mod broken;
mod clips;
mod fixtures;
mod hostile;
mod images;
mod pool;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use weft_engine::card::{AudioPadding, AudioProcessor, AudioTokens, ImageProcessor, ResizeFilter};
use weft_engine::media::{LogMel, Patches};
use weft_stages::{Prepared, Result, Stages, StagesConfig};

static STAGES: LazyLock<Stages> = LazyLock::new(|| Stages::start(StagesConfig::default()).unwrap());

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn image(bytes: impl Into<Bytes>, processor: ImageProcessor) -> Result<Prepared<Patches>> {
    wait(STAGES.image(bytes.into(), Arc::new(processor)))
}

fn audio(bytes: impl Into<Bytes>, processor: AudioProcessor) -> Result<Prepared<LogMel>> {
    wait(STAGES.audio(bytes.into(), Arc::new(processor)))
}

/// The settings of the picture fixtures (Qwen2.5-Omni's processor, other pixel bounds).
fn qwen(max_pixels: usize) -> ImageProcessor {
    ImageProcessor {
        patch: 14,
        temporal_patch: 2,
        merge: 2,
        min_pixels: 3136,
        max_pixels,
        filter: ResizeFilter::Bicubic,
        rescale: 1.0 / 255.0,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    }
}

fn whisper() -> AudioProcessor {
    AudioProcessor {
        sample_rate: 16_000,
        fft: 400,
        hop: 160,
        bins: 80,
        padding: AudioPadding::Window(3000),
        max_seconds: 30.0,
        tokens: AudioTokens::CrossAttention,
    }
}

fn omni() -> AudioProcessor {
    AudioProcessor {
        bins: 128,
        padding: AudioPadding::None,
        max_seconds: 300.0,
        tokens: AudioTokens::QwenOmni,
        ..whisper()
    }
}
