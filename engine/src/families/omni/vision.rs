//! Vision tower of Qwen2.5-Omni.

use std::marker::PhantomData;

use weft_kernels::Backend;

use crate::error::Result;

/// Encodes pictures.
pub struct VisionTower<B: Backend> {
    device: PhantomData<B>,
}

impl<B: Backend> VisionTower<B> {
    /// See [`crate::families::Loaded::advance`].
    pub fn advance(&self, backend: &B, run: &mut VisionRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        let _ = (backend, run, layers);
        todo!()
    }
}

/// Work of the tower that can stop after any layer.
pub struct VisionRun<B: Backend> {
    hidden: PhantomData<B>,
}

impl<B: Backend> VisionRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        todo!()
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        todo!()
    }
}
