//! Pipelines: YAML definitions, their validated graph, one request's way through it, and batch jobs.
//!
//! This is the public door of everything below the HTTP edge. It knows no HTTP and no model internals.

#![forbid(unsafe_code)]

use std::path::Path;

pub mod batch;
pub mod bench;
mod catalog;
pub mod config;
pub mod definition;
pub mod error;
pub mod event;
pub mod inspect;
mod options;
pub mod request;
mod run;
pub mod runtime;
pub mod summary;

pub use config::{DeviceChoice, Limits, ModelEntry, ModelSource, RuntimeConfig};
pub use definition::{Definition, Diagnostic};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, FinishReason, Outcome, Span, TokenLogprob, TranscriptSegment, Usage};
pub use request::{Class, Input, Message, Options, Part, Request, Role, Target};
pub use runtime::{EventStream, Runtime};
pub use summary::{Arity, EngineStats, ModelKind, ModelSummary, PipelineSummary, RuntimeStats, StageDepth};

/// Checks a definition, or every `*.yaml` in a folder, without loading models. Empty when all is well.
pub fn check(path: &Path) -> Vec<Diagnostic> {
    let files = match catalog::files(path) {
        Ok(files) => files,
        Err(fault) => return vec![fault],
    };
    files.iter().filter_map(|file| catalog::read_file(file).err()).flatten().collect()
}
