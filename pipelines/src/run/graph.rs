//! The graph at work: every stage begins as soon as what it uses is ready; the first failure ends all of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, try_join_all};
use weft_stages::service::Lease;

use super::Job;
use crate::definition::StageKind;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

/// What a stage made.
#[derive(Debug)]
pub(super) enum Output {
    /// Media, by the model that they are prepared for.
    Media(BTreeMap<String, Vec<Lease>>),
    /// Text.
    Text(String),
}

/// Outputs of the stages that one uses, by their places.
pub(super) type Inputs = BTreeMap<usize, Arc<Output>>;

type Wait = Shared<BoxFuture<'static, Result<Arc<Output>>>>;

/// Runs a job to its end and tells the end, exactly once.
pub(crate) async fn drive(job: Arc<Job>) {
    let work = run(&job);
    let result = match job.deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work)
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Deadline, "the time for this request is up"))),
        None => work.await,
    };
    let name = job.bound.definition.name.clone();
    let outcome = if result.is_ok() { "done" } else { "failed" };
    metrics::counter!("weft_requests_total", "pipeline" => name, "outcome" => outcome).increment(1);
    let event = match result {
        Ok(()) => {
            let outcome = job.tally.outcome(job.bound.definition.output);
            metrics::counter!("weft_tokens_in_total").increment(outcome.usage.prompt_tokens as u64);
            metrics::counter!("weft_tokens_out_total").increment(outcome.usage.completion_tokens as u64);
            Event::Done(Box::new(outcome))
        }
        Err(error) => Event::Failed(error),
    };
    // Nobody to tell when the caller has gone.
    let _gone = job.tell(event).await;
}

async fn run(job: &Arc<Job>) -> Result<()> {
    let mut waits: Vec<Wait> = Vec::new();
    for (at, stage) in job.bound.definition.stages.iter().enumerate() {
        // Definitions are in running order: what a stage uses stands before it.
        let needs: Vec<(usize, Wait)> = stage.needs().map(|used| (used, waits[used].clone())).collect();
        let job = Arc::clone(job);
        let work = async move {
            let ready =
                try_join_all(needs.into_iter().map(|(used, wait)| async move { Ok::<_, Error>((used, wait.await?)) }));
            let inputs: Inputs = ready.await?.into_iter().collect();
            stage_run(&job, at, &inputs).await.map(Arc::new)
        };
        waits.push(work.boxed().shared());
    }
    try_join_all(waits).await?;
    Ok(())
}

async fn stage_run(job: &Job, at: usize, inputs: &Inputs) -> Result<Output> {
    let stage = &job.bound.definition.stages[at];
    let began = Instant::now();
    job.tell(Event::StageStarted { stage: stage.id.clone() }).await?;
    let (output, note) = match &stage.kind {
        StageKind::Image => job.images(at).await?,
        StageKind::Audio => job.clips(at).await?,
        StageKind::Transcribe { options, .. } => job.transcribe(at, options).await?,
        StageKind::Generate(generate) => job.generate(at, generate, inputs).await?,
        StageKind::Text { template, .. } => {
            let text = template
                .render(job.input.prompt.as_deref(), &job.texts(inputs))
                .map_err(|error| error.about(&stage.id))?;
            if at == job.bound.definition.output {
                job.tell(Event::Text { delta: text.clone(), logprobs: Vec::new() }).await?;
            }
            let note = format!("{} bytes", text.len());
            (Output::Text(text), note)
        }
    };
    if let Output::Text(text) = &output {
        job.tally.output(at, &stage.id, text);
    }
    let ended = Instant::now();
    metrics::histogram!("weft_stage_seconds", "kind" => stage.kind_name()).record((ended - began).as_secs_f64());
    job.tally.span(job.began, stage.id.clone(), began, ended, note.clone());
    job.tell(Event::StageFinished { stage: stage.id.clone(), took: ended - began, note }).await?;
    Ok(output)
}

impl Job {
    /// Texts of the stages that one uses, by id.
    pub(super) fn texts(&self, inputs: &Inputs) -> BTreeMap<String, String> {
        let text = |(at, output): (&usize, &Arc<Output>)| match &**output {
            Output::Text(text) => Some((self.bound.definition.stages[*at].id.clone(), text.clone())),
            Output::Media(_) => None,
        };
        inputs.iter().filter_map(text).collect()
    }
}
