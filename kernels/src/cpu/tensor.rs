//! The tensor of the CPU: a matrix of `f32` in a shared buffer that goes back to a bounded free list.
//!
//! A decode step makes hundreds of small tensors of the same few sizes; taking them from the list saves the allocator
//! and the zeroing. Recycled buffers hold old values (never uninitialised memory), so every operation writes every
//! element of its result.

#![expect(unsafe_code, reason = "a zeroed allocation that reports failure instead of aborting")]

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{KernelError, Result};

/// A matrix of activations; cloning shares the elements.
#[derive(Clone)]
pub struct CpuTensor {
    buffer: Arc<Buffer>,
    rows: usize,
    cols: usize,
}

impl CpuTensor {
    /// `buffer` holds `rows * cols` elements.
    pub(crate) fn new(buffer: Buffer, rows: usize, cols: usize) -> Self {
        debug_assert_eq!(buffer.len, rows * cols);
        Self { buffer: Arc::new(buffer), rows, cols }
    }

    /// The same elements in another shape of the same size.
    pub(crate) fn reshaped(&self, rows: usize, cols: usize) -> Self {
        debug_assert_eq!(self.buffer.len, rows * cols);
        Self { buffer: Arc::clone(&self.buffer), rows, cols }
    }

    /// `(rows, columns)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements, row-major.
    pub fn values(&self) -> &[f32] {
        &self.buffer.values[..self.buffer.len]
    }

    /// The elements of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.cols..(row + 1) * self.cols]
    }
}

impl fmt::Debug for CpuTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuTensor [{}, {}]", self.rows, self.cols)
    }
}

/// Elements that are written once, then shared in a [`CpuTensor`].
pub(crate) struct Buffer {
    /// At least `len`, rounded up to a size class.
    values: Vec<f32>,
    len: usize,
    home: Arc<Recycler>,
}

impl Buffer {
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.values));
    }
}

/// Four size classes per power of two from 64 elements.
const CLASSES: usize = 4 * 40;
/// Buffers kept of one class.
const KEPT_PER_CLASS: usize = 64;
/// Elements kept in all classes together: 256 MiB.
const KEPT_ELEMENTS: usize = 64 << 20;

/// A free list by size class, bounded in number and in elements.
pub(crate) struct Recycler(Mutex<Kept>);

struct Kept {
    classes: Vec<Vec<Vec<f32>>>,
    elements: usize,
}

/// The class of `len` and the elements its buffers hold.
fn class(len: usize) -> (usize, usize) {
    let len = len.max(64);
    let power = (len - 1).max(63).ilog2() as usize - 2;
    let quarters = len.div_ceil(1 << power);
    ((power - 3) * 4 + quarters - 4, quarters << power)
}

impl Recycler {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Kept { classes: vec![Vec::new(); CLASSES], elements: 0 })))
    }

    /// A buffer of `len` elements with unspecified values.
    pub(crate) fn take(self: &Arc<Self>, op: &'static str, len: usize) -> Result<Buffer> {
        let (class, size) = class(len);
        let recycled = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = kept.classes.get_mut(class).and_then(Vec::pop);
            kept.elements -= found.as_ref().map_or(0, Vec::len);
            found
        };
        let values = match recycled {
            Some(values) => values,
            None => zeroed(op, size)?,
        };
        Ok(Buffer { values, len, home: Arc::clone(self) })
    }

    fn give(&self, values: Vec<f32>) {
        let (class, size) = class(values.len());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = kept.elements + size <= KEPT_ELEMENTS;
        match kept.classes.get_mut(class) {
            Some(list) if room && size == values.len() && list.len() < KEPT_PER_CLASS => {
                list.push(values);
                kept.elements += size;
            }
            _ => {}
        }
    }
}

/// Zeroed elements (pages the system maps on first touch), or an error when there is no room for them.
pub(crate) fn zeroed(op: &'static str, len: usize) -> Result<Vec<f32>> {
    let refused = || KernelError::OutOfMemory { op, bytes: len.saturating_mul(size_of::<f32>()) };
    let layout = std::alloc::Layout::array::<f32>(len).map_err(|_| refused())?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a size, and the pointer is used only when it is not null. It came from the global
    // allocator with the layout of `len` f32 values, all of whose bytes are zero, which is a valid f32.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<f32>();
        if start.is_null() { Err(refused()) } else { Ok(Vec::from_raw_parts(start, len, len)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise_and_are_their_own_class() {
        let mut last = 0;
        for len in (0..5000).chain([1 << 20, (1 << 20) + 1, 1_536 * 1_500, 1 << 40]) {
            let (index, size) = class(len);
            assert!(size >= len && size <= 64.max(len + len / 4 + 1), "{len} in {size}");
            assert_eq!(class(size), (index, size));
            assert!(index >= last && index < CLASSES);
            last = index;
        }
    }

    #[test]
    fn buffers_are_recycled_and_the_list_is_bounded() {
        let home = Recycler::new();
        let mut first = home.take("test", 100).unwrap();
        first.values_mut().fill(7.0);
        let address = first.values.as_ptr();
        drop(first);
        assert_eq!(home.take("test", 110).unwrap().values.as_ptr(), address);
        let many: Vec<_> = (0..200).map(|_| home.take("test", 64).unwrap()).collect();
        drop(many);
        let kept = home.0.lock().unwrap();
        assert!(kept.elements <= 64 * KEPT_PER_CLASS + 128);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(zeroed("test", usize::MAX / 8), Err(KernelError::OutOfMemory { .. })));
    }
}
