//! How work learns that its caller has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ErrorKind, Result, StageError};

/// Asked between steps of work; never set again to "wanted".
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Whether nobody waits any more.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends the work when nobody waits any more.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(StageError::new(ErrorKind::Cancelled, "the caller has gone")) } else { Ok(()) }
    }
}

/// Held by the caller; its drop says that nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Cancel);

impl Waiting {
    /// The worker's end.
    pub(crate) fn cancel(&self) -> Cancel {
        self.0.clone()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
