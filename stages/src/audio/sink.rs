//! Where decoded samples go: channels are averaged, then the rate changes; memory grows with the result only.

use super::decode::Clip;
use super::resample::Resampler;
use super::{AudioFacts, AudioFormat, Length};
use crate::error::{Result, StageError};
use crate::limits::AudioLimits;

/// Where decoded samples go: averaged over channels, then brought to the wanted rate.
pub(super) struct Sink<'a> {
    limits: &'a AudioLimits,
    rate: u32,
    priming: f64,
    heard: Option<(u32, usize)>,
    resampler: Option<Resampler>,
    samples: Vec<f32>,
    seconds: f64,
    mono: Vec<f32>,
}

impl<'a> Sink<'a> {
    /// A sink for samples of `rate`; the first `priming` seconds are the encoder's and dropped.
    pub(super) fn new(limits: &'a AudioLimits, rate: u32, priming: f64) -> Self {
        Self {
            limits,
            rate,
            priming,
            heard: None,
            resampler: None,
            samples: Vec::new(),
            seconds: 0.0,
            mono: Vec::new(),
        }
    }

    /// Seconds taken so far.
    pub(super) const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Takes interleaved samples as they were decoded.
    pub(super) fn take(&mut self, interleaved: &[f32], rate: u32, channels: usize) -> Result<()> {
        if interleaved.is_empty() {
            return Ok(());
        }
        self.limits.check_layout(rate, channels)?;
        let interleaved = self.without_priming(interleaved, rate, channels);
        self.seconds += (interleaved.len() / channels) as f64 / f64::from(rate);
        self.limits.check_seconds(self.seconds)?;
        if self.heard.map(|(rate, _)| rate) != Some(rate) {
            self.flush()?;
            self.resampler = Some(Resampler::new(rate, self.rate)?);
        }
        self.heard = Some((rate, channels));
        let share = 1.0 / channels as f32;
        let frames = interleaved.chunks_exact(channels);
        let number = |value: f32| if value.is_finite() { value } else { 0.0 };
        self.mono.clear();
        self.mono.extend(frames.map(|frame| frame.iter().map(|value| number(*value)).sum::<f32>() * share));
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&self.mono, &mut self.samples)?;
        }
        Ok(())
    }

    fn without_priming<'s>(&mut self, samples: &'s [f32], rate: u32, channels: usize) -> &'s [f32] {
        let dropped = ((self.priming * f64::from(rate)).round() as usize).min(samples.len() / channels);
        self.priming -= dropped as f64 / f64::from(rate);
        &samples[dropped * channels..]
    }

    fn flush(&mut self) -> Result<()> {
        match self.resampler.take() {
            Some(resampler) => resampler.finish(&mut self.samples),
            None => Ok(()),
        }
    }

    /// The clip; an error when nothing was taken.
    pub(super) fn finish(mut self, format: AudioFormat, warnings: Vec<String>) -> Result<Clip> {
        self.flush()?;
        let (Some((sample_rate, channels)), false) = (self.heard, self.samples.is_empty()) else {
            return Err(StageError::malformed("audio holds no samples: nothing in it could be decoded"));
        };
        let facts = AudioFacts { format, sample_rate, channels, length: Length::Decoded(self.seconds) };
        Ok(Clip { samples: self.samples, facts, warnings })
    }
}
