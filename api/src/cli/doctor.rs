//! `weft doctor`: what this machine has, each with a verdict and a remedy.

use std::path::Path;

use serde::Serialize;

use crate::embedded;
use crate::settings::{DEFAULT_LISTEN, Overrides, Written, costs_file};

use super::args::DoctorArgs;
use super::{Failure, out};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Note,
    Fault,
}

#[derive(Debug, Serialize)]
struct Finding {
    part: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
}

impl Finding {
    fn ok(part: &'static str, found: impl Into<String>) -> Self {
        Self { part, verdict: Verdict::Ok, found: found.into(), remedy: String::new() }
    }

    fn with(part: &'static str, verdict: Verdict, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { part, verdict, found: found.into(), remedy: remedy.into() }
    }
}

pub(super) fn doctor(args: DoctorArgs) -> Result<(), Failure> {
    let mut findings = vec![device(), processor(), memory(), embedded_model(), address()];
    findings.extend(costs());
    if let Some(path) = &args.config {
        findings.push(config(path));
    }
    let faults = findings.iter().filter(|f| f.verdict == Verdict::Fault).count();
    if args.json {
        out::line(&serde_json::json!({ "findings": findings, "faults": faults }).to_string());
    } else {
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Ok => "ok   ",
                Verdict::Note => "note ",
                Verdict::Fault => "FAULT",
            };
            out::line(&format!("{mark}  {:<15} {}", finding.part, finding.found));
            if !finding.remedy.is_empty() {
                out::line(&format!("{:<23}-> {}", "", finding.remedy));
            }
        }
    }
    if faults > 0 { Err(Failure::Work(format!("{faults} faults found"))) } else { Ok(()) }
}

fn device() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match weft_pipelines::config::gpu() {
        Ok(gpu) => Finding::ok("device", format!("{gpu}; and CPU, {cores} cores")),
        Err(reason) => Finding::with("device", Verdict::Note, format!("CPU, {cores} cores; no GPU is used"), reason),
    }
}

#[cfg(target_arch = "x86_64")]
fn processor() -> Finding {
    let mut has = Vec::new();
    for (name, present) in [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("AVX-512", is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")),
        ("VNNI", is_x86_feature_detected!("avx512vnni")),
    ] {
        if present {
            has.push(name);
        }
    }
    if has.contains(&"AVX2") && has.contains(&"FMA") {
        return Finding::ok("instructions", has.join(", "));
    }
    let remedy = "answers will be slow: run on a processor with AVX2 and FMA (most since 2013)";
    Finding::with(
        "instructions",
        Verdict::Note,
        if has.is_empty() { "SSE2 only".into() } else { has.join(", ") },
        remedy,
    )
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> Finding {
    Finding::ok("instructions", std::env::consts::ARCH)
}

fn memory() -> Finding {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else {
        return Finding::with("memory", Verdict::Note, "unknown on this system", "");
    };
    let kib = |key: &str| {
        let line = text.lines().find(|l| l.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (Some(total), Some(free)) = (kib("MemTotal:"), kib("MemAvailable:")) else {
        return Finding::with("memory", Verdict::Note, "unknown on this system", "");
    };
    let found = format!("{:.1} GiB available of {:.1}", free as f64 / 1048576.0, total as f64 / 1048576.0);
    if free < 1 << 20 {
        return Finding::with(
            "memory",
            Verdict::Note,
            found,
            "less than 1 GiB is free: lower memory.kv_mib in weft.yaml",
        );
    }
    Finding::ok("memory", found)
}

fn embedded_model() -> Finding {
    match weft_pipelines::inspect::model(&embedded::model().source) {
        Ok(_) => Finding::ok("embedded model", format!("{} is whole ({})", embedded::MODEL_NAME, "random weights")),
        Err(error) => {
            let remedy = "this binary is damaged: build or install it again";
            Finding::with("embedded model", Verdict::Fault, error.message, remedy)
        }
    }
}

/// What servers on this machine learned about their work.
fn costs() -> Vec<Finding> {
    const PART: &str = "learned costs";
    let Some(path) = costs_file() else {
        return vec![Finding::ok(PART, "no cache folder: learned anew at each start")];
    };
    match weft_pipelines::learned_costs(&path) {
        Err(error) => vec![Finding::with(PART, Verdict::Note, error.message, "remove the file; it is learned again")],
        Ok(lines) if lines.is_empty() => vec![Finding::ok(PART, "none yet: a server keeps them when it stops")],
        Ok(lines) => lines.into_iter().map(|line| Finding::ok(PART, line)).collect(),
    }
}

fn address() -> Finding {
    match std::net::TcpListener::bind(DEFAULT_LISTEN) {
        Ok(_) => Finding::ok("address", format!("{DEFAULT_LISTEN} is free")),
        Err(error) => {
            let remedy = "choose another with `weft serve --listen 127.0.0.1:PORT`";
            Finding::with("address", Verdict::Note, format!("{DEFAULT_LISTEN}: {error}"), remedy)
        }
    }
}

fn config(path: &Path) -> Finding {
    let read = Written::read(path).and_then(|written| written.resolve(Overrides::default()));
    match read {
        Err(error) => Finding::with("configuration", Verdict::Fault, error.message, "mend the named line"),
        Ok((runtime, serve)) => {
            let found = format!("{} is valid: {} models, {}", path.display(), runtime.models.len(), serve.listen);
            Finding::ok("configuration", found)
        }
    }
}
