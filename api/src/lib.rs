//! The edge: HTTP, streaming, limits, metrics, the page and the command line.
//!
//! Everything below is reached through `weft_pipelines` alone. This is the only crate that knows status numbers.

#![forbid(unsafe_code)]

pub mod cli;
pub mod embedded;
pub mod http;
pub mod settings;
mod target;
