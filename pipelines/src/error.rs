//! Errors with a class, a text for the caller and the part of the input they are about.

use std::time::Duration;

pub use weft_stages::ErrorKind;

use crate::admission::Reason;

/// Result of a call into the pipelines.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The class.
    pub kind: ErrorKind,
    /// What is wrong and what to do about it; never holds payloads.
    pub message: String,
    /// The part of the input: `image[1]`, `messages[0].content[2]`, `options.temperature`.
    pub param: Option<String>,
    /// Set when the service refused for want of room, with when to come back.
    pub refusal: Option<Refusal>,
}

/// Why there is no room, and when there may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Predicted time until there is room.
    pub retry_after: Duration,
}

impl Error {
    /// An error of this class.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, refusal: None }
    }

    /// The same error, about this part of the input.
    #[must_use]
    pub fn about(mut self, param: impl Into<String>) -> Self {
        self.param.get_or_insert_with(|| param.into());
        self
    }
}

impl From<weft_stages::StageError> for Error {
    fn from(error: weft_stages::StageError) -> Self {
        Self::new(error.kind, error.message)
    }
}
