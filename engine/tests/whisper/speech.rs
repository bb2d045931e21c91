//! Recorded speech for the real models: FLAC to samples, and log-mel frames the slow and plain way (double precision,
//! no fast transform). The service's own front end lives elsewhere; this one is only here to feed the engine.

use std::fs::File;
use std::path::Path;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::formats::TrackType;
use symphonia::core::formats::probe::Hint;
use symphonia::core::io::MediaSourceStream;
use weft_engine::media::{LogMel, MediaId};

const FFT: usize = 400;
const HOP: usize = 160;
const BINS: usize = 80;
const WINDOW: usize = 3000;
const RATE: f64 = 16_000.0;

/// Samples of a mono file at 16 kHz.
pub(crate) fn read(path: &Path) -> Vec<f32> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let stream = MediaSourceStream::new(Box::new(file), Default::default());
    let probe = symphonia::default::get_probe();
    let mut reader = probe
        .probe(Hint::new().with_extension("flac"), stream, Default::default(), Default::default())
        .expect("a FLAC file");
    let track = reader.default_track(TrackType::Audio).expect("a track");
    let Some(CodecParameters::Audio(params)) = &track.codec_params else { panic!("no audio") };
    let mut decoder =
        symphonia::default::get_codecs().make_audio_decoder(params, &Default::default()).expect("a known codec");
    let (mut samples, mut part) = (Vec::new(), Vec::<f32>::new());
    while let Some(packet) = reader.next_packet().expect("whole packets") {
        let buffer = decoder.decode(&packet).expect("good packets");
        assert_eq!((f64::from(buffer.spec().rate()), buffer.spec().channels().count()), (RATE, 1));
        buffer.copy_to_vec_interleaved(&mut part);
        samples.extend_from_slice(&part);
    }
    samples
}

/// Log-mel as `WhisperFeatureExtractor` gives it: a short clip padded to 30 s, a long one as it is.
pub(crate) fn log_mel(samples: &[f32]) -> LogMel {
    let padded = samples.len().max(WINDOW * HOP);
    let half = FFT as isize / 2;
    // Silence behind the end, a reflection beyond both ends.
    let sample = |at: isize| {
        let last = padded as isize - 1;
        let at = if at < 0 {
            -at
        } else if at > last {
            2 * last - at
        } else {
            at
        };
        samples.get(at as usize).map_or(0.0, |&sample| f64::from(sample))
    };
    let frames = padded / HOP;
    let spectrum = Spectrum::new();
    let filters = slaney();
    let mut logs = Vec::with_capacity(frames * BINS);
    for frame in 0..frames {
        let from = (frame * HOP) as isize - half;
        if from > samples.len() as isize {
            logs.extend([-10.0; BINS]);
            continue;
        }
        let power = spectrum.power(&std::array::from_fn(|at| sample(from + at as isize)));
        for filter in &filters {
            let sum: f64 = filter.iter().zip(&power).map(|(weight, power)| weight * power).sum();
            logs.push(sum.max(1e-10).log10());
        }
    }
    let loudest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let values: Vec<f32> = logs.into_iter().map(|log| ((log.max(loudest - 8.0) + 4.0) / 4.0) as f32).collect();
    let hash = blake3::hash(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    LogMel { values, frames, bins: BINS, id: MediaId(*hash.as_bytes()) }
}

/// Periodic Hann window and a discrete Fourier transform by its definition.
struct Spectrum {
    window: Vec<f64>,
    cosines: Vec<f64>,
}

impl Spectrum {
    fn new() -> Self {
        let turn = |at: usize| std::f64::consts::TAU * at as f64 / FFT as f64;
        Self {
            window: (0..FFT).map(|at| 0.5 - 0.5 * turn(at).cos()).collect(),
            cosines: (0..FFT).map(|at| turn(at).cos()).collect(),
        }
    }

    fn power(&self, samples: &[f64; FFT]) -> Vec<f64> {
        let windowed: Vec<f64> = samples.iter().zip(&self.window).map(|(sample, weight)| sample * weight).collect();
        let bin = |bin: usize| {
            let (mut real, mut imaginary, mut at) = (0.0, 0.0, 0);
            for value in &windowed {
                real += value * self.cosines[at];
                // A sine is the cosine a quarter turn earlier.
                imaginary += value * self.cosines[(at + FFT - FFT / 4) % FFT];
                at = (at + bin) % FFT;
            }
            real * real + imaginary * imaginary
        };
        (0..=FFT / 2).map(bin).collect()
    }
}

/// Triangles on the Slaney scale, of equal area.
fn slaney() -> Vec<Vec<f64>> {
    let step = 6.4_f64.ln() / 27.0;
    let mel = |hertz: f64| if hertz < 1000.0 { hertz * 0.015 } else { 15.0 + (hertz / 1000.0).ln() / step };
    let hertz = |mel: f64| if mel < 15.0 { mel / 0.015 } else { 1000.0 * (step * (mel - 15.0)).exp() };
    let edge = |at: usize| hertz(mel(RATE / 2.0) * at as f64 / (BINS + 1) as f64);
    let filter = |band: usize| {
        let (low, middle, high) = (edge(band), edge(band + 1), edge(band + 2));
        let weight = move |bin: usize| {
            let at = bin as f64 * RATE / FFT as f64;
            ((at - low) / (middle - low)).min((high - at) / (high - middle)).max(0.0) * 2.0 / (high - low)
        };
        (0..=FFT / 2).map(weight).collect()
    };
    (0..BINS).map(filter).collect()
}
