//! What can go wrong in an operation. Shape faults are programming errors of a model and name the operation.

/// Result of a tensor operation.
pub type Result<T> = std::result::Result<T, KernelError>;

/// A failed tensor operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KernelError {
    /// Operands do not fit together.
    #[error("{op}: {detail}")]
    Shape {
        /// The operation, as named in [`crate::Backend`].
        op: &'static str,
        /// What was given and what was expected.
        detail: String,
    },
    /// The device has no room for an allocation.
    #[error("{op}: out of device memory, {bytes} bytes asked")]
    OutOfMemory {
        /// The operation that asked.
        op: &'static str,
        /// Size of the refused allocation.
        bytes: usize,
    },
    /// The backend cannot do this (a weight format, a head size).
    #[error("{op}: {detail}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What is not supported, and what is.
        detail: String,
    },
    /// The device or its driver reported a failure.
    #[error("device: {0}")]
    Device(String),
}

impl KernelError {
    /// A [`KernelError::Shape`].
    pub fn shape(op: &'static str, detail: impl Into<String>) -> Self {
        Self::Shape { op, detail: detail.into() }
    }
}
