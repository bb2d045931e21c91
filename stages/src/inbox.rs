//! The bounded queue in front of a pool. It knows no actor: a job is a boxed piece of work with a way to ask whether it is
//! still wanted.
//!
//! Invariants: never more than `capacity` jobs or `bytes` bytes wait; a job whose caller has gone makes room for a new
//! one; after `close` nothing enters and what waited is dropped, which tells its callers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::error::{ErrorKind, Result, StageError};

/// One piece of work.
pub(crate) struct Job {
    /// Does the work and answers; takes the time it waited.
    pub(crate) run: Box<dyn FnOnce(Duration) + Send>,
    /// Set when nobody waits for the answer.
    pub(crate) cancel: Cancel,
    /// Bytes of media that the job keeps alive.
    pub(crate) bytes: usize,
}

/// See the module.
pub(crate) struct Inbox {
    name: &'static str,
    capacity: usize,
    bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Instant, Job)>,
    bytes: usize,
    closed: bool,
}

impl Inbox {
    /// An inbox for at most `capacity` jobs that hold at most `bytes` bytes together.
    pub(crate) fn new(name: &'static str, capacity: usize, bytes: usize) -> Self {
        Self { name, capacity, bytes, state: Mutex::default() }
    }

    /// Queues a job, or says at once why not.
    pub(crate) fn push(&self, job: Job) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(StageError::new(ErrorKind::Internal, "the service is shutting down"));
        }
        if !self.fits(&state, job.bytes) {
            state.jobs.retain(|(_, job)| !job.cancel.is_set());
            state.bytes = state.jobs.iter().map(|(_, job)| job.bytes).sum();
        }
        if !self.fits(&state, job.bytes) {
            let text = format!("the {} stage has {} jobs waiting; try again later", self.name, state.jobs.len());
            return Err(StageError::new(ErrorKind::Overloaded, text));
        }
        state.bytes += job.bytes;
        state.jobs.push_back((Instant::now(), job));
        Ok(())
    }

    /// The oldest job that is still wanted, and how long it waited.
    pub(crate) fn pop(&self) -> Option<(Duration, Job)> {
        let mut state = self.lock();
        while let Some((since, job)) = state.jobs.pop_front() {
            state.bytes -= job.bytes;
            if !job.cancel.is_set() {
                return Some((since.elapsed(), job));
            }
        }
        None
    }

    /// Jobs that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Refuses all further jobs and drops those that wait.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closed = true;
            state.bytes = 0;
            std::mem::take(&mut state.jobs)
        };
        drop(waiting);
    }

    // A job larger than the whole byte budget may wait alone: its own size was checked against the medium's limit.
    fn fits(&self, state: &State, bytes: usize) -> bool {
        state.jobs.len() < self.capacity && (state.jobs.is_empty() || state.bytes.saturating_add(bytes) <= self.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No job runs and no foreign code panics under the lock, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
