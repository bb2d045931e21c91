//! Pipelines: YAML definitions, their validated graph, one request's way through it, and batch jobs.
//!
//! This is the public door of everything below the HTTP edge. It knows no HTTP and no model internals.

pub mod config;
pub mod error;
pub mod event;
pub mod request;

pub use error::{Error, ErrorKind, Result};
