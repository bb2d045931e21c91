//! `weft bench`: measures, and prints a table for people or JSON lines for programs.

use std::time::Instant;

use serde::Serialize;
use serde_json::Value;
use weft_pipelines::bench::{self, Opened};
use weft_pipelines::config::{DeviceChoice, ModelEntry};

use super::args::{BenchArgs, BenchCommand};
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
        BenchCommand::Start { .. } => print(&[bench::start(config, process_began).await?], json),
    }
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
