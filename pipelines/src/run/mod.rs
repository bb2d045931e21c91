//! One request's way through a pipeline: checked, run, told.

mod check;
mod generate;
mod graph;
mod media;
mod price;
mod tally;
mod transcribe;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use weft_stages::{RequestId, Service, StageError};

use crate::admission::{Desk, Permit};
use crate::catalog::Bound;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::request::{Class, Input, Options};

pub(crate) use check::{Checked, Checks, checked};
pub(crate) use graph::drive;
pub use price::{MediumCost, Price};
pub(crate) use price::{Priced, Pricing, StageLoad};
pub(crate) use tally::Tally;

/// Events that may wait for a slow reader before its own request stands still.
pub(crate) const EVENTS: usize = 64;

/// A checked request on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) service: Service,
    pub(crate) bound: Arc<Bound>,
    pub(crate) input: Input,
    pub(crate) options: Options,
    pub(crate) class: Class,
    pub(crate) deadline: Option<Instant>,
    pub(crate) id: RequestId,
    pub(crate) began: Instant,
    pub(crate) events: flume::Sender<Event>,
    pub(crate) tally: Tally,
    pub(crate) admitted: Admitted,
}

/// A request's place in the ledger of admission, and what its stages were priced at.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) permit: Permit,
    pub(crate) desk: Arc<Desk>,
    pub(crate) stages: BTreeMap<usize, StageLoad>,
}

impl Admitted {
    /// A stage's encoders and prompt are done.
    fn computed(&self, at: usize) {
        if let Some(stage) = self.stages.get(&at) {
            self.permit.computed(stage.compute);
        }
    }

    /// So many tokens of a stage's answer are out.
    fn decoded(&self, at: usize, tokens: usize) {
        if let Some(stage) = self.stages.get(&at) {
            self.permit.decoded(stage.share.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX)));
        }
    }
}

impl Job {
    /// Tells the caller; fails when the caller has gone.
    async fn tell(&self, event: Event) -> Result<(), Error> {
        self.events.send_async(event).await.map_err(|_| Error::new(ErrorKind::Cancelled, "the caller has gone"))
    }

    /// Options of a stage: the request's, over the stage's. Only the output stage takes all of them; others take what
    /// concerns transcripts.
    fn options_of(&self, at: usize, own: &Options) -> Options {
        let asked =
            if at == self.bound.definition.output { self.options.clone() } else { self.options.of_transcripts_only() };
        asked.over(own)
    }

    /// Name of a stage's model.
    fn model(&self, at: usize) -> &str {
        // Stages with a model are bound to one before a pipeline can run.
        self.bound.models[at].as_deref().unwrap_or_default()
    }
}

/// A stage's error, about a part of the input.
fn stage_error(error: StageError) -> Error {
    Error::new(error.kind, error.message)
}
