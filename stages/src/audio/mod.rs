//! The audio stage: bytes of a clip to log-mel frames.
//!
//! Steps: sniff by content, header and limits, decode, average the channels, change the rate, log-mel. Rates, windows and
//! bands come from the model's [`AudioProcessor`].

mod decode;
mod edits;
mod mel;
mod opus;
mod resample;
mod sink;
mod sniff;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use weft_engine::card::{AudioPadding, AudioProcessor};
use weft_engine::media::{LogMel, MediaId};

use crate::cancel::Cancel;
use crate::error::{Result, StageError, guarded};
use crate::limits::AudioLimits;
use crate::prepared::{MediaFacts, Worked};

/// Containers that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AudioFormat {
    /// RIFF WAVE.
    Wav,
    /// MPEG audio frames.
    Mp3,
    /// FLAC.
    Flac,
    /// Ogg with Vorbis, Opus or FLAC.
    Ogg,
    /// MP4 with AAC, ALAC, Opus or MP3.
    Mp4,
    /// AAC in ADTS frames.
    Adts,
    /// AIFF.
    Aiff,
    /// WebM and Matroska.
    Mkv,
}

/// A clip's length in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    /// As the header states it.
    Stated(f64),
    /// From the rate of the first frames and the size of the file.
    Estimated(f64),
    /// Counted while decoding.
    Decoded(f64),
}

impl Length {
    /// Seconds, however they are known.
    pub const fn seconds(self) -> f64 {
        match self {
            Self::Stated(seconds) | Self::Estimated(seconds) | Self::Decoded(seconds) => seconds,
        }
    }
}

/// What a clip's header says, or what decoding it has shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioFacts {
    /// Container by content.
    pub format: AudioFormat,
    /// Samples a second of one channel, as stored.
    pub sample_rate: u32,
    /// Channels, as stored.
    pub channels: usize,
    /// Length.
    pub length: Length,
}

/// Facts of a clip from its header alone, for pricing. Decodes nothing and applies no limit.
pub fn audio_facts(bytes: &[u8]) -> Result<AudioFacts> {
    if bytes.is_empty() {
        return Err(StageError::malformed("audio file is empty"));
    }
    guarded(|| Ok(decode::open(Bytes::copy_from_slice(bytes))?.facts()))
}

/// One clip's preparation.
pub(crate) struct Task<'a> {
    pub(crate) limits: AudioLimits,
    pub(crate) threads: usize,
    pub(crate) cancel: &'a Cancel,
}

impl Task<'_> {
    /// Header, limits, samples, frames; asks between packets whether the result is still wanted.
    pub(crate) fn prepare(&self, bytes: Bytes, processor: &AudioProcessor) -> Result<Worked<LogMel>> {
        let mut limits = self.limits;
        limits.check_bytes(bytes.len())?;
        if processor.padding == AudioPadding::None {
            // All of the clip enters the prompt at once: what the model cannot take is refused, never cut.
            limits.seconds = limits.seconds.min(processor.max_seconds);
        }
        let opened = decode::open(bytes)?;
        let rate =
            u32::try_from(processor.sample_rate).map_err(|_| StageError::unsupported("sample rate of the model"))?;
        let clip = opened.decode(rate, &limits, self.cancel)?;
        self.cancel.check()?;
        let id = identity(&clip, processor);
        let (values, frames) = mel::log_mel(&clip.samples, processor, self.threads);
        let value = LogMel { values, frames, bins: processor.bins, id };
        Ok(Worked { value, warnings: clip.warnings, source: MediaFacts::Audio(clip.facts) })
    }
}

/// 256-bit hash of samples, layout and every setting of the processor.
fn identity(clip: &decode::Clip, processor: &AudioProcessor) -> MediaId {
    let AudioProcessor { sample_rate, fft, hop, bins, padding, max_seconds, tokens } = processor;
    let window = match padding {
        AudioPadding::None => 0,
        AudioPadding::Window(frames) => *frames,
    };
    let mut hasher = blake3::Hasher::new_derive_key("weft audio v1: mono f32, layout, processor");
    let source = [clip.facts.sample_rate as usize, clip.facts.channels, clip.samples.len()];
    for number in source.into_iter().chain([*sample_rate, *fft, *hop, *bins, window, *tokens as usize]) {
        hasher.update(&(number as u64).to_le_bytes());
    }
    hasher.update(&max_seconds.to_le_bytes());
    let mut block = Vec::with_capacity(4 * 4096);
    for samples in clip.samples.chunks(4096) {
        block.clear();
        block.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        hasher.update(&block);
    }
    MediaId(*hasher.finalize().as_bytes())
}
