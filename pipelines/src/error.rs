//! Errors with a class, a text for the caller and the part of the input they are about.

pub use weft_stages::ErrorKind;

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
}

impl Error {
    /// An error of this class.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// The same error, about this part of the input.
    #[must_use]
    pub fn about(mut self, param: impl Into<String>) -> Self {
        self.param.get_or_insert_with(|| param.into());
        self
    }
}
