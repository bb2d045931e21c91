//! Log-mel frames, equal to `WhisperFeatureExtractor` (transformers 5.17, `feature_extraction_whisper.py`,
//! `_torch_extract_fbank_features`): periodic Hann window, reflection at both ends, power spectrum, Slaney mel filters,
//! `log10` of at least 1e-10, at most 8 below the maximum, `(x + 4) / 4`, last frame dropped.
//!
//! [`AudioPadding::Window`]: silence up to one window of that many frames; a longer clip is one array of all its frames
//! (`samples / hop`, as in the reference's long form with `padding="longest"`), under one maximum. Whoever cuts it into
//! windows pads the last one with zeros *after* this normalisation, as `generate` does.
//!
//! [`AudioPadding::None`]: the reference pads with silence to its longest clip and masks: the last real frames therefore run
//! into silence, not into a reflection, and the frames past the end take part in the maximum. Frames: `ceil(samples / hop)`.

use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};
use weft_engine::card::{AudioPadding, AudioProcessor};

/// Least power, and its logarithm.
const FLOOR: f32 = 1e-10;
const SILENCE: f32 = -10.0;

/// `[frames, bins]`, one row a frame, and the number of frames.
pub(super) fn log_mel(samples: &[f32], processor: &AudioProcessor, threads: usize) -> (Vec<f32>, usize) {
    let &AudioProcessor { fft, hop, bins, padding, max_seconds, sample_rate, .. } = processor;
    let longest = (max_seconds * sample_rate as f64) as usize;
    let (padded, kept) = match padding {
        AudioPadding::Window(window) => {
            let padded = samples.len().max(window * hop);
            (padded, padded / hop)
        }
        AudioPadding::None => (samples.len().max(longest), samples.len().div_ceil(hop)),
    };
    let padded = padded.max(fft);
    // Frames past these see silence only.
    let audible = (samples.len() + fft / 2).div_ceil(hop).min(padded / hop);
    let signal = framed(samples, padded, fft, (audible.max(1) - 1) * hop + fft);
    let bank = Bank::new(processor);
    let mut values = vec![SILENCE; kept.max(audible) * bins];
    let share = audible.div_ceil(threads.max(1)).max(1);
    let loudest = std::thread::scope(|scope| {
        let bank = &bank;
        let mut pieces = values[..audible * bins].chunks_mut(share * bins).zip(signal_pieces(&signal, share * hop));
        let own = pieces.next();
        let others: Vec<_> = pieces.map(|(piece, signal)| scope.spawn(move || bank.frames(signal, piece))).collect();
        let first = own.map_or(SILENCE, |(piece, signal)| bank.frames(signal, piece));
        let join = |other: std::thread::ScopedJoinHandle<'_, f32>| {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).fold(first, f32::max)
    });
    let loudest = if audible < padded / hop { loudest.max(SILENCE) } else { loudest };
    values.truncate(kept * bins);
    for value in &mut values {
        *value = (value.max(loudest - 8.0) + 4.0) / 4.0;
    }
    (values, kept)
}

fn signal_pieces(signal: &[f32], step: usize) -> impl Iterator<Item = &[f32]> {
    (0..signal.len()).step_by(step).map(move |start| &signal[start..])
}

/// The samples with half a window before them, padded to `padded` and reflected there; as long as `length` asks.
fn framed(samples: &[f32], padded: usize, fft: usize, length: usize) -> Vec<f32> {
    let at = |index: usize| samples.get(index).copied().unwrap_or(0.0);
    let half = fft / 2;
    let mut signal = Vec::with_capacity(length);
    signal.extend((1..=half).rev().map(at));
    signal.extend_from_slice(&samples[..samples.len().min(length.saturating_sub(half))]);
    while signal.len() < length {
        let index = signal.len() - half;
        signal.push(if index < padded { at(index) } else { at(2 * (padded - 1) - index) });
    }
    signal
}

/// Window, transform and filters of one setting.
struct Bank {
    window: Vec<f32>,
    transform: Arc<dyn RealToComplex<f32>>,
    hop: usize,
    /// First bin and weights of each band.
    bands: Vec<(usize, Vec<f32>)>,
}

impl Bank {
    fn new(processor: &AudioProcessor) -> Self {
        let &AudioProcessor { fft, hop, bins, sample_rate, .. } = processor;
        let turn = std::f64::consts::TAU / fft as f64;
        Self {
            window: (0..fft).map(|i| (0.5 - 0.5 * (turn * i as f64).cos()) as f32).collect(),
            transform: RealFftPlanner::new().plan_fft_forward(fft),
            hop,
            bands: slaney(fft, bins, sample_rate),
        }
    }

    /// Logarithms of consecutive frames; returns the largest.
    fn frames(&self, signal: &[f32], out: &mut [f32]) -> f32 {
        let mut frame = self.transform.make_input_vec();
        let mut spectrum = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        let mut power = vec![0f32; spectrum.len()];
        let mut loudest = f32::MIN;
        for (index, row) in out.chunks_exact_mut(self.bands.len()).enumerate() {
            let samples = &signal[index * self.hop..][..frame.len()];
            for ((value, sample), weight) in frame.iter_mut().zip(samples).zip(&self.window) {
                *value = sample * weight;
            }
            let done = self.transform.process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok(), "buffers come from the transform itself");
            for (power, value) in power.iter_mut().zip(&spectrum) {
                *power = value.re * value.re + value.im * value.im;
            }
            for (value, (first, weights)) in row.iter_mut().zip(&self.bands) {
                let sum: f32 = power[*first..].iter().zip(weights).map(|(power, weight)| power * weight).sum();
                *value = sum.max(FLOOR);
            }
            for value in row {
                *value = log10(*value);
                loudest = loudest.max(*value);
            }
        }
        loudest
    }
}

/// The logarithm of a positive normal number to within 2e-6 (two units in the last place at ten), without a branch or a call, so that rows of it vectorise.
/// Polynomial of the natural logarithm near one: Cephes, `logf.c`.
#[inline(always)]
fn log10(value: f32) -> f32 {
    const POLYNOMIAL: [f32; 9] = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333_1e-1,
    ];
    // Bits of the square root of one half: what is left of the exponent lies between it and the square root of two.
    let exponent = (value.to_bits() as i32 - 0x3f35_04f3) >> 23;
    let rest = f32::from_bits((value.to_bits() as i32 - (exponent << 23)) as u32) - 1.0;
    let curve = POLYNOMIAL.iter().fold(0.0, |sum, term| sum * rest + term);
    let natural = rest - 0.5 * rest * rest + rest * rest * rest * curve;
    natural * std::f32::consts::LOG10_E + exponent as f32 * std::f32::consts::LOG10_2
}

/// Triangular filters on the Slaney scale with Slaney's area normalisation (`mel_filter_bank` in transformers'
/// `audio_utils.py`), without their zeros.
fn slaney(fft: usize, bins: usize, sample_rate: usize) -> Vec<(usize, Vec<f32>)> {
    let step = 6.4f64.ln() / 27.0;
    let to_mel = |hertz: f64| {
        if hertz < 1000.0 { 3.0 * hertz / 200.0 } else { 15.0 + (hertz / 1000.0).ln() / step }
    };
    let to_hertz = |mel: f64| {
        if mel < 15.0 { 200.0 * mel / 3.0 } else { 1000.0 * (step * (mel - 15.0)).exp() }
    };
    let top = sample_rate as f64 / 2.0;
    let edges: Vec<f64> = (0..bins + 2).map(|i| to_hertz(to_mel(top) * i as f64 / (bins + 1) as f64)).collect();
    let hertz = |bin: usize| top * bin as f64 / (fft / 2) as f64;
    let band = |edges: &[f64]| {
        let (low, middle, high) = (edges[0], edges[1], edges[2]);
        let weight = |bin: usize| {
            let (up, down) = ((hertz(bin) - low) / (middle - low), (high - hertz(bin)) / (high - middle));
            (up.min(down).max(0.0) * 2.0 / (high - low)) as f32
        };
        let first = (0..=fft / 2).find(|bin| weight(*bin) > 0.0).unwrap_or(0);
        let weights = (first..=fft / 2).map(weight).take_while(|weight| *weight > 0.0).collect();
        (first, weights)
    };
    edges.windows(3).map(band).collect()
}

#[cfg(test)]
mod tests {
    use super::log10;

    #[test]
    fn logarithms_are_those_of_the_library() {
        let mut worst = 0.0f32;
        for step in 0..=2_000_000 {
            // From 1e-10 to 1e10.
            let value = 10f64.powf(f64::from(step) / 1e5 - 10.0) as f32;
            worst = worst.max((f64::from(log10(value)) - f64::from(value).log10()).abs() as f32);
        }
        assert!(worst < 2e-6, "{worst}");
    }
}
