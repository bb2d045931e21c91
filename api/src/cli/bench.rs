//! `weft bench`: measures, and prints a table for people or JSON lines for programs.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;
use weft_pipelines::bench::mixed::{MixedCase, MixedLine, RandomModel};
use weft_pipelines::bench::simulated::{Traffic, simulated};
use weft_pipelines::bench::{self, Opened};
use weft_pipelines::config::{DeviceChoice, ModelEntry};

use crate::embedded;

use super::args::{BenchArgs, BenchCommand, SimulationArgs};
use super::serve::local;
use super::{Failure, out};

pub(super) async fn bench(command: BenchCommand, process_began: Instant) -> Result<(), Failure> {
    let args = command.args();
    let config = local(&args.local())?;
    let Some(model) = config.models.first().cloned() else {
        return Err(Failure::Words("a benchmark needs a model".into()));
    };
    let json = args.json;
    match &command {
        BenchCommand::Decode { batch, context, steps, .. } => {
            let opened = open(&model, args)?;
            print(&opened.decode(batch, *context, *steps)?, json);
        }
        BenchCommand::Prefill { tokens, .. } => print(&open(&model, args)?.prefill(tokens, args.repeats)?, json),
        BenchCommand::Encode { batch, side, .. } => {
            print(&open(&model, args)?.encode(batch, *side, args.repeats)?, json)
        }
        BenchCommand::Media { files, .. } => {
            let files = files.iter().map(|f| bench::file(f)).collect::<Result<Vec<_>, _>>()?;
            print(&open(&model, args)?.media(&files, args.repeats).await?, json);
        }
        BenchCommand::Transcribe { files, .. } => {
            let files = files.iter().map(|f| bench::file(f)).collect::<Result<Vec<_>, _>>()?;
            print(&bench::transcribe(config, &files, args.repeats).await?, json);
        }
        BenchCommand::Device { .. } => print(&[bench::device()?], json),
        BenchCommand::Mixed { simulation, seconds, .. } if simulation.simulate => simulate(simulation, *seconds, json)?,
        BenchCommand::Mixed { side, streams, pictures, seconds, .. } => {
            let case = MixedCase {
                threads: args.threads.unwrap_or(0),
                side: *side,
                streams: *streams,
                pictures: *pictures,
                seconds: *seconds,
            };
            let random = match args.model {
                Some(_) => None,
                None => Some(RandomModel::write(embedded::MODEL_FILES)?),
            };
            let model = random.as_ref().map_or(model, RandomModel::entry);
            // Minutes pass: as JSON, each line is out as soon as it is measured.
            let told = |line: &MixedLine| {
                if json {
                    print(std::slice::from_ref(line), true);
                }
            };
            let lines = bench::mixed::mixed(&model, case, told)?;
            if !json {
                print(&lines, false);
            }
        }
        BenchCommand::Speculation { .. } => print(&bench::speculation::speculation(config, args.repeats).await?, json),
        BenchCommand::Start { .. } => print(&[bench::start(config, process_began).await?], json),
    }
    Ok(())
}

fn simulate(args: &SimulationArgs, seconds: f64, json: bool) -> Result<(), Failure> {
    let read = |path: &Option<PathBuf>, default: &str| match path {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::Work(format!("cannot read {}: {error}", path.display()))),
        None => Ok(default.to_owned()),
    };
    let table = read(&args.table, embedded::H200_COSTS)?;
    let trace = read(&args.trace, embedded::MIXED_TRACE)?;
    let traffic = match args.rate {
        Some(rate) => Traffic::Drawn { seconds, rate, burst: args.burst },
        None => Traffic::Recorded(&trace),
    };
    let reports = simulated(&table, traffic, args.target)?;
    if let Some(folder) = &args.svg {
        for report in &reports {
            let path = folder.join(format!("{}.svg", report.policy));
            std::fs::write(&path, &report.svg)
                .map_err(|error| Failure::Work(format!("cannot write {}: {error}", path.display())))?;
        }
    }
    print(&reports, json);
    Ok(())
}

fn open(model: &ModelEntry, args: &BenchArgs) -> Result<Opened, Failure> {
    let device = args.device.map_or(DeviceChoice::Auto, DeviceChoice::from);
    Ok(Opened::open(model, device, args.threads.unwrap_or(0))?)
}

/// One JSON object a line, or a table whose columns are the fields.
fn print(lines: &[impl Serialize], json: bool) {
    let rows: Vec<Value> = lines.iter().filter_map(|line| serde_json::to_value(line).ok()).collect();
    if json {
        for row in &rows {
            out::line(&row.to_string());
        }
        return;
    }
    let Some(Value::Object(first)) = rows.first() else { return };
    let columns: Vec<&String> = first.keys().filter(|key| key.as_str() != "bench").collect();
    let mut table = vec![columns.iter().map(|c| (*c).clone()).collect::<Vec<_>>()];
    table.extend(rows.iter().map(|row| columns.iter().map(|c| cell(&row[c.as_str()])).collect()));
    let width = |n: usize| table.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in &table {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        out::line(&cells.collect::<Vec<_>>().join("  "));
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(0.0);
            let digits = if number.abs() >= 100.0 { 1 } else { 3 };
            format!("{number:.digits$}")
        }
        Value::String(text) => text.chars().take(40).collect(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
