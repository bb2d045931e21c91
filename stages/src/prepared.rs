//! What a stage hands back: the value, how long it took, and what its caller should be told about the file.

use std::time::Duration;

use crate::audio::AudioFacts;
use crate::image::ImageFacts;

/// A prepared medium with its history.
#[derive(Debug, Clone)]
pub struct Prepared<T> {
    /// The engine's input.
    pub value: T,
    /// Time in the inbox.
    pub queued: Duration,
    /// Time of work.
    pub worked: Duration,
    /// What was not as it should be and yet no reason to refuse, in words (`skipped 2 damaged packets`).
    pub warnings: Vec<String>,
    /// What the file turned out to be.
    pub source: MediaFacts,
}

/// What a file is, learned while decoding it.
#[derive(Debug, Clone, PartialEq)]
pub enum MediaFacts {
    /// A picture.
    Image(ImageFacts),
    /// A clip.
    Audio(AudioFacts),
}

/// Result of a stage's work before its times are known.
#[derive(Debug)]
pub(crate) struct Worked<T> {
    pub(crate) value: T,
    pub(crate) warnings: Vec<String>,
    pub(crate) source: MediaFacts,
}
