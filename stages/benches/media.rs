//! `cargo bench -p weft-stages`: a table of preparation times. Media are made here, so the figures need no files.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for people at a terminal")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use weft_engine::card::{AudioPadding, AudioProcessor, AudioTokens, ImageProcessor, ResizeFilter};
use weft_stages::{Stages, StagesConfig};

/// Runs of each case; the table shows the median and the best.
const RUNS: usize = 9;

fn main() {
    let stages = Stages::start(StagesConfig::default()).unwrap();
    println!("{:<44} {:>9} {:>9} {:>12}", "case", "p50 ms", "best ms", "rate");
    let photo = photo(4000, 3000);
    let jpeg = Bytes::from(jpeg(&photo));
    let mut png = std::io::Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(photo).write_to(&mut png, ImageFormat::Png).unwrap();
    let png = Bytes::from(png.into_inner());
    for (name, bytes, side) in [
        ("JPEG 4000x3000 to 512x512 pixels", &jpeg, 512),
        ("JPEG 4000x3000 to 1 megapixel", &jpeg, 1003),
        ("PNG 4000x3000 to 512x512 pixels", &png, 512),
    ] {
        let processor = Arc::new(qwen(side * side));
        let times = measure(|| {
            let prepared = block_on(stages.image(bytes.clone(), Arc::clone(&processor))).unwrap();
            prepared.worked
        });
        row(name, &times, |seconds| format!("{:.0} MP/s", 12.0 / seconds));
    }
    for (name, seconds, processor) in [
        ("WAV 16 kHz, 30 s, 80 bands", 30, whisper(80, AudioPadding::Window(3000))),
        ("WAV 16 kHz, 30 s, 128 bands", 30, whisper(128, AudioPadding::None)),
        ("WAV 16 kHz, 10 min, 80 bands", 600, whisper(80, AudioPadding::Window(3000))),
    ] {
        let (file, processor) = (Bytes::from(wav(16_000, seconds)), Arc::new(processor));
        let times = measure(|| block_on(stages.audio(file.clone(), Arc::clone(&processor))).unwrap().worked);
        row(name, &times, |took| format!("{:.0} x real", seconds as f64 / took));
    }
    let (file, processor) = (Bytes::from(wav(44_100, 30)), Arc::new(whisper(80, AudioPadding::Window(3000))));
    let times = measure(|| block_on(stages.audio(file.clone(), Arc::clone(&processor))).unwrap().worked);
    row("WAV 44.1 kHz, 30 s, 80 bands", &times, |took| format!("{:.0} x real", 30.0 / took));
}

fn measure(mut work: impl FnMut() -> Duration) -> Vec<f64> {
    work();
    let mut times: Vec<f64> = (0..RUNS).map(|_| work().as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn row(name: &str, times: &[f64], rate: impl Fn(f64) -> String) {
    let (median, best) = (times[times.len() / 2], times[0]);
    println!("{name:<44} {:>9.2} {:>9.2} {:>12}", median * 1e3, best * 1e3, rate(median));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn photo(width: u32, height: u32) -> RgbImage {
    let begun = Instant::now();
    let picture = RgbImage::from_fn(width, height, |x, y| {
        let wave = |rate: f32| ((x as f32 * rate).sin() * (y as f32 * rate * 0.7).cos() * 90.0 + 128.0) as u8;
        let grain = ((x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)) >> 13) as u8 & 15;
        Rgb([wave(0.011) ^ grain, wave(0.023).wrapping_add(grain), wave(0.005).wrapping_sub(grain)])
    });
    println!("(made the picture in {:.1?})", begun.elapsed());
    picture
}

fn jpeg(picture: &RgbImage) -> Vec<u8> {
    let mut out = Vec::new();
    JpegEncoder::new_with_quality(&mut out, 90).encode_image(picture).unwrap();
    out
}

fn wav(rate: u32, seconds: u32) -> Vec<u8> {
    let samples = rate * seconds;
    let mut file = Vec::new();
    file.extend(b"RIFF");
    file.extend((36 + samples * 2).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(rate.to_le_bytes());
    file.extend((rate * 2).to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((samples * 2).to_le_bytes());
    file.extend(
        (0..samples)
            .flat_map(|i| (((i as f32 * 0.05).sin() * (i as f32 * 0.0007).cos() * 9000.0) as i16).to_le_bytes()),
    );
    file
}

fn qwen(max_pixels: usize) -> ImageProcessor {
    ImageProcessor {
        patch: 14,
        temporal_patch: 2,
        merge: 2,
        min_pixels: 3136,
        max_pixels,
        filter: ResizeFilter::Bicubic,
        rescale: 1.0 / 255.0,
        mean: [0.48, 0.46, 0.41],
        std: [0.27, 0.26, 0.28],
    }
}

fn whisper(bins: usize, padding: AudioPadding) -> AudioProcessor {
    let (max_seconds, tokens) = (300.0, AudioTokens::CrossAttention);
    AudioProcessor { sample_rate: 16_000, fft: 400, hop: 160, bins, padding, max_seconds, tokens }
}
