//! Audio tower of Qwen2.5-Omni.

use std::marker::PhantomData;

use weft_kernels::Backend;

use crate::error::Result;

/// Encodes clips.
pub struct AudioTower<B: Backend> {
    device: PhantomData<B>,
}

impl<B: Backend> AudioTower<B> {
    /// See [`crate::families::Loaded::advance`].
    pub fn advance(&self, backend: &B, run: &mut AudioRun<B>, layers: usize) -> Result<Option<Vec<B::Tensor>>> {
        let _ = (backend, run, layers);
        todo!()
    }
}

/// Work of the tower that can stop after any layer.
pub struct AudioRun<B: Backend> {
    hidden: PhantomData<B>,
}

impl<B: Backend> AudioRun<B> {
    /// Layers in all.
    pub fn layers(&self) -> usize {
        todo!()
    }

    /// Layers that have run.
    pub fn done(&self) -> usize {
        todo!()
    }
}
