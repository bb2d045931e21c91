//! Templates of prompts and texts: Jinja over the request's prompt and the outputs of other stages.

use std::collections::BTreeMap;

use minijinja::{Environment, UndefinedBehavior, Value, context};

use crate::error::{Error, ErrorKind, Result};

/// Steps that a template may take.
const FUEL: u64 = 1_000_000;

/// A value that a template uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    /// `inputs` or a stage's id.
    pub(super) owner: String,
    /// What of it; `None` when it stands alone.
    pub(super) field: Option<String>,
}

/// A template whose syntax is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    source: String,
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment
}

impl Template {
    /// Compiles a template and lists what it uses; otherwise the line and what is wrong with it.
    pub(super) fn compile(source: &str) -> std::result::Result<(Self, Vec<Reference>), (usize, String)> {
        let environment = environment();
        let compiled = environment.template_from_str(source).map_err(|error| {
            let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            (error.line().unwrap_or(1), detail)
        })?;
        let mut references: Vec<Reference> = compiled
            .undeclared_variables(true)
            .into_iter()
            .map(|path| match path.split_once('.') {
                Some((owner, field)) => Reference { owner: owner.to_owned(), field: Some(field.to_owned()) },
                None => Reference { owner: path, field: None },
            })
            .filter(|reference| !is_global(&environment, reference))
            .collect();
        references.sort();
        Ok((Self { source: source.to_owned() }, references))
    }

    /// A template of the built-in pipelines, which are known to be right.
    pub(crate) fn built_in(source: &str) -> Self {
        Self { source: source.to_owned() }
    }

    /// The template as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Fills it in.
    pub(crate) fn render(&self, prompt: Option<&str>, outputs: &BTreeMap<String, String>) -> Result<String> {
        let stages: Value = outputs.iter().map(|(id, text)| (id.as_str(), context! { output => text })).collect();
        let inputs = context! { inputs => context! { prompt => prompt.unwrap_or_default() } };
        environment().render_str(&self.source, context! { ..stages, ..inputs }).map_err(|error| {
            let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
            let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
            Error::new(
                ErrorKind::Malformed,
                format!("the template cannot be filled in{line}: {}{detail}", error.kind()),
            )
        })
    }
}

fn is_global(environment: &Environment<'_>, reference: &Reference) -> bool {
    environment.globals().any(|(name, _)| name == reference.owner)
}
