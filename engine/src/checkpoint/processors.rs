//! Image and audio processors from `preprocessor_config.json` (older, flat) or `processor_config.json` (newer, nested).

use serde_json::Value;

use super::fields::Fields;
use crate::card::{AudioPadding, AudioProcessor, AudioTokens, ImageProcessor, ResizeFilter};
use crate::error::{EngineError, ErrorKind, Result};

/// Finds a processor's object: nested under `key`, or the whole file when that holds `marker`.
fn section<'a>(file: &'a str, config: &'a Value, key: &str, marker: &str) -> Result<Option<Fields<'a>>> {
    let whole = Fields::new(file, config);
    match whole.object(key)? {
        Some(nested) => Ok(Some(nested)),
        None => Ok(whole.get(marker).is_some().then_some(whole)),
    }
}

/// An error about a processor that a checkpoint should have.
pub(crate) fn missing(file: &str, what: &str) -> EngineError {
    EngineError::new(ErrorKind::Malformed, format!("{file} has no {what}; fetch the model's preprocessor_config.json"))
}

/// The image processor of the Qwen-VL kind; `None` when the config has none.
pub fn image(file: &str, config: &Value) -> Result<Option<ImageProcessor>> {
    let Some(fields) = section(file, config, "image_processor", "image_mean")? else { return Ok(None) };
    let limits = fields.object("size")?;
    let limit = |old: &str, new: &str| -> Result<Option<usize>> {
        match (&limits, fields.opt_size(old)?) {
            (_, Some(pixels)) => Ok(Some(pixels)),
            (Some(size), None) => Ok(size.opt_size(new)?.or(size.opt_size(old)?)),
            (None, None) => Ok(None),
        }
    };
    let channels = |key: &str, default: [f32; 3]| -> Result<[f32; 3]> {
        let Some(list) = fields.numbers(key)? else { return Ok(default) };
        let list: Vec<f32> = list.into_iter().map(|x| x as f32).collect();
        <[f32; 3]>::try_from(list).map_err(|_| fields.wrong(key, "a list of three numbers"))
    };
    let filter = match fields.opt_size("resample")? {
        Some(1) => ResizeFilter::Lanczos,
        Some(2) => ResizeFilter::Bilinear,
        Some(3) | None => ResizeFilter::Bicubic,
        Some(_) => return Err(fields.unsupported("resample must be 1 (lanczos), 2 (bilinear) or 3 (bicubic)")),
    };
    let std = channels("image_std", [0.268_629_54, 0.261_302_6, 0.275_777_1])?;
    if std.contains(&0.0) {
        return Err(fields.wrong("image_std", "free of zeros"));
    }
    Ok(Some(ImageProcessor {
        patch: fields.opt_size("patch_size")?.unwrap_or(14),
        temporal_patch: fields.opt_size("temporal_patch_size")?.unwrap_or(2),
        merge: fields.opt_size("merge_size")?.unwrap_or(2),
        min_pixels: limit("min_pixels", "shortest_edge")?.unwrap_or(56 * 56),
        max_pixels: limit("max_pixels", "longest_edge")?.unwrap_or(28 * 28 * 1280),
        filter,
        rescale: fields.number("rescale_factor")?.map_or(1.0 / 255.0, |factor| factor as f32),
        mean: channels("image_mean", [0.481_454_66, 0.457_827_5, 0.408_210_73])?,
        std,
    }))
}

/// The log-mel extractor of the Whisper kind; `None` when the config has none.
pub fn audio(file: &str, config: &Value, padding: Padding, tokens: AudioTokens) -> Result<Option<AudioProcessor>> {
    let Some(fields) = section(file, config, "feature_extractor", "feature_size")? else { return Ok(None) };
    let sample_rate = fields.opt_size("sampling_rate")?.unwrap_or(16_000);
    let hop = fields.opt_size("hop_length")?.unwrap_or(160);
    let samples = match (fields.opt_size("n_samples")?, fields.opt_size("chunk_length")?) {
        (Some(samples), _) => samples,
        (None, seconds) => seconds.unwrap_or(30) * sample_rate,
    };
    Ok(Some(AudioProcessor {
        sample_rate,
        fft: fields.opt_size("n_fft")?.unwrap_or(400),
        hop,
        bins: fields.size("feature_size")?,
        padding: match padding {
            Padding::None => AudioPadding::None,
            Padding::Window => AudioPadding::Window(samples / hop),
        },
        max_seconds: samples as f64 / sample_rate as f64,
        tokens,
    }))
}

/// Whether clips are padded to the extractor's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Only real frames.
    None,
    /// Silence up to whole windows (of `n_samples`).
    Window,
}
