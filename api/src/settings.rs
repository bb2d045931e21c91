//! Configuration as written (`weft.yaml` and flags), then as resolved ([`RuntimeConfig`] and [`ServeSettings`]).
//!
//! Unknown keys are refused with line and column. Flags win over the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use weft_pipelines::config::{
    Admission, DeviceChoice, Limits, ModelEntry, ModelSource, Objectives, Policy, RuntimeConfig, Speculation,
};
use weft_pipelines::{Error, ErrorKind, Result};

use crate::embedded;

/// Default address: this machine only.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// `weft.yaml`, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Written {
    /// Address to listen on.
    pub listen: Option<String>,
    /// Models to load.
    pub models: Vec<WrittenModel>,
    /// Folders of pipeline definitions.
    pub pipelines: Vec<PathBuf>,
    /// Device.
    pub device: WrittenDevice,
    /// `ngram` (default) or `off`.
    pub speculation: Option<WrittenSpeculation>,
    /// Latency objectives.
    pub slo: WrittenObjectives,
    /// Memory.
    pub memory: WrittenMemory,
    /// Limits of one request.
    pub limits: WrittenLimits,
    /// Limits of all requests together.
    pub admission: WrittenAdmission,
    /// Who may call.
    pub auth: WrittenAuth,
}

/// A model, as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenModel {
    /// Name under which it is served; the folder's name when absent.
    pub name: Option<String>,
    /// Folder in the Hugging Face layout, or a GGUF file.
    pub path: PathBuf,
    /// `stored` (default) or `float32`.
    #[serde(default)]
    pub precision: WrittenPrecision,
}

/// Storage of weights, as written.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WrittenPrecision {
    /// As in the checkpoint.
    #[default]
    Stored,
    /// Dequantised.
    Float32,
}

/// Device, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenDevice {
    /// `auto` (default), `cpu` or `cuda`.
    pub kind: Option<WrittenChoice>,
    /// CPU threads.
    pub threads: Option<usize>,
    /// `auto` (default), `slice`, `partition` or `inline`.
    pub policy: Option<WrittenPolicy>,
    /// Most sequences in a decode step.
    pub max_batch: Option<usize>,
    /// Most requests waiting.
    pub max_waiting: Option<usize>,
}

/// Device, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WrittenChoice {
    /// The GPU where there is one.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU.
    Cuda,
}

impl From<WrittenChoice> for DeviceChoice {
    fn from(written: WrittenChoice) -> Self {
        match written {
            WrittenChoice::Auto => Self::Auto,
            WrittenChoice::Cpu => Self::Cpu,
            WrittenChoice::Cuda => Self::Cuda,
        }
    }
}

/// Device policy, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WrittenPolicy {
    /// Slices, or a partition where that gives encoders more.
    Auto,
    /// Bounded slices between decode steps.
    Slice,
    /// Both at once on parts of the device, where it can be parted.
    Partition,
    /// Whole encoders and prompts before the next decode step.
    Inline,
}

/// Guesses of the tokens to come, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WrittenSpeculation {
    /// One token a step.
    Off,
    /// What followed the same tokens before.
    Ngram,
}

/// Latency objectives, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenObjectives {
    /// Milliseconds between two tokens of a running answer.
    pub inter_token_ms: Option<f32>,
    /// Milliseconds to the first token of an interactive request.
    pub first_token_ms: Option<f32>,
}

impl WrittenObjectives {
    fn resolve(&self, defaults: Objectives) -> Result<Objectives> {
        for (name, value) in [("inter_token_ms", self.inter_token_ms), ("first_token_ms", self.first_token_ms)] {
            if value.is_some_and(|ms| !(ms > 0.0 && ms <= 3.6e6)) {
                let detail = format!("slo.{name} must be over 0 and at most 3600000 (an hour)");
                return Err(Error::new(ErrorKind::Malformed, detail).about(format!("slo.{name}")));
            }
        }
        Ok(Objectives {
            inter_token_ms: self.inter_token_ms.or(defaults.inter_token_ms),
            first_token_ms: self.first_token_ms.unwrap_or(defaults.first_token_ms),
        })
    }
}

/// Memory, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenMemory {
    /// MiB of KV pages per model.
    pub kv_mib: Option<usize>,
    /// MiB of encoder outputs kept.
    pub encoder_cache_mib: Option<usize>,
}

/// Limits, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenLimits {
    /// MiB of one medium.
    pub media_mib: Option<usize>,
    /// Megapixels of one picture.
    pub image_megapixels: Option<f64>,
    /// Seconds of one clip.
    pub audio_seconds: Option<f64>,
    /// Media in one request.
    pub media_count: Option<usize>,
    /// KiB of text in one request.
    pub prompt_kib: Option<usize>,
}

/// Limits of all requests together, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenAdmission {
    /// Longest predicted wait of an interactive request, in milliseconds.
    pub wait_ms: Option<f32>,
    /// Requests.
    pub requests: Option<usize>,
    /// MiB of bodies and media.
    pub mib: Option<usize>,
    /// Megapixels of pictures.
    pub megapixels: Option<f64>,
    /// Seconds of clips.
    pub audio_seconds: Option<f64>,
    /// Tokens of prompts and answers.
    pub tokens: Option<usize>,
}

impl WrittenAdmission {
    fn resolve(&self, defaults: Admission) -> Result<Admission> {
        if self.wait_ms.is_some_and(|ms| !(ms > 0.0 && ms <= 3.6e6)) {
            let detail = "admission.wait_ms must be over 0 and at most 3600000 (an hour)";
            return Err(Error::new(ErrorKind::Malformed, detail).about("admission.wait_ms"));
        }
        Ok(Admission {
            requests: self.requests.unwrap_or(defaults.requests).max(1),
            bytes: self.mib.map_or(defaults.bytes, |mib| mib << 20),
            pixels: self.megapixels.map_or(defaults.pixels, |m| (m * 1e6) as u64),
            seconds: self.audio_seconds.unwrap_or(defaults.seconds),
            tokens: self.tokens.unwrap_or(defaults.tokens),
            wait: self.wait_ms.map(|ms| Duration::from_secs_f32(ms / 1e3)).or(defaults.wait),
        })
    }
}

/// Who may call, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenAuth {
    /// Bearer keys; when there are any, every `/v1` route asks for one.
    pub api_keys: Vec<String>,
}

/// File in which a server keeps learned costs: in the user's cache folder, if there is one.
pub fn costs_file() -> Option<PathBuf> {
    let folder = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("weft").join("costs.json"))
}

/// What the HTTP edge needs, resolved.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Limits of one request.
    pub limits: Limits,
    /// Bearer keys; empty lets everyone in.
    pub api_keys: Vec<String>,
}

/// Flags that override the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--model`, each a path or `name=path`.
    pub models: Vec<String>,
    /// `--pipelines`.
    pub pipelines: Vec<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--device`.
    pub device: Option<WrittenChoice>,
    /// `--threads`.
    pub threads: Option<usize>,
}

impl Written {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(ErrorKind::NotFound, format!("cannot read {}: {e}", path.display())))?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses configuration text; `name` stands for the file in errors.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|e| Error::new(ErrorKind::Malformed, format!("{name}: {e}")))
    }

    /// Applies flags and defaults.
    pub fn resolve(self, flags: Overrides) -> Result<(RuntimeConfig, ServeSettings)> {
        let defaults = RuntimeConfig::default();
        let limits = self.limits.resolve(defaults.limits);
        let mut models = Vec::new();
        for model in &self.models {
            let name = model.name.clone().unwrap_or_else(|| name_of(&model.path));
            let float32 = matches!(model.precision, WrittenPrecision::Float32);
            models.push(path_entry(name, model.path.clone(), float32));
        }
        for flag in &flags.models {
            models.push(match flag.split_once('=') {
                Some((name, path)) => path_entry(name.to_owned(), path.into(), false),
                None => path_entry(name_of(Path::new(flag)), flag.into(), false),
            });
        }
        if models.is_empty() {
            models.push(embedded::model());
        }
        let mut seen = std::collections::HashSet::new();
        if let Some(twice) = models.iter().find(|m| !seen.insert(m.name.clone())) {
            let detail = format!("two models are named {:?}; give one another name (`--model name=path`)", twice.name);
            return Err(Error::new(ErrorKind::Malformed, detail).about("models"));
        }
        let listen = flags.listen.or(self.listen).unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let listen = listen.parse().map_err(|_| {
            let detail = format!("{listen:?} is not an address; write it as 127.0.0.1:8080 or [::1]:8080");
            Error::new(ErrorKind::Malformed, detail).about("listen")
        })?;
        let mut pipelines = self.pipelines;
        pipelines.extend(flags.pipelines);
        let mib = |written: Option<usize>, default: usize| written.map_or(default, |mib| mib << 20);
        let runtime = RuntimeConfig {
            models,
            pipelines,
            device: flags.device.or(self.device.kind).map_or(defaults.device, DeviceChoice::from),
            threads: flags.threads.or(self.device.threads).unwrap_or(defaults.threads),
            kv_bytes: mib(self.memory.kv_mib, defaults.kv_bytes),
            encoder_cache_bytes: mib(self.memory.encoder_cache_mib, defaults.encoder_cache_bytes),
            max_batch: self.device.max_batch.unwrap_or(defaults.max_batch),
            max_waiting: self.device.max_waiting.unwrap_or(defaults.max_waiting),
            policy: match self.device.policy {
                None => defaults.policy,
                Some(WrittenPolicy::Auto) => Policy::Auto,
                Some(WrittenPolicy::Slice) => Policy::Slice,
                Some(WrittenPolicy::Partition) => Policy::Partition,
                Some(WrittenPolicy::Inline) => Policy::Inline,
            },
            speculation: match self.speculation {
                None | Some(WrittenSpeculation::Ngram) => Speculation::Ngram,
                Some(WrittenSpeculation::Off) => Speculation::Off,
            },
            slo: self.slo.resolve(defaults.slo)?,
            costs: None,
            limits,
            admission: self.admission.resolve(defaults.admission)?,
        };
        Ok((runtime, ServeSettings { listen, limits, api_keys: self.auth.api_keys }))
    }
}

impl WrittenLimits {
    fn resolve(&self, defaults: Limits) -> Limits {
        Limits {
            media_bytes: self.media_mib.map_or(defaults.media_bytes, |mib| mib << 20),
            image_pixels: self.image_megapixels.map_or(defaults.image_pixels, |m| (m * 1e6) as u64),
            audio_seconds: self.audio_seconds.unwrap_or(defaults.audio_seconds),
            media_count: self.media_count.unwrap_or(defaults.media_count),
            prompt_bytes: self.prompt_kib.map_or(defaults.prompt_bytes, |kib| kib << 10),
        }
    }
}

fn path_entry(name: String, path: PathBuf, float32: bool) -> ModelEntry {
    ModelEntry { name, source: ModelSource::Path(path), float32, placeholder: false }
}

/// `models/smollm2.gguf` is `smollm2`.
fn name_of(path: &Path) -> String {
    let stem = if path.extension().is_some_and(|e| e == "gguf") { path.file_stem() } else { path.file_name() };
    stem.map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_with_its_place() {
        let error = Written::parse("weft.yaml", "listen: 127.0.0.1:1\nmodles: []\n").expect_err("unknown key");
        assert_eq!(error.kind, ErrorKind::Malformed);
        assert!(error.message.contains("weft.yaml") && error.message.contains("modles"), "{}", error.message);
        assert!(error.message.contains('2'), "names the line: {}", error.message);
    }

    #[test]
    fn flags_win_over_the_file() {
        let written = Written::parse("weft.yaml", "listen: 127.0.0.1:1\ndevice: {threads: 3}\n").expect("parses");
        let flags = Overrides { listen: Some("127.0.0.1:2".into()), threads: Some(1), ..Overrides::default() };
        let (runtime, serve) = written.resolve(flags).expect("resolves");
        assert_eq!((serve.listen.port(), runtime.threads), (2, 1));
    }

    #[test]
    fn objectives_and_policy_are_read() {
        let text = "device: {policy: partition}\nslo: {inter_token_ms: 40, first_token_ms: 900}\n";
        let (runtime, _) =
            Written::parse("weft.yaml", text).expect("parses").resolve(Overrides::default()).expect("resolves");
        assert_eq!(runtime.policy, Policy::Partition);
        assert_eq!((runtime.slo.inter_token_ms, runtime.slo.first_token_ms), (Some(40.0), 900.0));
        assert_eq!(runtime.speculation, Speculation::Ngram);
        let off = Written::parse("weft.yaml", "speculation: off\n").expect("parses");
        let (runtime, _) = off.resolve(Overrides::default()).expect("resolves");
        assert_eq!(runtime.speculation, Speculation::Off);
        assert!(Written::parse("weft.yaml", "speculation: maybe\n").is_err());
        let zero = Written::parse("weft.yaml", "slo: {inter_token_ms: 0}\n").expect("parses");
        let error = zero.resolve(Overrides::default()).expect_err("no such target");
        assert!(error.message.contains("slo.inter_token_ms"), "{}", error.message);
    }

    #[test]
    fn without_a_model_the_embedded_one_is_served() {
        let (runtime, _) = Written::default().resolve(Overrides::default()).expect("resolves");
        assert!(matches!(runtime.models[0].source, ModelSource::Embedded(_)));
    }

    #[test]
    fn models_are_named_after_their_files() {
        let flags = Overrides { models: vec!["a/b.gguf".into(), "x=c/d".into()], ..Overrides::default() };
        let (runtime, _) = Written::default().resolve(flags).expect("resolves");
        let names: Vec<_> = runtime.models.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["b", "x"]);
    }

    #[test]
    fn two_models_of_one_name_are_refused() {
        let flags = Overrides { models: vec!["a/m".into(), "b/m".into()], ..Overrides::default() };
        assert!(Written::default().resolve(flags).is_err());
    }
}
