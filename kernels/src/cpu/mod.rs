//! The CPU backend.

pub mod pool;
pub mod product;
