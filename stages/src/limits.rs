//! What a file may cost at most. Every limit is checked from headers first and again while decoding, because headers lie.

use crate::error::{Result, StageError};

/// Limits of all media.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of pictures.
    pub image: ImageLimits,
    /// Of clips.
    pub audio: AudioLimits,
}

/// Limits of one picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Pixels as stored: width times height.
    pub pixels: usize,
    /// Pixels on the longer side.
    pub side: usize,
}

/// Limits of one clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AudioLimits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Seconds of sound.
    pub seconds: f64,
    /// Samples a second of one channel, as stored.
    pub sample_rate: u32,
    /// Channels, as stored.
    pub channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            image: ImageLimits { bytes: 32 << 20, pixels: 64 << 20, side: 1 << 15 },
            audio: AudioLimits { bytes: 256 << 20, seconds: 7200.0, sample_rate: 384_000, channels: 32 },
        }
    }
}

impl ImageLimits {
    /// Checks the size of the file.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        check_bytes("image", bytes, self.bytes)
    }

    /// Checks the size that a header states, before anything of that size is allocated.
    pub(crate) fn check_size(&self, width: usize, height: usize) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(StageError::malformed("image has no pixels: its header states a side of 0"));
        }
        if width.max(height) > self.side {
            let text = format!("image is {width}x{height}: a side may have at most {} pixels", self.side);
            return Err(StageError::too_large(text));
        }
        if width.saturating_mul(height) > self.pixels {
            let text = format!("image is {width}x{height}: at most {} pixels are accepted", self.pixels);
            return Err(StageError::too_large(text));
        }
        Ok(())
    }
}

impl AudioLimits {
    /// Checks the size of the file.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<()> {
        check_bytes("audio", bytes, self.bytes)
    }

    /// Checks a length in seconds, stated or reached.
    pub(crate) fn check_seconds(&self, seconds: f64) -> Result<()> {
        if seconds > self.seconds {
            let text = format!("audio is longer than the {:.0} seconds that are accepted", self.seconds);
            return Err(StageError::too_large(text));
        }
        Ok(())
    }

    /// Checks a sample rate and a number of channels.
    pub(crate) fn check_layout(&self, rate: u32, channels: usize) -> Result<()> {
        if rate == 0 {
            return Err(StageError::malformed("audio states a sample rate of 0"));
        }
        if channels == 0 {
            return Err(StageError::malformed("audio states 0 channels"));
        }
        if rate > self.sample_rate {
            let text = format!("audio has {rate} samples a second: at most {} are accepted", self.sample_rate);
            return Err(StageError::too_large(text));
        }
        if channels > self.channels {
            let text = format!("audio has {channels} channels: at most {} are accepted", self.channels);
            return Err(StageError::too_large(text));
        }
        Ok(())
    }
}

fn check_bytes(what: &str, bytes: usize, most: usize) -> Result<()> {
    if bytes == 0 {
        return Err(StageError::malformed(format!("{what} file is empty")));
    }
    if bytes > most {
        return Err(StageError::too_large(format!("{what} file has {bytes} bytes: at most {most} are accepted")));
    }
    Ok(())
}
