//! The pipelines there are: read from files and built in, each with its models found or the reason why not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_stages::ModelCard;

use crate::config::{ModelEntry, ModelSource};
use crate::definition::{
    self, Definition, Diagnostic, GenerateStage, Inputs, ModelRef, Stage, StageKind, Template, is_path,
};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Options, Target};
use crate::summary::{Arity, PipelineSummary};

/// A pipeline whose models are found.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) definition: Definition,
    /// Name of the model of every stage, by the stage's place.
    pub(crate) models: Vec<Option<String>>,
}

/// A pipeline in the catalogue.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    definition: Definition,
    bound: std::result::Result<Arc<Bound>, String>,
}

/// All pipelines by name, and the built-in one of every model.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    named: BTreeMap<String, Entry>,
    by_model: BTreeMap<String, Entry>,
}

/// A definition with the folder that its paths are seen from.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) definition: Definition,
    pub(crate) folder: PathBuf,
}

/// Reads all definitions of folders and files.
pub(crate) fn read(paths: &[PathBuf]) -> std::result::Result<Vec<Read>, Vec<Diagnostic>> {
    let (mut read, mut faults) = (Vec::<Read>::new(), Vec::new());
    for path in paths {
        for file in files(path).map_err(|fault| vec![fault])? {
            match read_file(&file) {
                Ok(definition) => {
                    let first = read.iter().find(|first| first.definition.name == definition.name);
                    if let Some(first) = first {
                        let text = format!("the name `{}` is taken by {}", definition.name, first.definition.source);
                        faults.push(fault_of(&file, text));
                        continue;
                    }
                    let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
                    read.push(Read { definition, folder });
                }
                Err(found) => faults.extend(found),
            }
        }
    }
    if faults.is_empty() { Ok(read) } else { Err(faults) }
}

/// The definitions under a path, in the order of their names.
pub(crate) fn files(path: &Path) -> std::result::Result<Vec<PathBuf>, Diagnostic> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let folder =
        std::fs::read_dir(path).map_err(|error| fault_of(path, format!("the folder cannot be read: {error}")))?;
    let yaml = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let mut files: Vec<PathBuf> = folder.filter_map(|entry| Some(entry.ok()?.path())).filter(yaml).collect();
    files.sort();
    Ok(files)
}

/// Reads one definition.
pub(crate) fn read_file(file: &Path) -> std::result::Result<Definition, Vec<Diagnostic>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| vec![fault_of(file, format!("the file cannot be read: {error}"))])?;
    definition::parse_all(&file.display().to_string(), &text)
}

fn fault_of(file: &Path, message: String) -> Diagnostic {
    Diagnostic { file: file.display().to_string(), line: 1, column: 1, message, remedy: None }
}

impl Catalog {
    /// Finds the models of all pipelines, and gives every model its own. `entries` are the models as configured.
    pub(crate) fn new(read: Vec<Read>, cards: &[Arc<ModelCard>], entries: &[ModelEntry]) -> Self {
        let named = read.into_iter().map(|Read { definition, folder }| {
            let entry = bind(definition, |model| find(model, &folder, cards, entries), cards);
            (entry.definition.name.clone(), entry)
        });
        let by_model = cards.iter().map(|card| {
            let entry = bind(built_in(card), |_| Some(card.name.clone()), cards);
            (card.name.clone(), entry)
        });
        Self { named: named.collect(), by_model: by_model.collect() }
    }

    /// The pipeline that answers, or `NotFound` with the reason.
    pub(crate) fn find(&self, target: &Target) -> Result<&Arc<Bound>> {
        let (entries, name, what) = match target {
            Target::Pipeline(name) => (&self.named, name, "pipeline"),
            Target::Model(name) => (&self.by_model, name, "model"),
        };
        let Some(entry) = entries.get(name) else {
            let names: Vec<&str> = entries.keys().map(String::as_str).collect();
            let there = match (names.is_empty(), target) {
                (false, _) => format!("there are: {}", names.join(", ")),
                (true, Target::Pipeline(_)) => "none is loaded; give a pipeline file or a folder of them".to_owned(),
                (true, Target::Model(_)) => "none is loaded".to_owned(),
            };
            return Err(Error::new(ErrorKind::NotFound, format!("no {what} `{name}`; {there}")).about(what));
        };
        entry.bound.as_ref().map_err(|reason| {
            Error::new(ErrorKind::NotFound, format!("{what} `{name}` is not available: {reason}")).about(what)
        })
    }

    /// All pipelines, those from files first.
    pub(crate) fn summaries(&self, placeholder: impl Fn(&str) -> bool) -> Vec<PipelineSummary> {
        self.named.values().chain(self.by_model.values()).map(|entry| entry.summary(&placeholder)).collect()
    }
}

impl Entry {
    fn summary(&self, placeholder: impl Fn(&str) -> bool) -> PipelineSummary {
        let definition = &self.definition;
        let mut models: Vec<String> = match &self.bound {
            Ok(bound) => bound.models.iter().flatten().cloned().collect(),
            Err(_) => {
                definition.stages.iter().filter_map(Stage::model).flat_map(|model| model.candidates.clone()).collect()
            }
        };
        models.sort();
        models.dedup();
        PipelineSummary {
            name: definition.name.clone(),
            description: definition.description.clone(),
            images: definition.inputs.images,
            audios: definition.inputs.audios,
            prompt: definition.inputs.prompt,
            output: definition.stages[definition.output].id.clone(),
            placeholder: self.bound.is_ok() && models.iter().any(|model| placeholder(model)),
            models,
            source: definition.source.clone(),
            unavailable: self.bound.as_ref().err().cloned(),
        }
    }
}

fn bind(definition: Definition, find: impl Fn(&ModelRef) -> Option<String>, cards: &[Arc<ModelCard>]) -> Entry {
    let bound = definition
        .stages
        .iter()
        .map(|stage| match stage.model() {
            None => Ok(None),
            Some(model) => {
                let name = find(model).ok_or_else(|| missing(model))?;
                fits(&definition, stage, &name, cards)?;
                Ok(Some(name))
            }
        })
        .collect::<std::result::Result<Vec<_>, String>>()
        .map(|models| Arc::new(Bound { definition: definition.clone(), models }));
    Entry { definition, bound }
}

/// Whether a stage's model can do what the stage asks.
fn fits(
    definition: &Definition,
    stage: &Stage,
    name: &str,
    cards: &[Arc<ModelCard>],
) -> std::result::Result<(), String> {
    let Some(card) = cards.iter().find(|card| card.name == name) else { return Ok(()) };
    let transcribes = card.transcription.is_some();
    let place = stage.model().map(|model| format!("{}: ", model.place)).unwrap_or_default();
    let refuse = |text: String| Err(format!("{place}{text}"));
    match &stage.kind {
        StageKind::Transcribe { .. } if !transcribes => {
            refuse(format!("stage `{}` transcribes, model `{name}` does not", stage.id))
        }
        StageKind::Generate(_) if transcribes => {
            refuse(format!("stage `{}` answers prompts, model `{name}` transcribes only", stage.id))
        }
        StageKind::Generate(generate) => {
            for &medium in &generate.media {
                let (blind, what) = match definition.stages[medium].kind {
                    StageKind::Image => (card.image.is_none(), "pictures"),
                    _ => (card.audio.is_none(), "clips"),
                };
                if blind {
                    return refuse(format!("stage `{}` brings {what}, model `{name}` does not take them", stage.id));
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn missing(model: &ModelRef) -> String {
    let names = model.candidates.join("`, `");
    let hint = model
        .hint
        .clone()
        .unwrap_or_else(|| "start with `--model <path or id>`, or fetch it with `weft models pull`".to_owned());
    format!("{}: model `{names}` is not loaded; to get it: {hint}", model.place)
}

/// The loaded model that a reference means: by its name, or by the path it was loaded from.
fn find(model: &ModelRef, folder: &Path, cards: &[Arc<ModelCard>], entries: &[ModelEntry]) -> Option<String> {
    model.candidates.iter().find_map(|candidate| {
        let by_name = cards.iter().find(|card| card.name == *candidate).map(|card| card.name.clone());
        by_name.or_else(|| {
            let wanted = folder.join(candidate).canonicalize().ok().filter(|_| is_path(candidate))?;
            entries.iter().find_map(|entry| match &entry.source {
                ModelSource::Path(path) if path.canonicalize().is_ok_and(|path| path == wanted) => {
                    Some(entry.name.clone())
                }
                _ => None,
            })
        })
    })
}

/// The pipeline that every model has: transcribe for Whisper, else a conversation with what the model can take.
fn built_in(card: &ModelCard) -> Definition {
    let model = ModelRef { candidates: vec![card.name.clone()], hint: None, place: card.name.clone() };
    let stage = |id: &str, kind| Stage { id: id.to_owned(), kind };
    let (mut inputs, mut stages) = (Inputs::default(), Vec::new());
    if card.transcription.is_some() {
        inputs.audios = Arity::Required;
        stages.push(stage("transcript", StageKind::Transcribe { model, options: Box::default() }));
    } else {
        inputs.prompt = Arity::Optional;
        inputs.conversation = true;
        if card.image.is_some() {
            inputs.images = Arity::Many;
            stages.push(stage("picture", StageKind::Image));
        }
        if card.audio.is_some() {
            inputs.audios = Arity::Many;
            stages.push(stage("clip", StageKind::Audio));
        }
        let answer = GenerateStage {
            model,
            media: (0..stages.len()).collect(),
            prompt: Template::built_in("{{ inputs.prompt }}"),
            system: None,
            uses: Vec::new(),
            conversation: true,
            options: Options::default(),
        };
        stages.push(stage("answer", StageKind::Generate(Box::new(answer))));
    }
    let what = if card.transcription.is_some() { "Writes down speech with" } else { "Talks with" };
    let (description, output) = (format!("{what} {}.", card.name), stages.len() - 1);
    Definition { name: card.name.clone(), description, source: "built-in".to_owned(), inputs, stages, output }
}
