//! Takes tensors from a checkpoint to a device and keeps the account of their names.

use std::marker::PhantomData;

use weft_kernels::Backend;

use crate::error::Result;

/// Uploads tensors by name; [`Loader::finish`] refuses a checkpoint with tensors that nobody asked for.
pub struct Loader<'a, B: Backend> {
    device: PhantomData<&'a B>,
}

/// What was loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Elements.
    pub parameters: u64,
    /// Bytes on the device.
    pub bytes: u64,
    /// Storage of most elements, for people.
    pub dtype: String,
}

impl<B: Backend> Loader<'_, B> {
    /// Whether the checkpoint has this tensor.
    pub fn has(&self, name: &str) -> bool {
        let _ = name;
        todo!()
    }

    /// The matrix `name` of `rows` outputs and `cols` inputs.
    pub fn weight(&mut self, name: &str, rows: usize, cols: usize) -> Result<B::Weight> {
        let _ = (name, rows, cols);
        todo!()
    }

    /// A bias or norm weight, as one row.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<B::Tensor> {
        let _ = (name, len);
        todo!()
    }

    /// A matrix as activations (learned positions).
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<B::Tensor> {
        let _ = (name, rows, cols);
        todo!()
    }

    /// The kernel of a 1-D convolution, stored `[outputs, channels, kernel]`, in the layout of [`Backend::conv1d`].
    pub fn conv1d(&mut self, name: &str, outputs: usize, channels: usize, kernel: usize) -> Result<B::Weight> {
        let _ = (name, outputs, channels, kernel);
        todo!()
    }

    /// Counts a tensor as known although the forward pass does not use it.
    pub fn ignore(&mut self, name: &str) {
        let _ = name;
        todo!()
    }

    /// Ends the loading: a tensor nobody asked for is an error that names it.
    pub fn finish(self) -> Result<Tally> {
        todo!()
    }
}
