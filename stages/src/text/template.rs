//! A model's chat template: turns to the text of a prompt.

use std::time::SystemTime;

use minijinja::{Environment, Value, context};

use super::conversation::{Content, Speaker, Turn};
use super::jinja::{self, Raised};
use crate::error::{ErrorKind, Result, StageError};

/// How a template wants a message's content. Found once, by rendering a probe: templates made for text print a list of
/// parts as such, others look into the list and fail on a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A list of parts, always.
    Parts,
    /// A list of parts, but a string for instructions.
    PartsButSystem,
    /// A string; it has no place for media.
    Text,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    name: String,
    source: String,
    shape: Shape,
    tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Compiles a template. `model` names it in errors; `tokens` are the texts of special tokens by their names in
    /// templates (`bos_token`).
    pub fn new(model: &str, source: &str, tokens: &[(String, String)]) -> Result<Self> {
        let name = format!("chat template of {model}");
        let mut environment = jinja::environment();
        let adapted = jinja::adapt(source);
        environment
            .add_template_owned(name.clone(), adapted)
            .map_err(|error| failure(&name, &error, ErrorKind::Unsupported))?;
        let mut template =
            Self { environment, name, source: source.to_owned(), shape: Shape::Parts, tokens: tokens.to_vec() };
        template.shape = template.probe();
        Ok(template)
    }

    /// The template as the checkpoint holds it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation up to where the answer begins.
    pub fn render<M>(&self, turns: &[Turn<M>], now: SystemTime) -> Result<String> {
        let messages: Vec<Value> = turns.iter().map(|turn| self.message(turn, self.shape)).collect::<Result<_>>()?;
        self.run(messages, now)
    }

    fn run(&self, messages: Vec<Value>, now: SystemTime) -> Result<String> {
        let template = self
            .environment
            .get_template(&self.name)
            .map_err(|error| failure(&self.name, &error, ErrorKind::Internal))?;
        let tokens: Value = self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let given = context! {
            messages => messages,
            add_generation_prompt => true,
            tools => (),
            documents => (),
            strftime_now => jinja::clock(now),
        };
        template
            .render(context! { ..given, ..tokens })
            .map_err(|error| failure(&self.name, &error, ErrorKind::Internal))
    }

    fn message<M>(&self, turn: &Turn<M>, shape: Shape) -> Result<Value> {
        let role = turn.speaker.name();
        let as_text = shape == Shape::Text || (shape == Shape::PartsButSystem && turn.speaker == Speaker::System);
        if !as_text {
            let parts: Vec<Value> = turn
                .content
                .iter()
                .map(|content| match content {
                    Content::Text(text) => context! { type => "text", text => text },
                    Content::Image(_) => context! { type => "image" },
                    Content::Audio(_) => context! { type => "audio" },
                })
                .collect();
            return Ok(context! { role => role, content => parts });
        }
        let mut texts = Vec::new();
        for content in &turn.content {
            match content {
                Content::Text(text) => texts.push(text.as_str()),
                Content::Image(_) | Content::Audio(_) => {
                    let text = format!("the {} has no place for media in {role} messages", self.name);
                    return Err(StageError::new(ErrorKind::Unsupported, text));
                }
            }
        }
        Ok(context! { role => role, content => texts.join("\n") })
    }

    fn probe(&self) -> Shape {
        const MARK: &str = "WEFTPROBE";
        let turns: [Turn<()>; 2] = [Turn::text(Speaker::System, MARK), Turn::text(Speaker::User, MARK)];
        let fits = |shape, turns: &[Turn<()>]| {
            let messages: Result<Vec<Value>> = turns.iter().map(|turn| self.message(turn, shape)).collect();
            let rendered = messages.and_then(|messages| self.run(messages, SystemTime::UNIX_EPOCH));
            rendered.is_ok_and(|text| {
                let printed_as_list = text.contains("\"type\"") || text.contains("'type'");
                text.matches(MARK).count() >= turns.len() && !printed_as_list
            })
        };
        let user_only = &turns[1..];
        if fits(Shape::Parts, &turns) {
            Shape::Parts
        } else if fits(Shape::PartsButSystem, &turns) {
            Shape::PartsButSystem
        } else if !fits(Shape::Text, user_only) && fits(Shape::Parts, user_only) {
            Shape::Parts
        } else {
            Shape::Text
        }
    }
}

/// An error of a template: what it raised on purpose is about the conversation, the rest is about the template.
fn failure(name: &str, error: &minijinja::Error, kind: ErrorKind) -> StageError {
    let line = error.line().map(|line| format!(" line {line}")).unwrap_or_default();
    let raised = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Raised>());
    match raised {
        Some(Raised(message)) => {
            StageError::new(ErrorKind::Malformed, format!("{name},{line} refuses this conversation: {message}"))
        }
        None => {
            let detail = error.detail().unwrap_or_default();
            let text = format!("{name},{line}: {}{}{detail}", error.kind(), if detail.is_empty() { "" } else { ": " });
            StageError::new(kind, text)
        }
    }
}
