//! `weft demo`: four questions through the real HTTP door, each with a timeline of its stages.

use serde_json::{Value, json};

use crate::embedded;
use crate::http;
use crate::settings::{Overrides, Written};

use super::args::DemoArgs;
use super::client::{Question, ask};
use super::serve::stop_signal;
use super::{Failure, out};

/// Columns of a timeline.
const WIDTH: usize = 44;

pub(super) async fn demo(args: DemoArgs) -> Result<(), Failure> {
    let began = std::time::Instant::now();
    let flags =
        Overrides { models: args.model.into_iter().collect(), listen: Some(args.listen), ..Overrides::default() };
    let (config, settings) = Written::default().resolve(flags)?;
    let Some(model) = config.models.first().map(|m| (m.name.clone(), m.placeholder)) else {
        return Err(Failure::Work("there is no model".into()));
    };
    let server = http::serve(settings, config).await?;
    let ready = began.elapsed().as_secs_f64();
    out::line(&format!("weft is ready after {ready:.2} s at http://{}, model {}", server.address, model.0));
    if model.1 {
        out::line(embedded::PLACEHOLDER_NOTICE);
    }
    let result = questions(&server, &model.0).await;
    if result.is_ok() && !args.once {
        out::line(&format!("\nThe page is at http://{}/ (Ctrl-C ends)", server.address));
        stop_signal().await;
    }
    server.stop().await;
    result
}

async fn questions(server: &http::Server, model: &str) -> Result<(), Failure> {
    let (image, audio) = (Some(embedded::SAMPLE_IMAGE), Some(embedded::SAMPLE_AUDIO));
    let list = [
        ("a picture", image, None, "What does the picture show?"),
        ("a clip", None, audio, "What is said in the clip?"),
        ("a picture and a clip", image, audio, "Does the voice speak about what the picture shows?"),
        ("text alone", None, None, "Say hello in one sentence."),
    ];
    for (title, image, audio, prompt) in list {
        out::line(&format!("\n== {title}: {prompt}"));
        let options = json!({ "max_tokens": 32 });
        let mut failed = None;
        let mut done = None;
        let question = Question { image, audio, prompt, options };
        let asked = ask(server.address, model, &question, |name, data| match name {
            "text" => out::piece(&printable(data["delta"].as_str().unwrap_or_default())),
            "done" => done = Some(data.clone()),
            "error" => failed = Some(data["error"]["message"].as_str().unwrap_or("unknown").to_owned()),
            _ => {}
        });
        asked.await.map_err(Failure::Work)?;
        out::line("");
        match (failed, done) {
            (Some(message), _) => return Err(Failure::Work(message)),
            (None, None) => return Err(Failure::Work("the stream ended without its last event".into())),
            (None, Some(done)) => timeline(&done),
        }
    }
    Ok(())
}

/// Random weights may produce control characters; a terminal must not obey them.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{b7}' } else { c }).collect()
}

/// One line a span: its name, a bar in time, its milliseconds.
fn timeline(done: &Value) {
    let spans = done["timeline"].as_array().map_or(&[][..], Vec::as_slice);
    let number = |span: &Value, key: &str| span[key].as_f64().unwrap_or(0.0);
    let end = spans.iter().map(|s| number(s, "end_ms")).fold(0.001, f64::max);
    for span in spans {
        let (from, to) = (number(span, "start_ms"), number(span, "end_ms"));
        let column = |ms: f64| ((ms / end) * WIDTH as f64).round() as usize;
        let (left, right) = (column(from).min(WIDTH - 1), column(to).min(WIDTH));
        let bar = "\u{2588}".repeat((right.saturating_sub(left)).max(1));
        let name = span["name"].as_str().unwrap_or("?");
        let note = span["note"].as_str().unwrap_or("");
        let bar = format!("{}{bar}", " ".repeat(left));
        out::line(&format!("   {name:<18} {bar:<WIDTH$} {:>8.1} ms  {note}", to - from));
    }
    let usage = &done["usage"];
    let (prompt, media, answer) = (&usage["prompt_tokens"], &usage["media_tokens"], &usage["completion_tokens"]);
    out::line(&format!("   {prompt} prompt tokens ({media} of media), {answer} answer tokens, {end:.0} ms in all"));
}
