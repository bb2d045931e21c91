//! Splitting a result among the workers of the pool.

#![expect(unsafe_code, reason = "workers write disjoint pieces of one result")]

use std::marker::PhantomData;
use std::ops::Range;

use super::pool::Pool;

/// A result that several tasks write at once, each its own elements.
pub(crate) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `range`, whose callers promise disjoint ranges; f32 itself may cross threads.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(values: &'a mut [f32]) -> Self {
        Self { start: values.as_mut_ptr(), len: values.len(), borrow: PhantomData }
    }

    /// Elements of a range; panics beyond the end.
    ///
    /// # Safety
    /// While the returned slice lives, no other task asks for an element of the range.
    #[expect(clippy::mut_from_ref, reason = "the caller promises disjoint ranges")]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds by the assertion, exclusive by the caller's promise, alive for the borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Runs `f(i, piece i)` over pieces of `size` elements of `out` (the last may be shorter).
pub(crate) fn pieces(pool: &Pool, out: &mut [f32], size: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let (len, size) = (out.len(), size.max(1));
    let shared = Shared::new(out);
    pool.run(len.div_ceil(size), &|i| {
        // SAFETY: pieces of different tasks are disjoint, and the pool runs each task once.
        f(i, unsafe { shared.range(i * size..len.min((i + 1) * size)) });
    });
}

/// Like [`pieces`] over two results of one size.
pub(crate) fn pieces2(
    pool: &Pool,
    (a, b): (&mut [f32], &mut [f32]),
    size: usize,
    f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    assert_eq!(a.len(), b.len(), "results of one size");
    let (len, size) = (a.len(), size.max(1));
    let (a, b) = (Shared::new(a), Shared::new(b));
    pool.run(len.div_ceil(size), &|i| {
        let range = i * size..len.min((i + 1) * size);
        // SAFETY: pieces of different tasks are disjoint, and the pool runs each task once.
        unsafe { f(i, a.range(range.clone()), b.range(range)) };
    });
}

/// Rows a task should take so that a task has about `grain` elements, work is spread over the threads and small
/// results stay on the caller's thread.
pub(crate) fn rows_per_task(rows: usize, cols: usize, grain: usize) -> usize {
    (grain / cols.max(1)).clamp(1, rows.max(1))
}
