//! The audio stage.

use bytes::Bytes;
use weft_engine::card::AudioProcessor;
use weft_engine::media::LogMel;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::limits::AudioLimits;
use crate::prepared::Worked;

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

/// Facts of a clip from its header alone, for pricing.
pub fn audio_facts(bytes: &[u8]) -> Result<AudioFacts> {
    let _ = bytes;
    todo!()
}

/// One clip's preparation.
pub(crate) struct Task<'a> {
    pub(crate) limits: AudioLimits,
    pub(crate) threads: usize,
    pub(crate) cancel: &'a Cancel,
}

impl Task<'_> {
    pub(crate) fn prepare(
        &self,
        bytes: Bytes,
        processor: &AudioProcessor,
    ) -> Result<Worked<LogMel>> {
        let _ = (bytes, processor, self.threads, self.limits);
        self.cancel.check()?;
        todo!()
    }
}
