//! Tensor operations and their implementations.
//!
//! This crate owns the [`Backend`] trait (the vocabulary in which models are written), its implementations, quantised
//! weight formats and every line of `unsafe` in the project. It knows no model and no request.

pub mod backend;
pub mod checks;
pub mod cpu;
pub mod cuda;
pub mod error;
pub mod mapped;
pub mod measure;
pub mod parity;
pub mod quant;
pub mod reference;
pub mod shapes;
pub mod weights;

pub use backend::Backend;
pub use cpu::CpuBackend;
pub use cuda::CudaBackend;
pub use error::{KernelError, Result};
