//! One stage, from as written to resolved: which fields its kind takes, what its references mean.

use serde_saphyr::Spanned;

use super::diagnostic::Diagnostic;
use super::graph::{GenerateStage, ModelRef, StageKind};
use super::order::Edges;
use super::raw::{ModelUse, RawKind, RawPipeline, RawStage};
use super::source::{Place, Source, name_remedy};
use super::template::{Reference, Template};
use crate::request::Options;
use crate::summary::Arity;

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Pictures,
    Clips,
    Text,
}

impl Type {
    pub(super) const fn of(kind: RawKind) -> Self {
        match kind {
            RawKind::Image => Self::Pictures,
            RawKind::Audio => Self::Clips,
            RawKind::Transcribe | RawKind::Generate | RawKind::Text => Self::Text,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Pictures => "pictures",
            Self::Clips => "clips",
            Self::Text => "text",
        }
    }
}

/// Everything a stage's references can mean.
pub(super) struct Scope<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) raw: &'a RawPipeline,
    /// Ids and types of all stages, in the order of the file.
    pub(super) stages: &'a [(String, Type)],
}

/// Inputs that stages really use.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Used {
    pub(super) images: bool,
    pub(super) audios: bool,
    pub(super) prompt: bool,
    pub(super) conversation: bool,
}

type Fault<T> = std::result::Result<T, Diagnostic>;

impl Scope<'_> {
    /// Resolves a stage; its references in `edges` are places in the file's order.
    pub(super) fn stage(&self, stage: &Spanned<RawStage>, edges: &mut Edges, used: &mut Used) -> Fault<StageKind> {
        let raw = &stage.value;
        self.check_fields(stage)?;
        match raw.kind.value {
            RawKind::Image => {
                self.from(raw, "inputs.images", stage)?;
                used.images = true;
                Ok(StageKind::Image)
            }
            RawKind::Audio => {
                self.from(raw, "inputs.audios", stage)?;
                used.audios = true;
                Ok(StageKind::Audio)
            }
            RawKind::Transcribe => {
                self.from(raw, "inputs.audios", stage)?;
                used.audios = true;
                if self.raw.inputs.audios == Arity::Many {
                    let fault = self.source.fault(Place::of(stage.referenced), "a transcribe stage takes one clip");
                    return Err(fault.remedy("say `audios: required` or `audios: optional`".to_owned()));
                }
                Ok(StageKind::Transcribe { model: self.model(stage)?, options: Box::new(self.options(raw)?) })
            }
            RawKind::Generate => self.generate(stage, edges, used),
            RawKind::Text => {
                let text = self.required(raw.template.as_ref(), "template", stage)?;
                let template = self.template(text, edges, used)?;
                Ok(StageKind::Text { template, uses: places(edges) })
            }
        }
    }

    fn generate(&self, stage: &Spanned<RawStage>, edges: &mut Edges, used: &mut Used) -> Fault<StageKind> {
        let raw = &stage.value;
        let model = self.model(stage)?;
        let mut media = Vec::new();
        for name in raw.media.iter().flat_map(|media| &media.value) {
            let place = Place::of(name.referenced);
            let (at, kind) = self.find(&name.value, place)?;
            if kind == Type::Text {
                let text = format!("`{}` makes {}, but `media` takes pictures and clips", name.value, kind.name());
                let fault = self.source.fault(place, text);
                return Err(fault.remedy(format!("use it in the prompt: `{{{{ {}.output }}}}`", name.value)));
            }
            if media.contains(&at) {
                return Err(self.source.fault(place, format!("`{}` stands in `media` twice", name.value)));
            }
            media.push(at);
            edges.push((at, place));
        }
        let conversation = raw.conversation.as_ref().is_some_and(|conversation| conversation.value);
        used.conversation |= conversation;
        let before = edges.len();
        let prompt = match &raw.prompt {
            Some(prompt) => self.template(prompt, edges, used)?,
            None if self.raw.inputs.prompt != Arity::None => {
                used.prompt = true;
                Template::built_in("{{ inputs.prompt }}")
            }
            None => return Err(self.missing("prompt", stage)),
        };
        let system = raw.system.as_ref().map(|system| self.template(system, edges, used)).transpose()?;
        let uses = places(&edges[before..]);
        let options = self.options(raw)?;
        Ok(StageKind::Generate(Box::new(GenerateStage { model, media, prompt, system, uses, conversation, options })))
    }

    /// Refuses fields that belong to other kinds: they would do nothing.
    fn check_fields(&self, stage: &Spanned<RawStage>) -> Fault<()> {
        let raw = &stage.value;
        let kind = raw.kind.value;
        let takes = |kinds: &[RawKind]| kinds.contains(&kind);
        let fields = [
            ("model", raw.model.is_some(), takes(&[RawKind::Generate, RawKind::Transcribe])),
            ("from", raw.from.is_some(), takes(&[RawKind::Image, RawKind::Audio, RawKind::Transcribe])),
            ("media", raw.media.is_some(), takes(&[RawKind::Generate])),
            ("prompt", raw.prompt.is_some(), takes(&[RawKind::Generate])),
            ("system", raw.system.is_some(), takes(&[RawKind::Generate])),
            ("conversation", raw.conversation.is_some(), takes(&[RawKind::Generate])),
            ("template", raw.template.is_some(), takes(&[RawKind::Text])),
            ("options", raw.options.is_some(), takes(&[RawKind::Generate, RawKind::Transcribe])),
        ];
        let Some((field, ..)) = fields.into_iter().find(|(_, there, taken)| *there && !taken) else { return Ok(()) };
        let place = self.source.find(Place::of(stage.referenced), field);
        let known = fields.iter().filter(|(_, _, taken)| *taken).map(|(field, ..)| *field);
        let known: Vec<&str> = ["id", "kind"].into_iter().chain(known).collect();
        let fault = self.source.fault(place, format!("a stage of kind `{}` has no field `{field}`", kind_name(kind)));
        Err(fault.remedy(format!("it has: {}", known.join(", "))))
    }

    fn from(&self, raw: &RawStage, natural: &str, stage: &Spanned<RawStage>) -> Fault<()> {
        let given = raw.from.as_ref();
        let place = given.map_or(Place::of(stage.referenced), |from| Place::of(from.referenced));
        let from = given.map_or(natural, |from| from.value.as_str());
        if from != natural {
            let kind = kind_name(raw.kind.value);
            let known = ["inputs.images", "inputs.audios", "inputs.prompt"];
            let text = if known.contains(&from) {
                format!("a stage of kind `{kind}` works on `{natural}`, not on `{from}`")
            } else {
                format!("there is no input `{from}`")
            };
            return Err(self.source.fault(place, text).remedy(format!("write `from: {natural}` or leave it out")));
        }
        let inputs = &self.raw.inputs;
        let (name, arity) =
            if natural == "inputs.images" { ("images", inputs.images) } else { ("audios", inputs.audios) };
        if arity == Arity::None {
            let fault = self.source.fault(
                place,
                format!("stage `{}` works on `{natural}`, which the pipeline does not take", raw.id.value),
            );
            return Err(fault.remedy(format!("add `{name}: optional`, `required` or `many` to `inputs`")));
        }
        Ok(())
    }

    fn model(&self, stage: &Spanned<RawStage>) -> Fault<ModelRef> {
        let name = self.required(stage.value.model.as_ref(), "model", stage)?;
        let place = Place::of(name.referenced);
        let Some(used) = self.raw.models.get(&name.value) else {
            let fault = self.source.fault(place, format!("`models` has no `{}`", name.value));
            let remedy = if self.raw.models.is_empty() {
                Some(format!("add `models:` with `{}: <name or path of a model>`", name.value))
            } else {
                name_remedy(&name.value, self.raw.models.keys().map(String::as_str))
            };
            return Err(fault.remedy(remedy));
        };
        Ok(self.model_ref(used, place))
    }

    fn model_ref(&self, used: &Spanned<ModelUse>, place: Place) -> ModelRef {
        ModelRef {
            candidates: used.value.candidates().to_vec(),
            hint: used.value.hint().map(str::to_owned),
            place: format!("{}:{}:{}", self.source.file, place.line, place.column),
        }
    }

    /// The stage's options over the pipeline's.
    fn options(&self, raw: &RawStage) -> Fault<Options> {
        let mut merged = Options::default();
        for options in [self.raw.options.as_ref(), raw.options.as_ref()].into_iter().flatten() {
            if let Err(error) = options.value.check() {
                let option =
                    error.param.as_deref().and_then(|param| param.strip_prefix("options.")).unwrap_or("options");
                let place = self.source.find(Place::of(options.referenced), option);
                return Err(self.source.fault(place, error.message));
            }
            merged = options.value.clone().over(&merged);
        }
        Ok(merged)
    }

    fn template(&self, text: &Spanned<String>, edges: &mut Edges, used: &mut Used) -> Fault<Template> {
        let place = Place::of(text.referenced);
        let (template, references) = Template::compile(&text.value).map_err(|(line, detail)| {
            self.source.fault(self.source.line_of_scalar(place, line), format!("the template is not valid: {detail}"))
        })?;
        for reference in references {
            self.reference(&reference, place, edges, used)?;
        }
        Ok(template)
    }

    fn reference(&self, reference: &Reference, text: Place, edges: &mut Edges, used: &mut Used) -> Fault<()> {
        let Reference { owner, field } = reference;
        let place = self.source.find(text, owner);
        if owner == "inputs" {
            return self.input(field.as_deref(), place, used);
        }
        let (at, kind) = self.find(owner, place)?;
        if kind != Type::Text {
            let fault =
                self.source.fault(place, format!("`{owner}` makes {}, which a template cannot hold", kind.name()));
            return Err(fault.remedy(format!("put it into `media: [{owner}]` of a generate stage")));
        }
        if field.as_deref() != Some("output") {
            let remedy = format!("write `{{{{ {owner}.output }}}}`");
            let text = match field {
                Some(field) => format!("a stage has an `output`, no `{field}`"),
                None => format!("`{owner}` is a stage, not its text"),
            };
            return Err(self.source.fault(place, text).remedy(remedy));
        }
        edges.push((at, place));
        Ok(())
    }

    fn input(&self, field: Option<&str>, place: Place, used: &mut Used) -> Fault<()> {
        let place = field.map_or(place, |field| self.source.find(place, field));
        match field {
            Some("prompt") if self.raw.inputs.prompt != Arity::None => {
                used.prompt = true;
                Ok(())
            }
            Some("prompt") => {
                let fault = self.source.fault(place, "the pipeline takes no prompt");
                Err(fault.remedy("add `prompt: required` or `prompt: optional` to `inputs`".to_owned()))
            }
            Some(media @ ("images" | "audios")) => {
                let kind = if media == "images" { Type::Pictures } else { Type::Clips };
                let fault = self
                    .source
                    .fault(place, format!("`inputs.{media}` are {}, which a template cannot hold", kind.name()));
                Err(fault.remedy("prepare them in a stage and name that in `media`".to_owned()))
            }
            Some(other) => {
                let fault = self.source.fault(place, format!("there is no input `{other}`"));
                Err(fault.remedy(name_remedy(other, ["prompt"].into_iter())))
            }
            None => {
                let fault = self.source.fault(place, "`inputs` is not a text");
                Err(fault.remedy("write `{{ inputs.prompt }}`".to_owned()))
            }
        }
    }

    pub(super) fn find(&self, id: &str, place: Place) -> Fault<(usize, Type)> {
        let found = self.stages.iter().position(|(known, _)| known == id);
        found.map(|at| (at, self.stages[at].1)).ok_or_else(|| {
            let fault = self.source.fault(place, format!("there is no stage `{id}`"));
            fault.remedy(name_remedy(id, self.stages.iter().map(|(id, _)| id.as_str())))
        })
    }

    fn required<'v>(
        &self,
        value: Option<&'v Spanned<String>>,
        field: &str,
        stage: &Spanned<RawStage>,
    ) -> Fault<&'v Spanned<String>> {
        value.ok_or_else(|| self.missing(field, stage))
    }

    fn missing(&self, field: &str, stage: &Spanned<RawStage>) -> Diagnostic {
        let raw = &stage.value;
        let text = format!("stage `{}` of kind `{}` needs `{field}`", raw.id.value, kind_name(raw.kind.value));
        self.source.fault(Place::of(stage.referenced), text)
    }
}

fn places(edges: &[(usize, Place)]) -> Vec<usize> {
    let mut places: Vec<usize> = edges.iter().map(|(at, _)| *at).collect();
    places.sort_unstable();
    places.dedup();
    places
}

const fn kind_name(kind: RawKind) -> &'static str {
    match kind {
        RawKind::Image => "image",
        RawKind::Audio => "audio",
        RawKind::Transcribe => "transcribe",
        RawKind::Generate => "generate",
        RawKind::Text => "text",
    }
}
