//! Tensor operations and their implementations.
//!
//! This crate owns the [`Backend`] trait (the vocabulary in which models are written), its implementations, quantised
//! weight formats and every line of `unsafe` in the project. It knows no model and no request.

pub mod backend;
pub mod error;
pub mod mapped;
pub mod shapes;
pub mod weights;

pub use backend::Backend;
pub use error::{KernelError, Result};
