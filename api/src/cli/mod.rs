//! The command line: words in, exit status out.
//!
//! Exit status: 0 done, 1 the work failed, 2 the words were wrong. Answers go to stdout, everything else to stderr.

mod args;
mod batch;
mod bench;
mod client;
mod demo;
mod doctor;
mod models;
mod out;
mod pipelines;
mod run;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;
use weft_pipelines::{Error, ErrorKind};

pub use args::Cli;
use args::Command;

/// What a command ends with when it fails.
pub(crate) enum Failure {
    /// The words were wrong: exit 2.
    Words(String),
    /// The work failed: exit 1.
    Work(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = match &error.param {
            Some(param) => format!("{param}: {}", error.message),
            None => error.message.clone(),
        };
        match error.kind {
            ErrorKind::NotFound | ErrorKind::Malformed => Self::Words(text),
            _ => Self::Work(text),
        }
    }
}

/// Runs the command of the process's arguments.
pub fn main() -> ExitCode {
    let began = std::time::Instant::now();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            let _nowhere_to_report = error.print();
            return ExitCode::from(code);
        }
    };
    start_log(&cli);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            out::note(&format!("error: no async runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(dispatch(cli, began));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Work(message)) => {
            out::note(&format!("error: {message}"));
            ExitCode::from(1)
        }
        Err(Failure::Words(message)) => {
            out::note(&format!("error: {message}"));
            ExitCode::from(2)
        }
    }
}

async fn dispatch(cli: Cli, began: std::time::Instant) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => demo::demo(args).await,
        Command::Serve(args) => serve::serve(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Batch { command } => batch::batch(command).await,
        Command::Pipelines { command } => pipelines::pipelines(command),
        Command::Models { command } => models::models(command),
        Command::Bench { command } => bench::bench(command, began).await,
        Command::Doctor(args) => doctor::doctor(args),
        Command::Completions { shell } => {
            out::completions(shell);
            Ok(())
        }
    }
}

/// Log lines go to stderr; `WEFT_LOG` overrides the default level of the command.
fn start_log(cli: &Cli) {
    let default = if matches!(cli.command, Command::Serve(_)) { "info" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| default.into());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second start (tests) keeps the first subscriber.
    let _first_wins = if cli.log_json { builder.json().try_init() } else { builder.compact().try_init() };
}
