//! Offline jobs: JSON lines in, JSON lines out, each input line answered exactly once even across kills.
//!
//! ```text
//! input (streamed) -> at most `concurrency` lines in work -> journal (append, sync) -> progress
//! ```
//!
//! Memory is bounded by the lines in work; what is done is one bit a line. How a kill is survived stands in [`journal`].

mod input;
mod journal;
mod line;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::Serialize;

use self::input::{LINE_BYTES, Line, Lines};
use self::journal::{Done, JobFile, Journal, Paths};
use self::line::{Failure, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Class, Options, Request, Target};
use crate::runtime::Runtime;

pub use line::{Answer, BatchLine, LineAudio, LineContent, LineMessage, LinePart, LineUrl};

/// Times an overloaded service is asked again before the line fails, and the first pause between.
const RETRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(50);

/// An offline job.
#[derive(Debug, Clone)]
pub struct BatchJob {
    /// Requests, one JSON object a line.
    pub input: PathBuf,
    /// Answers, one JSON object a line, in the order of completion.
    pub output: PathBuf,
    /// Where failed lines go; `None`: into the output, with an `error` field.
    pub errors: Option<PathBuf>,
    /// What answers.
    pub target: Target,
    /// Options for lines that do not bring their own.
    pub options: Options,
    /// Go on with an output that is there already.
    pub resume: bool,
    /// Lines in work at once.
    pub concurrency: usize,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BatchProgress {
    /// Lines of the input that ask something.
    pub total: usize,
    /// Lines answered, in earlier runs too.
    pub done: usize,
    /// Of these, failed.
    pub failed: usize,
}

/// The end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BatchReport {
    /// Lines of the input that ask something.
    pub total: usize,
    /// Lines answered in this run.
    pub succeeded: usize,
    /// Lines failed in this run.
    pub failed: usize,
    /// Lines found done by earlier runs.
    pub skipped: usize,
    /// Prompt tokens of this run.
    pub prompt_tokens: usize,
    /// Answer tokens of this run.
    pub completion_tokens: usize,
}

/// Runs a job to its end. `progress` is called after every line. Dropping the future leaves a job that can be resumed.
pub async fn run(runtime: &Runtime, job: BatchJob, progress: impl Fn(BatchProgress)) -> Result<BatchReport> {
    let folder = job.input.parent().unwrap_or_else(|| Path::new("")).to_path_buf();
    let (target, base) = (job.target.clone(), job.options.clone());
    let answer = |line: BatchLine| {
        let (folder, target, base) = (folder.clone(), target.clone(), base.clone());
        let most = runtime.limits().media_bytes;
        async move {
            let loaded = tokio::task::spawn_blocking(move || line.load(&folder, most)).await;
            let (input, options) =
                loaded.map_err(|_| Error::new(ErrorKind::Internal, "reading the line's media broke off"))??;
            let options = options.over(&base);
            let request = || Request {
                target: target.clone(),
                input: input.clone(),
                options: options.clone(),
                class: Class::Batch,
                deadline: None,
            };
            let mut pause = PAUSE;
            for _ in 0..RETRIES {
                match attempt(runtime, request()).await {
                    Err(error) if error.kind == ErrorKind::Overloaded => tokio::time::sleep(pause).await,
                    other => return other,
                }
                pause *= 2;
            }
            attempt(runtime, request()).await
        }
    };
    run_with(job, answer, progress).await
}

async fn attempt(runtime: &Runtime, request: Request) -> Result<Answer> {
    Ok(runtime.run(request)?.finish().await?.into())
}

/// Like [`run`], with any answerer: for tests, and for answers from elsewhere.
pub async fn run_with<F>(
    job: BatchJob,
    answer: impl Fn(BatchLine) -> F,
    progress: impl Fn(BatchProgress),
) -> Result<BatchReport>
where
    F: Future<Output = Result<Answer>>,
{
    let concurrency = job.concurrency.max(1);
    let opened = blocking(move || open(&job)).await?;
    let Opened { journal, done, total, lines } = opened?;
    let mut state = BatchProgress { total, done: done.count, failed: done.failed };
    let mut report = BatchReport { total, skipped: done.count, ..BatchReport::default() };
    progress(state);
    let mut source = Source::start(lines, done);
    let mut journal = Some(journal);
    let mut work = FuturesUnordered::new();
    let mut ready: Vec<(bool, Vec<u8>)> = Vec::new();
    loop {
        while work.len() < concurrency && !source.ended {
            match source.lines.recv_async().await {
                Ok(line) => {
                    let (index, bytes) = line?;
                    work.push(one(index, bytes, &answer));
                }
                Err(_) => source.ended = true,
            }
        }
        let Some(first) = work.next().await else { break };
        // Whatever else is ready goes into the same sync.
        let mut finished = vec![first];
        while let Some(Some(more)) = futures_util::FutureExt::now_or_never(work.next()) {
            finished.push(more);
        }
        for Finished { record, usage, failed } in finished {
            ready.push((failed, record));
            state.done += 1;
            state.failed += usize::from(failed);
            report.failed += usize::from(failed);
            report.succeeded += usize::from(!failed);
            report.prompt_tokens += usage.prompt_tokens;
            report.completion_tokens += usage.completion_tokens;
        }
        let Some(mut writer) = journal.take() else { break };
        let batch = std::mem::take(&mut ready);
        let (writer, written) = blocking(move || {
            let written = writer.append(&batch);
            (writer, written)
        })
        .await?;
        written.map_err(|error| Error::new(ErrorKind::Internal, format!("the output cannot be written: {error}")))?;
        journal = Some(writer);
        progress(state);
    }
    Ok(report)
}

/// An answered line.
struct Finished {
    record: Vec<u8>,
    usage: crate::event::Usage,
    failed: bool,
}

async fn one<F: Future<Output = Result<Answer>>>(
    index: usize,
    bytes: Option<Vec<u8>>,
    answer: &impl Fn(BatchLine) -> F,
) -> Finished {
    let parsed = match bytes {
        Some(bytes) => BatchLine::parse(&bytes),
        None => Err(Error::new(ErrorKind::TooLarge, format!("the line has more than {LINE_BYTES} bytes"))),
    };
    let custom_id = parsed.as_ref().ok().and_then(|line| line.custom_id.clone());
    let result = match parsed {
        Ok(line) => answer(line).await,
        Err(error) => Err(error),
    };
    let record = Record {
        index,
        custom_id: custom_id.as_deref(),
        answer: result.as_ref().ok(),
        error: result.as_ref().err().map(Failure::from),
    };
    // Numbers and strings only: this cannot fail, and if it did, the line would be done again by the next run.
    let mut line = serde_json::to_vec(&record).unwrap_or_default();
    line.push(b'\n');
    let usage = result.as_ref().map_or_else(|_| Default::default(), |answer| answer.usage);
    Finished { record: line, usage, failed: result.is_err() }
}

struct Opened {
    journal: Journal,
    done: Done,
    total: usize,
    lines: Lines,
}

fn open(job: &BatchJob) -> Result<Opened> {
    let survey = input::survey(&job.input)?;
    let (kind, name) = match &job.target {
        Target::Pipeline(name) => ("pipeline", name),
        Target::Model(name) => ("model", name),
    };
    let options = serde_json::to_value(&job.options).unwrap_or_default();
    let file = JobFile { version: 1, input_blake3: survey.blake3, target: format!("{kind}:{name}"), options };
    let paths = Paths { output: job.output.clone(), errors: job.errors.clone() };
    let (journal, done) = Journal::open(&paths, &file, job.resume, survey.lines)?;
    Ok(Opened { journal, done, total: survey.requests, lines: Lines::open(&job.input)? })
}

/// Lines that are not done yet, read ahead by a few on a thread that may block.
struct Source {
    lines: flume::Receiver<Result<Line>>,
    ended: bool,
}

impl Source {
    fn start(mut lines: Lines, done: Done) -> Self {
        let (sender, receiver) = flume::bounded(2);
        tokio::task::spawn_blocking(move || {
            loop {
                let line = match lines.next() {
                    Ok(Some((index, _))) if done.has(index) => continue,
                    Ok(Some(line)) => Ok(line),
                    Ok(None) => return,
                    Err(error) => Err(Error::new(ErrorKind::Internal, format!("the input cannot be read: {error}"))),
                };
                let last = line.is_err();
                if sender.send(line).is_err() || last {
                    return;
                }
            }
        });
        Self { lines: receiver, ended: false }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Error::new(ErrorKind::Internal, "the job broke off inside the service"))
}
