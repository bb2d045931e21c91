//! The worker threads of the CPU backend.
//!
//! A job is a number of tasks that threads claim one after another; the caller takes part. Two rules shape it:
//! * a worker that finds nothing to do spins for [`SPIN`] at most, then parks: a spinning thread takes a core from
//!   somebody, and with as many threads as cores that somebody is the thread it waits for;
//! * the caller waits for workers that *entered* its job, never for one that has yet to wake up. A worker that is late
//!   finds the job closed.
//!
//! ```text
//! state:  [ job number : 32 | .. | open : bit 16 | workers inside : 16 ]
//! ```

#![expect(unsafe_code, reason = "a job borrows from its caller's stack; closing it before return is proved here")]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::product::Buffer;

/// How long a thread polls before it parks.
const SPIN: Duration = Duration::from_micros(20);

const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const JOB: u64 = 1 << 32;

/// A fixed set of threads that share the tasks of one job at a time.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// Held by the caller whose job the workers serve.
    turn: Mutex<()>,
    /// Memory that products reuse between calls.
    scratch: Mutex<Vec<Buffer>>,
}

struct Worker {
    thread: Thread,
    parked: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// A caller's closure with its lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    state: AtomicU64,
    stop: AtomicBool,
    /// Written by the holder of `turn` while the state is closed and nobody is inside; read by those inside.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether the caller sleeps on `left`.
    waiting: Mutex<bool>,
    left: Condvar,
}

// SAFETY: `job` is only accessed under the protocol stated at the field; the closure behind it is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] included; 0 counts as 1.
    pub fn new(threads: usize) -> Arc<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            waiting: Mutex::new(false),
            left: Condvar::new(),
        });
        // A thread that the system refuses is a slower pool, not a failure.
        let workers = (1..threads.min(INSIDE as usize)).filter_map(|i| Worker::spawn(i, &shared).ok()).collect();
        Arc::new(Self { shared, workers, turn: Mutex::new(()), scratch: Mutex::new(Vec::new()) })
    }

    /// Threads that work on a job.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(0)` to `task(tasks - 1)`, each once, in no order, on several threads; returns when all are done.
    ///
    /// While another thread's job runs, and inside a task, the tasks run on the calling thread.
    ///
    /// # Panics
    /// With the first panic of a task, after all threads left the job; tasks not yet claimed are dropped. The pool
    /// stays usable.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let helpers = self.workers.len().min(tasks.saturating_sub(1));
        let turn = match self.turn.try_lock() {
            Ok(turn) if helpers > 0 => turn,
            Err(TryLockError::Poisoned(poisoned)) if helpers > 0 => poisoned.into_inner(),
            _ => return (0..tasks).for_each(task),
        };
        self.shared.open(Job { task: erase(task), tasks });
        for worker in self.workers.iter().filter(|w| w.parked.load(Ordering::SeqCst)).take(helpers) {
            worker.thread.unpark();
        }
        self.shared.work(Job { task: erase(task), tasks });
        self.shared.close();
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// A buffer of at least `bytes` bytes with unspecified contents.
    pub(super) fn take_scratch(&self, bytes: usize) -> Buffer {
        let mut kept = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = kept.iter().enumerate().filter(|(_, b)| b.len() >= bytes).min_by_key(|(_, b)| b.len());
        match fit.map(|(at, _)| at).or_else(|| kept.len().checked_sub(1)) {
            Some(at) if kept[at].len() >= bytes => kept.swap_remove(at),
            // Grow instead of keeping the small one as well.
            Some(at) => {
                drop(kept.swap_remove(at));
                Buffer::zeroed(bytes)
            }
            None => Buffer::zeroed(bytes),
        }
    }

    /// Gives a buffer back for the next call.
    pub(super) fn give_scratch(&self, buffer: Buffer) {
        let mut kept = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < 2 * self.threads() + 2 {
            kept.push(buffer);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches the panics of its tasks, so it has none of its own to report.
                let _ = handle.join();
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

fn erase<'a>(task: &'a (dyn Fn(usize) + Sync + 'a)) -> *const (dyn Fn(usize) + Sync + 'static) {
    let task: *const (dyn Fn(usize) + Sync + 'a) = task;
    // SAFETY: only the lifetime bound of the trait object changes. `Pool::run` closes the job and waits for everybody
    // inside before it returns, so no thread calls through the pointer after the borrow ends.
    unsafe { std::mem::transmute(task) }
}

impl Worker {
    fn spawn(index: usize, shared: &Arc<Shared>) -> std::io::Result<Self> {
        let parked = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (Arc::clone(shared), Arc::clone(&parked));
        let handle = thread::Builder::new().name(format!("weft-cpu-{index}")).spawn(move || theirs.serve(&flag))?;
        Ok(Self { thread: handle.thread().clone(), parked, handle: Some(handle) })
    }
}

impl Shared {
    fn open(&self, job: Job) {
        // SAFETY: the caller holds `turn` and the last job was closed with nobody inside (or there was none).
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        let number = self.state.load(Ordering::Relaxed) / JOB;
        // Sequentially consistent with `parked`: either the worker sees the job, or the caller sees it parked.
        self.state.store((number.wrapping_add(1) * JOB) | OPEN, Ordering::SeqCst);
    }

    /// Claims and runs tasks until none is left.
    fn work(&self, job: Job) {
        // SAFETY: the closure outlives the job, see `erase`.
        let task = unsafe { &*job.task };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                if index >= job.tasks {
                    break;
                }
                task(index);
            }
        }));
        if let Err(payload) = outcome {
            self.next.store(job.tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// Ends the job and waits until nobody is inside.
    fn close(&self) {
        let inside = |state: u64| state & INSIDE != 0;
        if !inside(self.state.fetch_and(!OPEN, Ordering::AcqRel)) {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..16 {
                if !inside(self.state.load(Ordering::Acquire)) {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = true;
        while inside(self.state.load(Ordering::Acquire)) {
            waiting = self.left.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        *waiting = false;
    }

    /// The life of a worker.
    fn serve(&self, parked: &AtomicBool) {
        let mut served = 0;
        while let Some(number) = self.enter(served, parked) {
            served = number;
            // SAFETY: this worker is inside an open job, so the job was written before it opened and stays.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job);
            }
            let state = self.state.fetch_sub(1, Ordering::AcqRel) - 1;
            if state & (INSIDE | OPEN) == 0 {
                // Under the lock, so that the notice cannot fall between the caller's check and its sleep.
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if *waiting {
                    self.left.notify_one();
                }
            }
        }
    }

    /// Waits for a job other than `served` and enters it; `None` when the pool stops.
    fn enter(&self, served: u64, parked: &AtomicBool) -> Option<u64> {
        let mut start = Instant::now();
        loop {
            for _ in 0..16 {
                if let Some(number) = self.try_enter(served) {
                    return Some(number);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if start.elapsed() < SPIN {
                continue;
            }
            parked.store(true, Ordering::SeqCst);
            if !self.has_job(served) && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            start = Instant::now();
        }
    }

    fn has_job(&self, served: u64) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state & OPEN != 0 && state / JOB != served
    }

    fn try_enter(&self, served: u64) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        if state & OPEN == 0 || state / JOB == served {
            return None;
        }
        // Acquire pairs with `open`: the job is visible to whoever enters.
        let entered = self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
        entered.is_ok().then_some(state / JOB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn jobs_follow_each_other_quickly_and_after_sleep() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for round in 0..3000 {
            if round % 1000 == 999 {
                thread::sleep(Duration::from_millis(2));
            }
            pool.run(4, &|i| {
                total.fetch_add(i, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 3000 * 6);
    }

    #[test]
    fn work_is_shared() {
        let pool = Pool::new(2);
        // Each task waits for the other: one thread alone would never finish.
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for bad in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|i| assert!(i != bad, "task {bad}"));
            }));
            let payload = caught.expect_err("task {bad} panics");
            assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some(&*format!("task {bad}")));
            let done = AtomicUsize::new(0);
            pool.run(50, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
        }
    }

    #[test]
    fn nested_and_competing_jobs_run() {
        let pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(4, &|_| {
                            pool.run(3, &|_| {
                                done.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 3 * 50 * 4 * 3);
    }
}
