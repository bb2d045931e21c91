//! What the device thread tells about itself: counters, and a bounded ring with one record a launch.
//!
//! The device thread writes, everyone reads; no reader can hold the device up (counters are atomics, the ring's lock is
//! held for one push or one copy). Times are measured around a launch and its wait.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts that the engine keeps; a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Sequences decoding or in prefill.
    pub running: usize,
    /// Requests waiting for admission.
    pub waiting: usize,
    /// KV pages in use, over all models.
    pub kv_pages_used: usize,
    /// KV pages in all.
    pub kv_pages_total: usize,
    /// KV pages that nobody uses and that can be found again by their content.
    pub kv_pages_cached: usize,
    /// Full prompt blocks found in the cache at admission.
    pub prefix_blocks_hit: u64,
    /// Full prompt blocks that had to be computed.
    pub prefix_blocks_missed: u64,
    /// Bytes of encoder outputs held.
    pub encoder_cache_bytes: usize,
    /// Encoder outputs found in the cache.
    pub encoder_cache_hits: u64,
    /// Media that went through an encoder.
    pub encoder_cache_misses: u64,
    /// Media whose encoder has not finished.
    pub media_waiting: usize,
    /// Bytes of media that tickets hold.
    pub media_bytes: usize,
    /// Decode steps.
    pub decode_steps: u64,
    /// Prefill slices.
    pub prefill_slices: u64,
    /// Encoder slices.
    pub encoder_slices: u64,
    /// Guesses of tokens that decode steps ran.
    pub drafted: u64,
    /// Guesses that came true.
    pub accepted: u64,
    /// Tokens produced.
    pub tokens_out: u64,
    /// Prompt tokens processed.
    pub tokens_in: u64,
    /// Idle audits in which the books did not balance. Anything but 0 is a fault.
    pub audit_failures: u64,
    /// Beats of the device loop; stands still only when there is no work.
    pub beats: u64,
    /// Whether the device thread lives. `false` after a fault that ended it.
    pub alive: bool,
    /// What the device is at, when it is at work.
    pub doing: Option<StepKind>,
    /// Predicted milliseconds until all that was taken is answered, as of a moment ago.
    pub queue_ms: u64,
    /// Requests ended because nothing could move them any more.
    pub stuck: u64,
}

/// What a launch was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// One token for each of `rows` sequences.
    Decode,
    /// `rows` prompt tokens.
    Prefill,
    /// Some layers of an encoder over `rows` patches or frames.
    Encode,
}

/// One launch on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRecord {
    /// What it was.
    pub kind: StepKind,
    /// Index of the model in [`crate::config::EngineConfig::models`].
    pub model: usize,
    /// Sequences, prompt tokens, or patches and frames; see [`StepKind`].
    pub rows: usize,
    /// Encoder layers; 0 otherwise.
    pub layers: usize,
    /// When it began, in microseconds since the device thread started.
    pub began_us: u64,
    /// What the cost model predicted.
    pub predicted_us: u64,
    /// What it took.
    pub took_us: u64,
    /// Decode steps: time between the end of the model's step before and the begin of this one, while sequences were
    /// ready to decode. 0 when nothing was decoding before, and for other kinds.
    pub decode_delay_us: u64,
}

/// A bounded ring of the last launches. Readers ask with the number they got last time.
#[derive(Debug, Default)]
pub(crate) struct StepLog {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<StepRecord>,
    pushed: u64,
}

impl StepLog {
    /// Records kept.
    pub(crate) const CAPACITY: usize = 8192;

    pub(crate) fn push(&self, record: StepRecord) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.records.len() == Self::CAPACITY {
            ring.records.pop_front();
        }
        ring.records.push_back(record);
        ring.pushed += 1;
    }

    /// The records from number `from` on that are still kept, and the number to ask with next time.
    pub(crate) fn since(&self, from: u64) -> (Vec<StepRecord>, u64) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = ring.pushed - ring.records.len() as u64;
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        (ring.records.iter().skip(skip).copied().collect(), ring.pushed)
    }
}

/// The counters behind [`EngineStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) running: AtomicU64,
    pub(crate) kv_pages_used: AtomicU64,
    pub(crate) kv_pages_total: AtomicU64,
    pub(crate) kv_pages_cached: AtomicU64,
    pub(crate) prefix_blocks_hit: AtomicU64,
    pub(crate) prefix_blocks_missed: AtomicU64,
    pub(crate) encoder_cache_bytes: AtomicU64,
    pub(crate) encoder_cache_hits: AtomicU64,
    pub(crate) encoder_cache_misses: AtomicU64,
    pub(crate) media_waiting: AtomicU64,
    pub(crate) decode_steps: AtomicU64,
    pub(crate) prefill_slices: AtomicU64,
    pub(crate) encoder_slices: AtomicU64,
    pub(crate) drafted: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) tokens_out: AtomicU64,
    pub(crate) tokens_in: AtomicU64,
    pub(crate) audit_failures: AtomicU64,
    pub(crate) beats: AtomicU64,
    pub(crate) queue_ms: AtomicU64,
    pub(crate) stuck: AtomicU64,
    /// 0 at rest, else one more than the place in [`KINDS`].
    doing: AtomicU64,
}

const KINDS: [StepKind; 3] = [StepKind::Decode, StepKind::Prefill, StepKind::Encode];

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Relaxed);
}

/// Sets a gauge.
pub(crate) fn gauge(counter: &AtomicU64, value: usize) {
    counter.store(value as u64, Relaxed);
}

impl Counters {
    /// Says what the device thread is at, for whoever finds it standing still.
    pub(crate) fn doing(&self, kind: Option<StepKind>) {
        let place = kind.and_then(|kind| KINDS.iter().position(|known| *known == kind));
        gauge(&self.doing, place.map_or(0, |place| place + 1));
    }

    /// A snapshot; what other places count (`waiting`, `media_bytes`, `alive`) is left at its default.
    pub(crate) fn snapshot(&self) -> EngineStats {
        let number = |counter: &AtomicU64| counter.load(Relaxed);
        let size = |counter: &AtomicU64| usize::try_from(counter.load(Relaxed)).unwrap_or(usize::MAX);
        EngineStats {
            running: size(&self.running),
            waiting: 0,
            kv_pages_used: size(&self.kv_pages_used),
            kv_pages_total: size(&self.kv_pages_total),
            kv_pages_cached: size(&self.kv_pages_cached),
            prefix_blocks_hit: number(&self.prefix_blocks_hit),
            prefix_blocks_missed: number(&self.prefix_blocks_missed),
            encoder_cache_bytes: size(&self.encoder_cache_bytes),
            encoder_cache_hits: number(&self.encoder_cache_hits),
            encoder_cache_misses: number(&self.encoder_cache_misses),
            media_waiting: size(&self.media_waiting),
            media_bytes: 0,
            decode_steps: number(&self.decode_steps),
            prefill_slices: number(&self.prefill_slices),
            encoder_slices: number(&self.encoder_slices),
            drafted: number(&self.drafted),
            accepted: number(&self.accepted),
            tokens_out: number(&self.tokens_out),
            tokens_in: number(&self.tokens_in),
            audit_failures: number(&self.audit_failures),
            beats: number(&self.beats),
            alive: false,
            doing: size(&self.doing).checked_sub(1).and_then(|place| KINDS.get(place).copied()),
            queue_ms: number(&self.queue_ms),
            stuck: number(&self.stuck),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_gets_every_record_once_and_old_ones_fall_out() {
        let log = StepLog::default();
        let record = |rows| StepRecord {
            kind: StepKind::Decode,
            model: 0,
            rows,
            layers: 0,
            began_us: 0,
            predicted_us: 0,
            took_us: 0,
            decode_delay_us: 0,
        };
        log.push(record(1));
        log.push(record(2));
        let (first, next) = log.since(0);
        assert_eq!((first.len(), next), (2, 2));
        assert_eq!(log.since(next).0, []);
        for rows in 0..StepLog::CAPACITY {
            log.push(record(rows));
        }
        let (later, next) = log.since(next);
        assert_eq!(later.len(), StepLog::CAPACITY);
        assert_eq!(log.since(1).0.len(), StepLog::CAPACITY);
        assert_eq!(next, StepLog::CAPACITY as u64 + 2);
    }
}
