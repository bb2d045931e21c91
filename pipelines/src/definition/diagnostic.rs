//! What is wrong with a definition, and where.

use serde::Serialize;

/// A fault in a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}{}", remedy.as_deref().map(|r| format!(" ({r})")).unwrap_or_default())]
pub struct Diagnostic {
    /// File.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Diagnostic {
    /// The same fault with what to do about it.
    #[must_use]
    pub(super) fn remedy(mut self, remedy: impl Into<Option<String>>) -> Self {
        self.remedy = remedy.into();
        self
    }
}
