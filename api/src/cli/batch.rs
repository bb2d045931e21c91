//! `weft batch run`.

use weft_pipelines::Runtime;
use weft_pipelines::batch::{self, BatchJob};

use super::args::{BatchCommand, BatchRunArgs};
use super::run::{options, target};
use super::serve::local;
use super::{Failure, out};

pub(super) async fn batch(command: BatchCommand) -> Result<(), Failure> {
    match command {
        BatchCommand::Run(args) => run(args).await,
    }
}

async fn run(args: BatchRunArgs) -> Result<(), Failure> {
    let mut config = local(&args.local)?;
    let target = target(&args.pipeline, &mut config)?;
    let placeholder = config.models.iter().any(|m| m.placeholder);
    let options = options(&args.set)?;
    let runtime = Runtime::start(config).await?;
    if placeholder {
        out::note(crate::embedded::PLACEHOLDER_NOTICE);
    }
    let job = BatchJob {
        input: args.input,
        output: args.output,
        errors: args.errors,
        target: crate::target::named(&runtime, &target),
        options,
        resume: args.resume,
        concurrency: args.concurrency,
    };
    let bar = out::progress(0);
    let report = batch::run(&runtime, job, |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("({} failed)", progress.failed));
    })
    .await?;
    bar.finish_and_clear();
    if args.json {
        out::line(&serde_json::json!(report).to_string());
    } else {
        let batch::BatchReport { total, succeeded, failed, skipped, prompt_tokens, completion_tokens } = report;
        out::line(&format!("{total} lines: {succeeded} answered, {failed} failed, {skipped} done before"));
        out::line(&format!("{prompt_tokens} prompt tokens, {completion_tokens} answer tokens"));
    }
    Ok(())
}
