//! `weft run`: one request, no server.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde_json::{Value, json};
use weft_pipelines::config::RuntimeConfig;
use weft_pipelines::event::Event;
use weft_pipelines::request::{Class, Input, Options, Request};
use weft_pipelines::{ErrorKind, Runtime};

use super::args::RunArgs;
use super::serve::local;
use super::{Failure, out};

pub(super) async fn run(args: RunArgs) -> Result<(), Failure> {
    let mut config = local(&args.local)?;
    let target = target(&args.pipeline, &mut config)?;
    let placeholder = config.models.iter().any(|m| m.placeholder);
    let input = Input {
        images: read_all(&args.image)?,
        audios: read_all(&args.audio)?,
        prompt: args.prompt,
        messages: Vec::new(),
    };
    let options = options(&args.set)?;
    let waiting = out::spinner("loading models");
    let runtime = Runtime::start(config).await?;
    waiting.finish_and_clear();
    let target = crate::target::named(&runtime, &target);
    let mut events = runtime.run(Request { target, input, options, class: Class::Interactive, deadline: None })?;
    if placeholder {
        out::note(crate::embedded::PLACEHOLDER_NOTICE);
    }
    let mut streamed = false;
    while let Some(event) = events.next().await {
        match event {
            Event::Text { delta, .. } if !args.json => {
                out::piece(&delta);
                streamed = true;
            }
            Event::Done(outcome) => {
                if args.json {
                    out::line(&outcome_json(&outcome).to_string());
                } else if streamed {
                    out::line("");
                } else {
                    out::line(&outcome.text);
                }
                for warning in &outcome.warnings {
                    out::note(&format!("note: {warning}"));
                }
                return Ok(());
            }
            Event::Failed(error) => {
                if streamed {
                    out::line("");
                }
                return Err(error.into());
            }
            _ => {}
        }
    }
    Err(Failure::Work("the engine stopped before the answer was complete".into()))
}

fn outcome_json(outcome: &weft_pipelines::event::Outcome) -> Value {
    json!({
        "text": outcome.text,
        "outputs": outcome.outputs.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "finish_reason": outcome.finish_reason,
        "usage": outcome.usage,
        "segments": outcome.segments,
        "language": outcome.language,
        "duration": outcome.duration,
        "timeline": outcome.spans,
        "warnings": outcome.warnings,
    })
}

/// The name to run. A pipeline file is added to the configuration; anything else is a name already.
pub(super) fn target(name: &str, config: &mut RuntimeConfig) -> Result<String, Failure> {
    let path = Path::new(name);
    if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
        if !path.is_file() {
            return Err(Failure::Words(format!("there is no pipeline file {name}")));
        }
        config.pipelines.push(path.to_owned());
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        return Ok(stem);
    }
    Ok(name.to_owned())
}

/// `--set key=value`: numbers and booleans as JSON, the rest as text.
pub(super) fn options(set: &[String]) -> Result<Options, Failure> {
    let mut map = serde_json::Map::new();
    for pair in set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::Words(format!("--set {pair}: write it as key=value")));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        map.insert(key.trim().to_owned(), value);
    }
    serde_json::from_value(Value::Object(map)).map_err(|e| Failure::Words(format!("--set: {e}")))
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Bytes>, Failure> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map(Bytes::from).map_err(|error| {
            let text = format!("cannot read {}: {error}", path.display());
            weft_pipelines::Error::new(ErrorKind::NotFound, text).into()
        })
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_takes_numbers_texts_and_refuses_unknown_keys() {
        let Ok(read) = options(&["max_tokens=5".into(), "language=de".into()]) else { panic!("reads") };
        assert_eq!((read.max_tokens, read.language.as_deref()), (Some(5), Some("de")));
        assert!(options(&["max_tokes=5".into()]).is_err());
        assert!(options(&["x".into()]).is_err());
    }
}
