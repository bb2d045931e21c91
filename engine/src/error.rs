//! Errors with a class. The class is stated where the fact is known; only the HTTP edge maps it to a number.

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, EngineError>;

/// What sort of failure it is, and so what a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The input cannot be understood: broken file, broken JSON, wrong type.
    Malformed,
    /// Understood, but not something this service does: an unknown codec, a model without ears.
    Unsupported,
    /// Over a stated limit in bytes, pixels, seconds or tokens.
    TooLarge,
    /// No room right now; the same request may succeed later.
    Overloaded,
    /// No such model, pipeline, file or request.
    NotFound,
    /// The caller went away or asked to stop.
    Cancelled,
    /// The request's time was up.
    Deadline,
    /// A fault of this service.
    Internal,
}

impl ErrorKind {
    /// Stable name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::TooLarge => "too_large",
            Self::Overloaded => "overloaded",
            Self::NotFound => "not_found",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Internal => "internal",
        }
    }
}

/// A failure with its class and a text for the caller. Texts never hold payloads (prompt text, media bytes).
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct EngineError {
    /// The class.
    pub kind: ErrorKind,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl EngineError {
    /// An error of this class.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<weft_kernels::KernelError> for EngineError {
    fn from(error: weft_kernels::KernelError) -> Self {
        let kind = match error {
            weft_kernels::KernelError::OutOfMemory { .. } => ErrorKind::Overloaded,
            weft_kernels::KernelError::Unsupported { .. } => ErrorKind::Unsupported,
            _ => ErrorKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}
