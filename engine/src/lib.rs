//! Models and the device they run on.
//!
//! The engine owns checkpoints, model families, paged key/value memory, the scheduler, sampling and the one OS thread
//! that may touch the device. Everyone else holds an [`Engine`](handle::Engine) and talks to that thread over bounded
//! channels. It knows no media format (it receives patches and log-mel frames), no chat text (it receives token ids), no
//! HTTP, no YAML and no async runtime.

#![forbid(unsafe_code)]

pub mod bench;
mod books;
pub mod card;
mod check;
pub mod checkpoint;
pub mod config;
mod device;
pub mod error;
pub mod families;
pub mod grammar;
pub mod handle;
pub mod media;
mod price;
pub mod request;
pub mod rules;
mod sampling;
mod scheduler;
pub use scheduler::{LearnedCosts, LearnedModel, simulator};
pub mod stats;
pub mod transcribe;

pub use error::{EngineError, ErrorKind, Result};
