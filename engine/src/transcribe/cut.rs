//! A clip's log-mel frames, cut into encoder windows and padded as the reference pads.

use crate::card::{AudioPadding, ModelCard};
use crate::error::{EngineError, ErrorKind, Result};
use crate::media::{LogMel, MediaId};

use super::windows::{Mode, Window, Windows};

/// Log-mel values are `(log10(power) + 4) / 4`, at most 8 decades under the loudest of the clip and never under 1e-10:
/// two below the maximum, but not under this.
const LEAST: f32 = -1.5;
const RANGE: f32 = 2.0;

/// All frames of a clip.
pub(super) struct Clip {
    mel: LogMel,
    /// Frames that hold the clip; those behind are padding.
    frames: usize,
    /// Frames in an encoder window.
    width: usize,
    frame_seconds: f64,
}

impl Clip {
    /// Checks the frames against the model.
    pub(super) fn new(card: &ModelCard, mel: LogMel, frames: Option<usize>) -> Result<Self> {
        let malformed = |message: String| Err(EngineError::new(ErrorKind::Malformed, message));
        let audio = card
            .audio
            .as_ref()
            .ok_or_else(|| EngineError::new(ErrorKind::Unsupported, format!("model {} does not listen", card.name)))?;
        let AudioPadding::Window(width) = audio.padding else {
            let message = format!("model {} takes clips whole, not in windows", card.name);
            return Err(EngineError::new(ErrorKind::Unsupported, message));
        };
        let frames = frames.unwrap_or(mel.frames);
        if frames == 0 {
            return malformed("the clip has no audio: zero frames".to_owned());
        }
        if frames > mel.frames || mel.bins != audio.bins || mel.values.len() != mel.frames * mel.bins {
            return malformed(format!(
                "a clip of {frames} frames came as {} frames of {} bands in {} values; {} takes {} bands",
                mel.frames,
                mel.bins,
                mel.values.len(),
                card.name,
                audio.bins
            ));
        }
        let frame_seconds = audio.hop as f64 / audio.sample_rate as f64;
        Ok(Self { mel, frames, width, frame_seconds }.in_silence())
    }

    /// A clip shorter than a window ends in silence up to the window.
    fn in_silence(mut self) -> Self {
        if self.mel.frames < self.width {
            let loudest = self.mel.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            self.mel.values.resize(self.width * self.mel.bins, (loudest - RANGE).max(LEAST));
            self.mel.frames = self.width;
        }
        self
    }

    pub(super) fn frame_seconds(&self) -> f64 {
        self.frame_seconds
    }

    /// Length of the clip.
    pub(super) fn seconds(&self) -> f64 {
        self.frames as f64 * self.frame_seconds
    }

    /// The plan of its windows.
    pub(super) fn windows(&self, first_timestamp: u32, mode: Mode) -> Windows {
        Windows::new(self.frames, self.width, first_timestamp, mode)
    }

    /// The frames of a window. Of a clip of one window, silence behind its end is kept; everything else behind the end
    /// is zeros.
    pub(super) fn cut(&self, window: Window) -> LogMel {
        let bins = self.mel.bins;
        let known = self.frames.max(self.width);
        let rows = window.start..(window.start + self.width).min(known);
        let mut values = Vec::with_capacity(self.width * bins);
        values.extend_from_slice(&self.mel.values[rows.start * bins..rows.end * bins]);
        values.resize(self.width * bins, 0.0);
        LogMel { values, frames: self.width, bins, id: self.identity(rows) }
    }

    /// Identity of the values: the clip's, and which of its frames.
    fn identity(&self, rows: std::ops::Range<usize>) -> MediaId {
        let mut hash = blake3::Hasher::new();
        hash.update(b"transcription window");
        hash.update(&self.mel.id.0);
        for number in [rows.start, rows.end, self.width] {
            hash.update(&(number as u64).to_le_bytes());
        }
        MediaId(*hash.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(frames: usize, width: usize, known: usize) -> Clip {
        let values = (0..known * 2).map(|value| value as f32 / 10.0).collect();
        let mel = LogMel { values, frames: known, bins: 2, id: MediaId([1; 32]) };
        Clip { mel, frames, width, frame_seconds: 0.01 }.in_silence()
    }

    #[test]
    fn a_short_clip_ends_in_silence() {
        let clip = clip(2, 4, 2);
        let window = clip.cut(Window { start: 0, frames: 2 });
        assert_eq!(window.values, [0.0, 0.1, 0.2, 0.3, -1.5, -1.5, -1.5, -1.5]);
        assert_eq!((window.frames, window.bins), (4, 2));
    }

    #[test]
    fn a_later_window_of_a_short_clip_ends_in_zeros() {
        let clip = clip(2, 4, 2);
        assert_eq!(clip.cut(Window { start: 1, frames: 1 }).values, [0.2, 0.3, -1.5, -1.5, -1.5, -1.5, 0.0, 0.0]);
    }

    #[test]
    fn behind_a_long_clip_lie_zeros_even_when_it_came_padded() {
        let clip = clip(5, 4, 8);
        assert_eq!(clip.cut(Window { start: 4, frames: 1 }).values, [0.8, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn windows_have_identities_of_their_own() {
        let clip = clip(8, 4, 8);
        let [first, second] = [0, 4].map(|start| clip.cut(Window { start, frames: 4 }).id);
        assert_ne!(first, second);
        assert_eq!(first, clip.cut(Window { start: 0, frames: 4 }).id);
    }
}
