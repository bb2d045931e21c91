//! Media stages: all media of a request are prepared side by side, each for every model that takes it, and each is queued
//! for its encoder the moment it is ready.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;
use weft_stages::MediaFacts;
use weft_stages::service::Lease;

use super::graph::Output;
use super::{Job, stage_error};
use crate::definition::StageKind;
use crate::error::Result;

/// Which sense a medium is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sense {
    Sight,
    Hearing,
}

impl Job {
    pub(super) async fn images(&self, at: usize) -> Result<(Output, String)> {
        self.media(at, Sense::Sight, &self.input.images).await
    }

    pub(super) async fn clips(&self, at: usize) -> Result<(Output, String)> {
        self.media(at, Sense::Hearing, &self.input.audios).await
    }

    async fn media(&self, at: usize, sense: Sense, files: &[Bytes]) -> Result<(Output, String)> {
        let stages = &self.bound.definition.stages;
        let takes =
            |stage: usize| matches!(&stages[stage].kind, StageKind::Generate(generate) if generate.media.contains(&at));
        let mut models: Vec<&str> =
            (0..stages.len()).filter(|&stage| takes(stage)).map(|stage| self.model(stage)).collect();
        models.sort_unstable();
        models.dedup();
        let word = if sense == Sense::Sight { "image" } else { "audio" };
        let by_model = models.into_iter().map(|model| async move {
            let one = |(index, bytes): (usize, &Bytes)| {
                let (span, param) = (format!("{}[{index}]", stages[at].id), format!("{word}[{index}]"));
                self.medium(sense, model, bytes.clone(), Named { span, param })
            };
            let leases = try_join_all(files.iter().enumerate().map(one)).await?;
            Ok::<_, crate::error::Error>((model.to_owned(), leases))
        });
        let leases: BTreeMap<String, Vec<Lease>> = try_join_all(by_model).await?.into_iter().collect();
        let tokens: usize = leases.values().flatten().map(Lease::tokens).sum();
        Ok((Output::Media(leases), format!("{} {word}, {tokens} tokens", files.len())))
    }

    /// One medium for one model, with its spans.
    pub(super) async fn medium(&self, sense: Sense, model: &str, bytes: Bytes, named: Named) -> Result<Lease> {
        let class = self.class.into();
        let lease = match sense {
            Sense::Sight => self.service.image(model, bytes, class).await,
            Sense::Hearing => self.service.audio(model, bytes, class).await,
        };
        let lease = lease.map_err(|error| stage_error(error).about(&named.param))?;
        let done = Instant::now();
        let worked_from = done.checked_sub(lease.worked).unwrap_or(done);
        let queued_from = worked_from.checked_sub(lease.queued).unwrap_or(worked_from);
        let note = format!("{}, {} tokens", describe(&lease.source), lease.tokens());
        self.tally.span(self.began, format!("{}/queue", named.span), queued_from, worked_from, String::new());
        self.tally.span(self.began, format!("{}/prepare", named.span), worked_from, done, note);
        self.tally.warn(&named.param, &lease.warnings);
        let kind = if sense == Sense::Sight { "image" } else { "audio" };
        metrics::histogram!("weft_stage_queue_seconds", "kind" => kind).record(lease.queued.as_secs_f64());
        metrics::counter!("weft_media_total", "kind" => kind, "outcome" => "prepared").increment(1);
        Ok(lease)
    }
}

/// How a medium is called in timelines and in errors.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) span: String,
    pub(super) param: String,
}

/// A file, for people.
pub(super) fn describe(facts: &MediaFacts) -> String {
    match facts {
        MediaFacts::Image(image) => format!("{}x{} {:?}", image.width, image.height, image.format).to_lowercase(),
        MediaFacts::Audio(audio) => format!("{:.2} s {:?}", audio.length.seconds(), audio.format).to_lowercase(),
    }
}
