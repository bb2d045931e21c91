//! Pipelines: YAML definitions, their validated graph, one request's way through it, and batch jobs.
//!
//! This is the public door of everything below the HTTP edge. It knows no HTTP and no model internals.

#![forbid(unsafe_code)]

use std::path::Path;

mod admission;
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

pub use admission::{Reason, Verdict};
pub use config::{DeviceChoice, Limits, ModelEntry, ModelSource, RuntimeConfig};
pub use definition::{Definition, Diagnostic};
pub use error::{Error, ErrorKind, Refusal, Result};
pub use event::{Event, FinishReason, Outcome, Span, TokenLogprob, TranscriptSegment, Usage};
pub use request::{Class, Input, Message, Options, Part, Request, Role, Target};
pub use run::{MediumCost, Price};
pub use runtime::{Entry, EventStream, Quote, Runtime};
pub use summary::{Arity, EngineStats, ModelKind, ModelSummary, PipelineSummary, RuntimeStats, StageDepth, StepKind};

/// What a file of learned costs says, one line a model on a device: its decode steps, prefill and encoder layers.
pub fn learned_costs(path: &Path) -> Result<Vec<String>> {
    let costs = weft_stages::LearnedCosts::read(path).map_err(|error| Error::new(ErrorKind::Malformed, error))?;
    let line = |model: &weft_stages::LearnedModel| {
        let of = |kind: &str| {
            let times = model.times.iter().filter(|time| time.kind == kind);
            let times: Vec<String> = times.map(|time| format!("{:.3} at {}", time.ms, time.size)).collect();
            (!times.is_empty()).then(|| format!("{kind} {} ms", times.join(", ")))
        };
        let kinds = ["decode", "prefill", "vision_layer", "audio_layer"];
        format!(
            "{} on {}: {}",
            model.model,
            model.device,
            kinds.iter().filter_map(|k| of(k)).collect::<Vec<_>>().join("; ")
        )
    };
    Ok(costs.models.iter().map(line).collect())
}

/// Checks a definition, or every `*.yaml` in a folder, without loading models. Empty when all is well.
pub fn check(path: &Path) -> Vec<Diagnostic> {
    let files = match catalog::files(path) {
        Ok(files) => files,
        Err(fault) => return vec![fault],
    };
    files.iter().filter_map(|file| catalog::read_file(file).err()).flatten().collect()
}
