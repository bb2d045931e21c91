//! Matrix products on the CPU: `x W^T + b` with dense and quantised weights.
//!
//! This module owns the packed form of weights and the split of a product into tasks. Its invariant is the backend's
//! row invariance: an output depends on its own row of `x` and its own row of `W`, bit for bit, whatever the number of
//! rows, the split and the number of threads. [`dense`] and [`quant`] say how their kernels keep it.

#![expect(unsafe_code, reason = "tasks write disjoint parts of one output, and call kernels of a detected level")]

mod buffer;
mod dense;
mod quant;
mod quant_pack;
mod simd;
mod tasks;
mod weight;

use std::marker::PhantomData;

pub(super) use buffer::Buffer;
pub use simd::Level;
pub use tasks::{ProductPart, products};
pub use weight::PackedWeight;

/// A result matrix that several threads write at once.
struct Output<'a> {
    data: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: only a pointer; whoever writes through `at` answers for disjointness.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    fn new(data: &'a mut [f32]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// Where element `index` lies.
    fn at(&self, index: usize) -> *mut f32 {
        assert!(index <= self.len);
        self.data.wrapping_add(index)
    }
}

#[cfg(test)]
mod tests;
