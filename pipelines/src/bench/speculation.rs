//! `weft bench speculation`: the same copying task with guesses of the next tokens and without, one sequence at a time.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::{RuntimeConfig, Speculation};
use crate::error::Result;
use crate::event::Event;
use crate::request::{Class, Input, Options, Request, Target};
use crate::runtime::Runtime;

/// One task with and without guesses.
#[derive(Debug, Clone, Serialize)]
pub struct SpeculationLine {
    /// `speculation`.
    pub bench: &'static str,
    /// Device.
    pub device: String,
    /// Model.
    pub model: String,
    /// What the prompt asks for.
    pub task: &'static str,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Tokens a second from the first text to the end, without guesses; median of the repeats.
    pub plain_tokens_per_s: f64,
    /// The same with guesses.
    pub tokens_per_s: f64,
    /// The one over the other.
    pub speedup: f64,
    /// Guesses that steps ran, over all repeats.
    pub drafted: u64,
    /// Guesses that came true.
    pub accepted: u64,
    /// Whether both answers are the same text.
    pub equal: bool,
}

/// Copied by one task, continued freely by the other.
const TEXT: &str = "The harbour at Lindholm was built in 1871 by forty masons and a surveyor named Ada Brandt. \
    Its outer wall is 412 metres long and 9 metres high, and it was paid for by a tax on salt. Every morning the keeper \
    wrote down the wind, the tide and the names of the ships: Aurora, Petrel, Saint Olaf, Meridian. In the winter of 1893 \
    ice closed the harbour for 52 days, and the keeper wrote the same line each day: no ships, no wind, no news. The log \
    is kept in the town library, where a copy can be read by anyone who asks for it.";

/// Runs both tasks with the first model. Greedy; prompts are found in the prefix cache after the first repeat.
pub async fn speculation(config: RuntimeConfig, repeats: usize) -> Result<Vec<SpeculationLine>> {
    let tasks = [
        ("copy", format!("Repeat the following text word for word, and write nothing else.\n\n{TEXT}")),
        ("free", "Write a short story about a lighthouse keeper who finds a letter.".to_owned()),
    ];
    let plain = measure(&config, Speculation::Off, &tasks, repeats).await?;
    let guessed = measure(&config, Speculation::Ngram, &tasks, repeats).await?;
    let model = config.models.first().map(|model| model.name.clone()).unwrap_or_default();
    let lines = tasks.iter().zip(plain.into_iter().zip(guessed)).map(|((task, _), (plain, guessed))| SpeculationLine {
        bench: "speculation",
        device: guessed.device,
        model: model.clone(),
        task,
        tokens: guessed.tokens,
        plain_tokens_per_s: plain.rate,
        tokens_per_s: guessed.rate,
        speedup: guessed.rate / plain.rate,
        drafted: guessed.drafted,
        accepted: guessed.accepted,
        equal: guessed.text == plain.text,
    });
    Ok(lines.collect())
}

struct Measured {
    device: String,
    text: String,
    tokens: usize,
    rate: f64,
    drafted: u64,
    accepted: u64,
}

async fn measure(
    config: &RuntimeConfig,
    speculation: Speculation,
    tasks: &[(&'static str, String)],
    repeats: usize,
) -> Result<Vec<Measured>> {
    let runtime = Runtime::start(RuntimeConfig { speculation, ..config.clone() }).await?;
    let mut measured = Vec::new();
    for (_, prompt) in tasks {
        let before = runtime.stats().engine;
        let mut runs = Vec::new();
        for _ in 0..=repeats {
            runs.push(run(&runtime, config, prompt).await?);
        }
        let after = runtime.stats().engine;
        let (text, tokens, _) = runs.remove(0);
        runs.sort_by_key(|(_, _, time)| *time);
        let time = runs.get(runs.len() / 2).map_or(Duration::ZERO, |(_, _, time)| *time);
        measured.push(Measured {
            device: runtime.device(),
            text,
            tokens,
            rate: tokens.saturating_sub(1) as f64 / time.as_secs_f64().max(1e-9),
            drafted: after.drafted - before.drafted,
            accepted: after.accepted - before.accepted,
        });
    }
    Ok(measured)
}

/// Text, tokens, and time from the first text to the end.
async fn run(runtime: &Runtime, config: &RuntimeConfig, prompt: &str) -> Result<(String, usize, Duration)> {
    let input = Input { prompt: Some(prompt.to_owned()), ..Input::default() };
    let options = Options { max_tokens: Some(160), temperature: Some(0.0), ..Options::default() };
    let target = Target::Model(config.models.first().map(|model| model.name.clone()).unwrap_or_default());
    let mut events = runtime.run(Request { target, input, options, class: Class::Interactive, deadline: None })?;
    let mut first = None;
    let mut answer = (String::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            Event::Text { .. } if first.is_none() => first = Some(Instant::now()),
            Event::Done(outcome) => answer = (outcome.text, outcome.usage.completion_tokens),
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Ok((answer.0, answer.1, first.map_or(Duration::ZERO, |first| first.elapsed())))
}
