//! The one error of the stages: a class that a caller can act on, and a text that never holds payloads.

use weft_engine::EngineError;
pub use weft_engine::ErrorKind;

/// Result of a stage.
pub type Result<T> = std::result::Result<T, StageError>;

/// A failure with its class and a text for the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StageError {
    /// The class.
    pub kind: ErrorKind,
    /// What is wrong and, where there is one, the way out.
    pub message: String,
}

impl StageError {
    /// An error of this class.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The input cannot be understood.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    /// Understood, but not done here.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Over a stated limit.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooLarge, message)
    }
}

/// Runs work that reads hostile bytes: a panic inside a decoder is an error of that one call.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "preparing this input failed inside a decoder; other requests are not affected";
        Err(StageError::new(ErrorKind::Internal, text))
    })
}

impl From<EngineError> for StageError {
    fn from(error: EngineError) -> Self {
        Self::new(error.kind, error.message)
    }
}
