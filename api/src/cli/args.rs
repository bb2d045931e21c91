//! The words of the command line; help texts and completions come from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::settings::WrittenChoice;

/// Answers questions about images and sound.
#[derive(Debug, Parser)]
#[command(name = "weft", version, about, disable_help_subcommand = true, propagate_version = true)]
pub struct Cli {
    /// Write log lines as JSON.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a server with the embedded model, ask it four questions over HTTP and show the answers.
    Demo(DemoArgs),
    /// Serve models and pipelines over HTTP.
    Serve(ServeArgs),
    /// Answer one request without a server.
    Run(RunArgs),
    /// Answer many requests from a JSON Lines file.
    Batch {
        /// What to do.
        #[command(subcommand)]
        command: BatchCommand,
    },
    /// Check pipeline definitions.
    Pipelines {
        /// What to do.
        #[command(subcommand)]
        command: PipelinesCommand,
    },
    /// Look at checkpoints.
    Models {
        /// What to do.
        #[command(subcommand)]
        command: ModelsCommand,
    },
    /// Measure: a table for people, JSON lines with --json.
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Check this machine: device, memory, model, address; each with a verdict and a remedy.
    Doctor(DoctorArgs),
    /// Print shell completions.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Words of `weft demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// End after the answers instead of serving on.
    #[arg(long)]
    pub once: bool,
    /// Use this model (path, or name=path) instead of the embedded one.
    #[arg(long)]
    pub model: Option<String>,
    /// Address to serve on; a free port by default.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: String,
}

/// Words of `weft serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Model to load: a folder, a GGUF file, or name=path. Repeatable. Without one, the embedded model.
    #[arg(long)]
    pub model: Vec<String>,
    /// Folder of pipeline definitions. Repeatable.
    #[arg(long)]
    pub pipelines: Vec<PathBuf>,
    /// Address to listen on [default: 127.0.0.1:8080].
    #[arg(long)]
    pub listen: Option<String>,
    /// Device: the GPU where there is one (auto), cpu, or cuda [default: auto].
    #[arg(long)]
    pub device: Option<WrittenChoice>,
    /// CPU threads of the device [default: all cores].
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Models and pipelines for commands that work without a server.
#[derive(Debug, Args, Clone, Default)]
pub struct LocalArgs {
    /// Configuration file.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Model to load: a folder, a GGUF file, or name=path. Repeatable. Without one, the embedded model.
    #[arg(long)]
    pub model: Vec<String>,
    /// Folder of pipeline definitions. Repeatable.
    #[arg(long)]
    pub pipelines: Vec<PathBuf>,
    /// Device: the GPU where there is one (auto), cpu, or cuda [default: auto].
    #[arg(long)]
    pub device: Option<WrittenChoice>,
    /// CPU threads of the device [default: all cores].
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Words of `weft run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Pipeline file, pipeline name or model name.
    pub pipeline: String,
    /// Picture file. Repeatable.
    #[arg(long)]
    pub image: Vec<PathBuf>,
    /// Sound file. Repeatable.
    #[arg(long)]
    pub audio: Vec<PathBuf>,
    /// The question.
    #[arg(long)]
    pub prompt: Option<String>,
    /// An option, such as max_tokens=64, temperature=0.7, seed=1. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the whole result as JSON instead of streaming text.
    #[arg(long)]
    pub json: bool,
    /// Where models come from.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// What to do with a batch.
#[derive(Debug, Subcommand)]
pub enum BatchCommand {
    /// Answer every line of a file here.
    Run(BatchRunArgs),
}

/// Words of `weft batch run`.
#[derive(Debug, Args)]
pub struct BatchRunArgs {
    /// Requests, one JSON object a line.
    pub input: PathBuf,
    /// Pipeline file, pipeline name or model name.
    #[arg(long)]
    pub pipeline: String,
    /// Answers, one JSON object a line.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Failed lines, one JSON object a line [default: among the answers].
    #[arg(long)]
    pub errors: Option<PathBuf>,
    /// Go on where an earlier run of the same job stopped.
    #[arg(long)]
    pub resume: bool,
    /// Requests in flight.
    #[arg(long, default_value_t = 8)]
    pub concurrency: usize,
    /// An option for every line. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Where models come from.
    #[command(flatten)]
    pub local: LocalArgs,
}

/// What to do with pipelines.
#[derive(Debug, Subcommand)]
pub enum PipelinesCommand {
    /// Validate definitions; each fault has its file, line and column.
    Check {
        /// Files or folders.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Print the JSON Schema of definitions, for editors.
    Schema,
}

/// What to do with models.
#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// What a checkpoint holds and needs.
    Show {
        /// Folder or GGUF file; without one, the embedded model.
        path: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Decode steps.
    Decode {
        /// Sequences at once.
        #[arg(long, value_delimiter = ',', default_value = "1,8")]
        batch: Vec<usize>,
        /// Prompt tokens of each sequence.
        #[arg(long, default_value_t = 16)]
        context: usize,
        /// Steps measured.
        #[arg(long, default_value_t = 128)]
        steps: usize,
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// Prompts into the cache.
    Prefill {
        /// Prompt lengths.
        #[arg(long, value_delimiter = ',', default_value = "128,512")]
        tokens: Vec<usize>,
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// Pictures and clips through the model's towers.
    Encode {
        /// Media at once.
        #[arg(long, value_delimiter = ',', default_value = "1,4")]
        batch: Vec<usize>,
        /// Pixels on a picture's side.
        #[arg(long, default_value_t = 448)]
        side: usize,
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// Files to patches and log-mel frames.
    Media {
        /// Picture and sound files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// Sound files to text.
    Transcribe {
        /// Sound files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// What the GPU can do: copy bandwidth and product rate.
    Device {
        /// Output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// Running answers beside pictures, under every policy.
    Mixed {
        /// Pixels on a picture's side.
        #[arg(long, default_value_t = 336)]
        side: usize,
        /// Answers that run beside waiting pictures.
        #[arg(long, default_value_t = 4)]
        streams: usize,
        /// Pictures that wait.
        #[arg(long, default_value_t = 8)]
        pictures: usize,
        /// Seconds of arrivals by the clock.
        #[arg(long, default_value_t = 20.0)]
        seconds: f64,
        /// Simulate instead of measuring.
        #[command(flatten)]
        simulation: SimulationArgs,
        /// Model and output; without a model, random weights of SmolVLM's sizes.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// A copying task and a free one, with guesses of the next tokens and without.
    Speculation {
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
    /// From nothing to ready and to the first token.
    Start {
        /// Model and output.
        #[command(flatten)]
        args: BenchArgs,
    },
}

/// Words of a simulation.
#[derive(Debug, Args)]
pub struct SimulationArgs {
    /// Play a trace on a simulated clock against a table of costs, with no model and no device.
    #[arg(long)]
    pub simulate: bool,
    /// Table of costs [default: the one measured on an H200].
    #[arg(long, requires = "simulate")]
    pub table: Option<PathBuf>,
    /// Recorded trace, one JSON object a line [default: two minutes of pictures, sound and text].
    #[arg(long, requires = "simulate")]
    pub trace: Option<PathBuf>,
    /// Draw requests at this many a second (for --seconds) instead of replaying a trace.
    #[arg(long, requires = "simulate", conflicts_with = "trace")]
    pub rate: Option<f64>,
    /// Drawn requests that come at once; 1 is a Poisson process.
    #[arg(long, requires = "rate", default_value_t = 1)]
    pub burst: usize,
    /// Inter-token target as a multiple of the decode step alone.
    #[arg(long, requires = "simulate", default_value_t = 1.25)]
    pub target: f64,
    /// Folder for a timeline of each policy's first launches, as SVG.
    #[arg(long, requires = "simulate")]
    pub svg: Option<PathBuf>,
}

/// Words that every benchmark takes.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Model: a folder, a GGUF file or name=path [default: the embedded model].
    #[arg(long)]
    pub model: Option<String>,
    /// Device: the GPU where there is one (auto), cpu, or cuda [default: auto].
    #[arg(long)]
    pub device: Option<WrittenChoice>,
    /// CPU threads [default: all cores].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Measured repeats, after one warm-up.
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Print JSON lines.
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// The model as other commands take it.
    pub(crate) fn local(&self) -> LocalArgs {
        LocalArgs {
            model: self.model.iter().cloned().collect(),
            device: self.device,
            threads: self.threads,
            ..LocalArgs::default()
        }
    }
}

impl BenchCommand {
    /// The words that every benchmark takes.
    pub(crate) fn args(&self) -> &BenchArgs {
        match self {
            Self::Decode { args, .. }
            | Self::Prefill { args, .. }
            | Self::Encode { args, .. }
            | Self::Media { args, .. }
            | Self::Transcribe { args, .. }
            | Self::Device { args }
            | Self::Mixed { args, .. }
            | Self::Speculation { args }
            | Self::Start { args } => args,
        }
    }
}

/// Words of `weft doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Configuration file to check as well.
    #[arg(long)]
    pub config: Option<PathBuf>,
}
