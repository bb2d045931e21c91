//! What the machine itself can do, for fractions in benchmarks.

use std::hint::black_box;
use std::time::Instant;

/// Bytes each thread copies at once: far more than a last-level cache holds.
const BLOCK: usize = 64 << 20;

/// Copy bandwidth of this many threads in bytes a second, read and written bytes both counted; the best of several
/// copies, since other work on the machine can only lower it.
pub fn copy_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let mut blocks: Vec<_> = (0..threads).map(|n| (vec![n as u8 + 1; BLOCK], vec![0u8; BLOCK])).collect();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in &mut blocks {
                scope.spawn(move || {
                    to.copy_from_slice(from);
                    black_box(to);
                });
            }
        });
        best = best.min(began.elapsed().as_secs_f64());
    }
    (2 * BLOCK * threads) as f64 / best
}
