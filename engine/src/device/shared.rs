//! What handles and the device thread share: counters, the byte account of media, permits for waiting requests, and the
//! way to wake the thread. No tensor, no sequence.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;

use crate::error::{EngineError, ErrorKind, Result};
use crate::media::MediaId;
use crate::scheduler::CostModel;
use crate::stats::{Counters, EngineStats, StepLog};

/// One medium of one model: the key of encoder outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MediaKey {
    /// Index of the model.
    pub(crate) model: usize,
    /// Identity of the medium.
    pub(crate) id: MediaId,
}

/// State that both sides see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counters: Counters,
    pub(crate) steps: StepLog,
    device: OnceLock<Thread>,
    stopping: AtomicBool,
    alive: AtomicBool,
    waiting: AtomicUsize,
    max_waiting: usize,
    media_bytes: AtomicUsize,
    max_media_bytes: usize,
    /// What the device has learned, as of a moment ago.
    costs: Mutex<Arc<CostModel>>,
    /// Live leases, so that a medium in flight is charged, sent and encoded once.
    leases: Mutex<HashMap<MediaKey, Weak<MediaLease>>>,
}

impl Shared {
    pub(crate) fn new(max_waiting: usize, max_media_bytes: usize) -> Self {
        Self {
            counters: Counters::default(),
            steps: StepLog::default(),
            device: OnceLock::new(),
            stopping: AtomicBool::new(false),
            alive: AtomicBool::new(true),
            waiting: AtomicUsize::new(0),
            max_waiting,
            media_bytes: AtomicUsize::new(0),
            max_media_bytes,
            costs: Mutex::new(Arc::new(CostModel::new(Vec::new()))),
            leases: Mutex::new(HashMap::new()),
        }
    }

    /// Called once by the device thread: from now on it can be woken.
    pub(crate) fn register_device(&self) {
        // A second registration would mean two device threads; the first one stays.
        let _ = self.device.set(std::thread::current());
    }

    /// Lets handles predict by what the device has learned.
    pub(crate) fn publish(&self, costs: &CostModel) {
        let costs = Arc::new(costs.clone());
        *self.costs.lock().unwrap_or_else(PoisonError::into_inner) = costs;
    }

    /// What the device has learned.
    pub(crate) fn costs(&self) -> Arc<CostModel> {
        self.costs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the device thread's sleep, or the next one if it is awake.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.device.get() {
            thread.unpark();
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Release);
        self.wake();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    pub(crate) fn alive(&self) -> bool {
        self.alive.load(SeqCst)
    }

    /// Called when the device thread ends, before it empties its inbox.
    pub(crate) fn mark_dead(&self) {
        self.alive.store(false, SeqCst);
    }

    pub(crate) fn stats(&self) -> EngineStats {
        EngineStats {
            waiting: self.waiting.load(Acquire),
            media_bytes: self.media_bytes.load(Acquire),
            alive: self.alive(),
            ..self.counters.snapshot()
        }
    }

    /// A place among the waiting requests, or `Overloaded`.
    pub(crate) fn permit(self: &Arc<Self>) -> Result<WaitingPermit> {
        let taken =
            self.waiting.fetch_update(AcqRel, Acquire, |waiting| (waiting < self.max_waiting).then_some(waiting + 1));
        match taken {
            Ok(_) => Ok(WaitingPermit { shared: self.clone() }),
            Err(waiting) => Err(EngineError::new(
                ErrorKind::Overloaded,
                format!("{waiting} requests wait already; try again later"),
            )),
        }
    }

    /// The lease of a medium and whether it is new. A new one is charged its bytes and given to `send`; it becomes
    /// visible to others only when that went well.
    pub(crate) fn lease(
        self: &Arc<Self>,
        order: LeaseOrder,
        send: impl FnOnce(Weak<MediaLease>) -> Result<()>,
    ) -> Result<(Arc<MediaLease>, Freshness)> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = leases.get(&order.key).and_then(Weak::upgrade) {
            return Ok((live, Freshness::Shared));
        }
        if order.bytes > self.max_media_bytes {
            let detail =
                format!("one medium of {} bytes; at most {} bytes are taken", order.bytes, self.max_media_bytes);
            return Err(EngineError::new(ErrorKind::TooLarge, detail));
        }
        let limit = self.max_media_bytes - order.bytes;
        self.media_bytes.fetch_update(AcqRel, Acquire, |held| (held <= limit).then_some(held + order.bytes)).map_err(
            |held| {
                let detail = format!("media of {held} bytes are in the works; try again later");
                EngineError::new(ErrorKind::Overloaded, detail)
            },
        )?;
        let lease = Arc::new(MediaLease {
            key: order.key,
            shape: order.shape,
            charged: AtomicUsize::new(order.bytes),
            shared: self.clone(),
        });
        if let Err(error) = send(Arc::downgrade(&lease)) {
            // Its drop takes the lock.
            drop(leases);
            return Err(error);
        }
        leases.insert(order.key, Arc::downgrade(&lease));
        Ok((lease, Freshness::New))
    }
}

/// Whether a lease was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Made by this call: its medium must be sent to the device.
    New,
    /// Another ticket holds it too.
    Shared,
}

/// What a lease is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseOrder {
    pub(crate) key: MediaKey,
    pub(crate) shape: MediaShape,
    /// Bytes of the prepared medium.
    pub(crate) bytes: usize,
}

/// What a medium is to a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MediaShape {
    /// A picture with this patch grid.
    Image(crate::media::Grid, usize),
    /// A clip of this many prompt tokens.
    Audio(usize),
    /// A clip that is attended to: this many encoded frames.
    Cross(usize),
}

impl MediaShape {
    /// Prompt tokens it stands for.
    pub(crate) fn tokens(self) -> usize {
        match self {
            Self::Image(_, tokens) | Self::Audio(tokens) => tokens,
            Self::Cross(_) => 0,
        }
    }

    /// Rows that its encoder must give.
    pub(crate) fn encoded_rows(self) -> usize {
        match self {
            Self::Image(_, rows) | Self::Audio(rows) | Self::Cross(rows) => rows,
        }
    }
}

/// Keeps one medium wanted. When the last clone of its `Arc` goes, the medium's work is cancelled or its output becomes
/// evictable; the device thread sees that through its `Weak`.
#[derive(Debug)]
pub(crate) struct MediaLease {
    pub(crate) key: MediaKey,
    pub(crate) shape: MediaShape,
    charged: AtomicUsize,
    shared: Arc<Shared>,
}

impl MediaLease {
    /// Replaces the charge: the input is gone, its output of this many bytes is there.
    pub(crate) fn recharge(&self, bytes: usize) {
        let before = self.charged.swap(bytes, AcqRel);
        self.shared.media_bytes.fetch_add(bytes, AcqRel);
        self.shared.media_bytes.fetch_sub(before, AcqRel);
    }
}

impl Drop for MediaLease {
    fn drop(&mut self) {
        self.shared.media_bytes.fetch_sub(self.charged.load(Acquire), AcqRel);
        let mut leases = self.shared.leases.lock().unwrap_or_else(PoisonError::into_inner);
        // A successor for the same medium may stand here already.
        if leases.get(&self.key).is_some_and(|lease| lease.strong_count() == 0) {
            leases.remove(&self.key);
        }
        drop(leases);
        self.shared.wake();
    }
}

/// Wakes the device thread when dropped.
#[derive(Debug)]
pub(crate) struct WakeOnDrop(pub(crate) Arc<Shared>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// A place among the waiting requests; returned on drop.
#[derive(Debug)]
pub(crate) struct WaitingPermit {
    shared: Arc<Shared>,
}

impl Drop for WaitingPermit {
    fn drop(&mut self) {
        self.shared.waiting.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(id: u8, bytes: usize) -> LeaseOrder {
        LeaseOrder { key: MediaKey { model: 0, id: MediaId([id; 32]) }, shape: MediaShape::Audio(1), bytes }
    }

    #[test]
    fn media_are_charged_once_and_given_back() {
        let shared = Arc::new(Shared::new(1, 100));
        let sent = |_| Ok(());
        let (first, fresh) = shared.lease(order(1, 60), sent).expect("fits");
        assert_eq!(fresh, Freshness::New);
        let (second, fresh) = shared.lease(order(1, 60), sent).expect("shared");
        assert_eq!((fresh, shared.stats().media_bytes), (Freshness::Shared, 60));
        assert_eq!(shared.lease(order(2, 60), sent).expect_err("full").kind, ErrorKind::Overloaded);
        assert_eq!(shared.lease(order(3, 101), sent).expect_err("never fits").kind, ErrorKind::TooLarge);
        first.recharge(10);
        assert_eq!(shared.stats().media_bytes, 10);
        drop((first, second));
        assert_eq!(shared.stats().media_bytes, 0);
        let refused = shared.lease(order(4, 60), |_| Err(EngineError::new(ErrorKind::Overloaded, "inbox full")));
        assert_eq!((refused.is_err(), shared.stats().media_bytes), (true, 0));
        assert_eq!(shared.lease(order(1, 60), sent).expect("fits").1, Freshness::New);
    }

    #[test]
    fn permits_are_bounded_and_given_back() {
        let shared = Arc::new(Shared::new(1, 100));
        let permit = shared.permit().expect("first");
        assert_eq!(shared.permit().expect_err("full").kind, ErrorKind::Overloaded);
        drop(permit);
        assert!(shared.permit().is_ok());
    }
}
