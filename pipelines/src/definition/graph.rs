//! A definition as resolved: every reference found, every type checked, no options left open.

use super::template::Template;
use crate::request::Options;
use crate::summary::Arity;

/// A definition that passed every check which needs no models.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// Name by which the pipeline is asked for.
    pub name: String,
    /// What it does.
    pub description: String,
    /// File it was read from; `built-in` for those that every model has.
    pub source: String,
    /// What a request brings.
    pub inputs: Inputs,
    /// Stages, each after those it uses.
    pub stages: Vec<Stage>,
    /// Place of the output stage in `stages`.
    pub output: usize,
}

/// What a request brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inputs {
    /// Pictures.
    pub images: Arity,
    /// Clips.
    pub audios: Arity,
    /// The question.
    pub prompt: Arity,
    /// Whether a conversation may stand in for all of these.
    pub conversation: bool,
}

/// A stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// Name.
    pub id: String,
    /// What it does.
    pub kind: StageKind,
}

/// What a stage does. Stages refer to others by their place in [`Definition::stages`].
#[derive(Debug, Clone, PartialEq)]
pub enum StageKind {
    /// Prepares and encodes the request's pictures for every model that takes them.
    Image,
    /// Prepares and encodes the request's clips for every model that takes them.
    Audio,
    /// Writes down the speech of the request's clip.
    Transcribe {
        /// Model.
        model: ModelRef,
        /// Options.
        options: Box<Options>,
    },
    /// Answers.
    Generate(Box<GenerateStage>),
    /// Fills in a template.
    Text {
        /// The text.
        template: Template,
        /// Stages whose output it uses.
        uses: Vec<usize>,
    },
}

/// A stage that answers.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateStage {
    /// Model.
    pub model: ModelRef,
    /// Media before the prompt.
    pub media: Vec<usize>,
    /// The question.
    pub prompt: Template,
    /// Instructions.
    pub system: Option<Template>,
    /// Stages whose output the templates use.
    pub uses: Vec<usize>,
    /// Whether a request's conversation stands in for media, prompt and instructions.
    pub conversation: bool,
    /// Options.
    pub options: Options,
}

/// A model that a definition asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRef {
    /// Names or paths in order of preference.
    pub candidates: Vec<String>,
    /// How to get it.
    pub hint: Option<String>,
    /// File, line and column of the reference, for messages.
    pub place: String,
}

/// Whether a model reference is a path rather than a name.
pub(crate) fn is_path(reference: &str) -> bool {
    reference.contains('/') || reference.contains('\\') || reference.ends_with(".gguf")
}

impl Stage {
    /// Places of the stages that this one waits for.
    pub fn needs(&self) -> impl Iterator<Item = usize> {
        let (media, uses): (&[usize], &[usize]) = match &self.kind {
            StageKind::Image | StageKind::Audio | StageKind::Transcribe { .. } => (&[], &[]),
            StageKind::Generate(generate) => (&generate.media, &generate.uses),
            StageKind::Text { uses, .. } => (&[], uses),
        };
        media.iter().chain(uses).copied()
    }

    /// The model it runs.
    pub fn model(&self) -> Option<&ModelRef> {
        match &self.kind {
            StageKind::Transcribe { model, .. } => Some(model),
            StageKind::Generate(generate) => Some(&generate.model),
            StageKind::Image | StageKind::Audio | StageKind::Text { .. } => None,
        }
    }

    /// The kind's name in YAML.
    pub const fn kind_name(&self) -> &'static str {
        match self.kind {
            StageKind::Image => "image",
            StageKind::Audio => "audio",
            StageKind::Transcribe { .. } => "transcribe",
            StageKind::Generate(_) => "generate",
            StageKind::Text { .. } => "text",
        }
    }
}
