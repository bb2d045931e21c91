//! A definition as written: YAML into fields that remember where they stood.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::request::Options;
use crate::summary::Arity;

/// A Weft pipeline, version 1.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pipeline")]
pub(super) struct RawPipeline {
    /// Version of this format: 1.
    #[schemars(with = "u64", extend("const" = 1))]
    #[expect(dead_code, reason = "read and checked before everything else; here so that it is a known field")]
    version: Spanned<u64>,
    /// Name by which the pipeline is asked for; the file's name when left out.
    #[schemars(with = "Option<String>", regex(pattern = "^[a-z0-9][a-z0-9_-]*$"))]
    pub(super) name: Option<Spanned<String>>,
    /// What it does, one line.
    #[serde(default)]
    pub(super) description: String,
    /// What a request brings.
    #[serde(default)]
    pub(super) inputs: RawInputs,
    /// Models by the names that stages use.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, ModelUse>")]
    pub(super) models: BTreeMap<String, Spanned<ModelUse>>,
    /// Options of all stages that answer or transcribe, unless a stage says otherwise.
    #[schemars(with = "Option<Options>")]
    pub(super) options: Option<Spanned<Options>>,
    /// The stages, in any order; each runs as soon as what it uses is ready.
    #[schemars(with = "Vec<RawStage>", length(min = 1))]
    pub(super) stages: Vec<Spanned<RawStage>>,
    /// Stage whose text is the pipeline's; may be left out when only one stage is not used by another.
    #[schemars(with = "Option<String>")]
    pub(super) output: Option<Spanned<String>>,
}

/// What a request brings: `none`, `optional` (at most one), `required` (exactly one) or `many` (any number).
#[derive(Debug, Default, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Inputs")]
pub(super) struct RawInputs {
    /// Pictures.
    pub(super) images: Arity,
    /// Clips.
    pub(super) audios: Arity,
    /// The question.
    pub(super) prompt: Arity,
}

/// Kinds of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Kind")]
pub(super) enum RawKind {
    /// Prepares and encodes the request's pictures.
    Image,
    /// Prepares and encodes the request's clips.
    Audio,
    /// Writes down the speech of the request's clip.
    Transcribe,
    /// Answers a prompt, with media.
    Generate,
    /// Fills in a template.
    Text,
}

/// A stage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Stage")]
pub(super) struct RawStage {
    /// Name by which other stages use it: letters, digits and underscores.
    #[schemars(with = "String", regex(pattern = "^[a-z][a-z0-9_]*$"))]
    pub(super) id: Spanned<String>,
    /// What it does.
    #[schemars(with = "RawKind")]
    pub(super) kind: Spanned<RawKind>,
    /// `generate`, `transcribe`: one of `models`.
    #[schemars(with = "Option<String>")]
    pub(super) model: Option<Spanned<String>>,
    /// `image`, `audio`, `transcribe`: the input it works on (`inputs.images`, `inputs.audios`); the natural one when left out.
    #[schemars(with = "Option<String>")]
    pub(super) from: Option<Spanned<String>>,
    /// `generate`: image and audio stages whose media stand before the prompt, in order.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) media: Option<Spanned<Vec<Spanned<String>>>>,
    /// `generate`: the prompt, a Jinja template over `inputs.prompt` and `<stage>.output`.
    #[schemars(with = "Option<String>")]
    pub(super) prompt: Option<Spanned<String>>,
    /// `generate`: instructions, a template like `prompt`.
    #[schemars(with = "Option<String>")]
    pub(super) system: Option<Spanned<String>>,
    /// `generate`: when the request brings a conversation, it stands in for `media`, `prompt` and `system`.
    #[schemars(with = "Option<bool>")]
    pub(super) conversation: Option<Spanned<bool>>,
    /// `text`: the text, a template like `prompt`.
    #[schemars(with = "Option<String>")]
    pub(super) template: Option<Spanned<String>>,
    /// `generate`, `transcribe`: options of this stage.
    #[schemars(with = "Option<Options>")]
    pub(super) options: Option<Spanned<Options>>,
}

/// Which model: a name or path, several in order of preference, or `use` with a hint on how to get it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub(super) enum ModelUse {
    /// One model.
    One(String),
    /// The first of these that is loaded.
    First(Vec<String>),
    /// With a hint.
    Hinted(HintedUse),
}

/// A model with the way to get it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HintedUse {
    /// Models in order of preference: names as served, or paths of checkpoints relative to this file.
    #[serde(rename = "use")]
    pub(super) candidates: Vec<String>,
    /// How to get it, shown when none is there.
    pub(super) get: Option<String>,
}

impl<'de> Deserialize<'de> for ModelUse {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = ModelUse;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model's name, a list of names, or `use:` with `get:`")
            }

            fn visit_str<E>(self, name: &str) -> Result<ModelUse, E> {
                Ok(ModelUse::One(name.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<ModelUse, A::Error> {
                let mut list = Vec::new();
                while let Some(name) = names.next_element()? {
                    list.push(name);
                }
                Ok(ModelUse::First(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelUse, A::Error> {
                HintedUse::deserialize(MapAccessDeserializer::new(map)).map(ModelUse::Hinted)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl ModelUse {
    pub(super) fn candidates(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::First(names) => names,
            Self::Hinted(hinted) => &hinted.candidates,
        }
    }

    pub(super) fn hint(&self) -> Option<&str> {
        if let Self::Hinted(hinted) = self { hinted.get.as_deref() } else { None }
    }
}
