//! Jobs: every line exactly once, whatever the kills.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use weft_pipelines::batch::{self, Answer, BatchJob, BatchLine, BatchProgress, BatchReport};
use weft_pipelines::{Error, ErrorKind, Options, Result, Target};

/// A folder of one test, gone with it.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        let _before = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn job(&self, resume: bool) -> BatchJob {
        BatchJob {
            input: self.0.join("in.jsonl"),
            output: self.0.join("out.jsonl"),
            errors: None,
            target: Target::Pipeline("chat".into()),
            options: Options::default(),
            resume,
            concurrency: 7,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

const LINES: usize = 500;

/// 500 requests; every 50th is bad in one of several ways, some lines are blank.
fn write_input(path: &Path) {
    let mut text = String::new();
    for index in 0..LINES {
        text += &match index % 50 {
            7 if index % 100 == 7 => "{\"prompt\": broken\n".to_owned(),
            7 => format!("{{\"prompt\": \"fail {index}\"}}\n"),
            _ => format!("{{\"custom_id\": \"n{index}\", \"prompt\": \"say {index}\"}}\n"),
        };
    }
    std::fs::write(path, text).unwrap();
}

/// Echoes, in a changing order, and fails where asked to.
async fn echo(line: BatchLine) -> Result<Answer> {
    let prompt = line.prompt.unwrap_or_default();
    let number: u64 = prompt.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    tokio::time::sleep(Duration::from_micros(number * 37 % 900)).await;
    if prompt.starts_with("fail") {
        return Err(Error::new(ErrorKind::TooLarge, "asked to fail").about("prompt"));
    }
    Ok(Answer { text: prompt, ..Answer::default() })
}

/// Index to record of an output; panics when an index is there twice.
fn records(path: &Path) -> HashMap<u64, Value> {
    let mut records = HashMap::new();
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let index = record["index"].as_u64().unwrap();
        assert!(records.insert(index, record).is_none(), "index {index} is there twice");
    }
    records
}

fn check_all(records: &HashMap<u64, Value>) {
    assert_eq!(records.len(), LINES);
    for (index, record) in records {
        if index % 50 == 7 {
            let kind = if index % 100 == 7 { "malformed" } else { "too_large" };
            assert_eq!(record["error"]["kind"], kind, "{record}");
        } else {
            assert_eq!(record["text"], format!("say {index}"));
            assert_eq!(record["custom_id"], format!("n{index}"));
        }
    }
}

/// Runs until so many lines are reported, then drops the job as a kill does.
async fn run_until(job: BatchJob, most: usize) -> Option<Result<BatchReport>> {
    let (first, seen) = (Cell::new(None), tokio::sync::Notify::new());
    let progress = |now: BatchProgress| {
        let first = first.get().unwrap_or_else(|| {
            first.set(Some(now.done));
            now.done
        });
        if now.done > first.saturating_add(most) {
            seen.notify_one();
        }
    };
    tokio::select! {
        biased;
        () = seen.notified() => None,
        report = batch::run_with(job, echo, progress) => Some(report),
    }
}

/// A lock goes with its process; here it goes with the blocking call that was in flight.
async fn resume(folder: &Folder, errors: Option<PathBuf>, most: usize) -> Option<Result<BatchReport>> {
    for _ in 0..200 {
        match run_until(BatchJob { errors: errors.clone(), ..folder.job(true) }, most).await {
            Some(Err(error)) if error.kind == ErrorKind::Overloaded => {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
            other => return other,
        }
    }
    panic!("the lock was never given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_killed_five_times_ends_with_every_line_once() {
    for errors in [false, true] {
        let folder = Folder::new(if errors { "kills-errors" } else { "kills" });
        write_input(&folder.0.join("in.jsonl"));
        let (output, failures) = (folder.0.join("out.jsonl"), folder.0.join("bad.jsonl"));
        let errors = errors.then(|| failures.clone());
        for (kill, torn) in [(3, 0), (40, 1), (60, 17), (25, 40), (70, 90)] {
            assert!(resume(&folder, errors.clone(), kill).await.is_none(), "ended before the kill");
            tokio::time::sleep(Duration::from_millis(20)).await;
            // What a kill leaves: any beginning of what was being appended.
            let length = std::fs::metadata(&output).unwrap().len();
            std::fs::OpenOptions::new()
                .write(true)
                .open(&output)
                .unwrap()
                .set_len(length.saturating_sub(torn))
                .unwrap();
        }
        let report = resume(&folder, errors.clone(), usize::MAX).await.unwrap().unwrap();
        assert_eq!((report.total, report.skipped + report.succeeded + report.failed), (LINES, LINES));
        let mut all = records(&output);
        if errors.is_some() {
            let bad = records(&failures);
            assert_eq!((bad.len(), all.len()), (10, LINES - 10));
            all.extend(bad);
        }
        check_all(&all);
        let again = resume(&folder, errors, usize::MAX).await.unwrap().unwrap();
        assert_eq!((again.skipped, again.succeeded, again.failed), (LINES, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_beginning_of_an_output_can_be_resumed() {
    let folder = Folder::new("prefix");
    let requests: String =
        (0..12).map(|index| format!("{{\"custom_id\": \"é{index}\", \"prompt\": \"say {index}\"}}\n")).collect();
    std::fs::write(folder.0.join("in.jsonl"), format!("\n{requests}\n  \n")).unwrap();
    let report = batch::run_with(folder.job(false), echo, |_| {}).await.unwrap();
    assert_eq!((report.total, report.succeeded), (12, 12));
    let output = folder.0.join("out.jsonl");
    let whole = std::fs::read(&output).unwrap();
    for cut in (0..whole.len()).step_by(5) {
        std::fs::write(&output, &whole[..cut]).unwrap();
        let report = resume(&folder, None, usize::MAX).await.unwrap().unwrap();
        assert_eq!(report.skipped + report.succeeded, 12, "cut at byte {cut}");
        assert_eq!(records(&output).len(), 12, "cut at byte {cut}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_resumed_says_why() {
    let folder = Folder::new("refusals");
    let input = folder.0.join("in.jsonl");
    std::fs::write(&input, "{\"prompt\": \"say 1\"}\n{\"prompt\": \"say 2\"}\n").unwrap();
    batch::run_with(folder.job(false), echo, |_| {}).await.unwrap();
    let refused = |error: Error, text: &str| assert!(error.message.contains(text), "{error} lacks {text:?}");
    refused(batch::run_with(folder.job(false), echo, |_| {}).await.unwrap_err(), "--resume");
    let other = BatchJob { target: Target::Model("chat".into()), ..folder.job(true) };
    refused(batch::run_with(other, echo, |_| {}).await.unwrap_err(), "pipeline or model changed");
    std::fs::write(&input, "{\"prompt\": \"say 1\"}\n{\"prompt\": \"say 3\"}\n").unwrap();
    refused(batch::run_with(folder.job(true), echo, |_| {}).await.unwrap_err(), "input file changed");
    let missing = BatchJob { input: folder.0.join("none.jsonl"), ..folder.job(false) };
    assert_eq!(batch::run_with(missing, echo, |_| {}).await.unwrap_err().kind, ErrorKind::NotFound);
    let output = folder.0.join("foreign.jsonl");
    std::fs::write(&output, "hello\n").unwrap();
    let foreign = BatchJob { output: output.clone(), ..folder.job(true) };
    refused(batch::run_with(foreign, echo, |_| {}).await.unwrap_err(), "was not written by a job");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "hello\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_jobs_do_not_share_an_output() {
    let folder = Folder::new("lock");
    std::fs::write(folder.0.join("in.jsonl"), "{\"prompt\": \"say 1\"}\n").unwrap();
    let second = Cell::new(None);
    let first = |line: BatchLine| async {
        let report = batch::run_with(folder.job(true), echo, |_| {}).await;
        second.set(Some(report));
        echo(line).await
    };
    batch::run_with(folder.job(false), first, |_| {}).await.unwrap();
    let error = second.take().unwrap().unwrap_err();
    assert!(error.message.contains("another job is writing"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_line_costs_itself_alone() {
    let folder = Folder::new("lines");
    let lines = [
        r#"{"prompt": "say 1", "colour": "red"}"#,
        r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "say"}]}]}"#,
        r#"[1, 2]"#,
        r#"{"prompt": "say 4", "options": {"max_tokens": 5}}"#,
    ];
    std::fs::write(folder.0.join("in.jsonl"), lines.join("\n")).unwrap();
    let report = batch::run_with(folder.job(false), echo, |_| {}).await.unwrap();
    assert_eq!((report.total, report.succeeded, report.failed), (4, 2, 2));
    let records = records(&folder.0.join("out.jsonl"));
    assert!(records[&0]["error"]["message"].as_str().unwrap().contains("colour"), "{:?}", records[&0]);
}
