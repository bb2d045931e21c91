//! A batch job of 500 lines with ten bad ones, killed five times and resumed: every line exactly once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::door::weft;

const LINES: usize = 500;
const KILLS: usize = 5;

fn is_bad(line: usize) -> bool {
    line % 50 == 7
}

/// Every fiftieth line is broken, each in another way.
fn input() -> String {
    let mut text = String::new();
    for line in 0..LINES {
        let id = format!("line-{line}");
        let written = match (is_bad(line), line / 50) {
            (false, _) => {
                writeln!(text, r#"{{"custom_id":"{id}","prompt":"Say {line}.","options":{{"max_tokens":3}}}}"#)
            }
            (true, n) if n % 4 == 0 => writeln!(text, r#"{{"custom_id":"{id}","prompt":"#),
            (true, n) if n % 4 == 1 => {
                writeln!(text, r#"{{"custom_id":"{id}","prompt":"a","images":["missing.png"]}}"#)
            }
            (true, n) if n % 4 == 2 => writeln!(text, r#"{{"custom_id":"{id}","promt":"a"}}"#),
            (true, _) => writeln!(text, r#"{{"custom_id":"{id}","prompt":"a","options":{{"temperature":-1}}}}"#),
        };
        written.expect("writing to a string");
    }
    text
}

fn job(folder: &Path) -> Command {
    let mut command = Command::new(weft());
    let at = |name: &str| folder.join(name).display().to_string();
    command.args(["batch", "run", &at("in.jsonl"), "--pipeline", "tiny-omni", "-o", &at("out.jsonl")]);
    command.args(["--errors", &at("errors.jsonl"), "--resume", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{}: {e}: {l}", path.display()))).collect()
}

#[test]
fn a_job_killed_five_times_answers_every_line_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("in.jsonl"), input()).expect("written");
    let (out, errors) = (folder.path().join("out.jsonl"), folder.path().join("errors.jsonl"));
    let done = || std::fs::read_to_string(&out).unwrap_or_default().lines().count();
    let mut killed = 0;
    for kill in 0..KILLS {
        let before = done();
        let mut child = job(folder.path()).spawn().expect("starts");
        // Wait for some progress, then kill at an arbitrary moment.
        for _ in 0..1200 {
            if done() > before + 10 + 13 * kill || child.try_wait().expect("a child").is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if child.try_wait().expect("a child").is_none() {
            child.kill().expect("killed");
            killed += 1;
        }
        child.wait().expect("reaped");
    }
    assert_eq!(killed, KILLS, "the job ended before it could be killed; make it longer");
    let end = job(folder.path()).output().expect("runs");
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));

    let mut seen = BTreeMap::new();
    for line in lines(&out).iter().chain(&lines(&errors)) {
        let id = line["custom_id"].as_str().map(str::to_owned);
        let id = id.unwrap_or_else(|| format!("line-{}", line["index"].as_u64().expect("an index from 0")));
        *seen.entry(id).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), LINES);
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    let failed = lines(&errors);
    assert_eq!(failed.len(), (0..LINES).filter(|l| is_bad(*l)).count());
    assert!(failed.iter().all(|l| l["error"]["message"].as_str().is_some_and(|m| !m.is_empty())));
    assert!(lines(&out).iter().all(|l| l["text"].is_string() && l.get("error").is_none_or(Value::is_null)));
}

#[test]
fn two_jobs_on_one_output_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("in.jsonl"), input()).expect("written");
    let mut first = job(folder.path()).spawn().expect("starts");
    let out = folder.path().join("out.jsonl");
    for _ in 0..1200 {
        if std::fs::metadata(&out).is_ok_and(|m| m.len() > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = job(folder.path()).output().expect("runs");
    first.kill().expect("killed");
    first.wait().expect("reaped");
    assert!(!second.status.success(), "a second writer was let in");
}
