//! Everything that can be refused before a stream opens: counts, sizes, senses, headers, options, the context.

use std::time::SystemTime;

use bytes::Bytes;
use weft_stages::text::{Content, Speaker, Turn};
use weft_stages::{GrammarSpec, MediaFacts, ModelCard, Service, audio_facts, image_facts};

use super::price::Found;
use super::stage_error;
use crate::catalog::Bound;
use crate::config::Limits;
use crate::definition::{GenerateStage, StageKind};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Input, Message, Options, Part, Role};
use crate::summary::Arity;

/// What a request is checked against.
pub(crate) struct Checks<'a> {
    pub(crate) service: &'a Service,
    pub(crate) bound: &'a Bound,
    pub(crate) limits: Limits,
}

/// Bytes of text tokenised for the check of the context, for every token of it: a prompt's beginning that already fills
/// the context needs no more reading.
const BYTES_A_TOKEN: usize = 16;

/// A request's input as the pipeline takes it, and what the headers of its media say.
pub(crate) struct Checked {
    pub(crate) input: Input,
    pub(crate) media: Vec<Found>,
}

/// Checks a request.
pub(crate) fn checked(checks: &Checks<'_>, mut input: Input, options: &Options) -> Result<Checked> {
    options.check()?;
    let definition = &checks.bound.definition;
    if !input.messages.is_empty() {
        if !input.images.is_empty() || !input.audios.is_empty() || input.prompt.is_some() {
            let text = "a request brings either messages or media with a prompt, not both";
            return Err(Error::new(ErrorKind::Malformed, text).about("messages"));
        }
        if definition.inputs.conversation {
            let media = checks.conversation(&input, options)?;
            return Ok(Checked { input, media });
        }
        input = flattened(input, &definition.name)?;
    }
    checks.arity("image", definition.inputs.images, input.images.len())?;
    checks.arity("audio", definition.inputs.audios, input.audios.len())?;
    let prompts = usize::from(input.prompt.as_ref().is_some_and(|prompt| !prompt.trim().is_empty()));
    if prompts == 0 && definition.inputs.prompt == Arity::Required {
        let text = format!("pipeline `{}` needs a prompt", definition.name);
        return Err(Error::new(ErrorKind::Malformed, text).about("prompt"));
    }
    if prompts == 1 && definition.inputs.prompt == Arity::None {
        let text = format!("pipeline `{}` takes no prompt", definition.name);
        return Err(Error::new(ErrorKind::Malformed, text).about("prompt"));
    }
    if prompts + input.images.len() + input.audios.len() == 0 {
        let text = "there is nothing to answer: no prompt and no media";
        return Err(Error::new(ErrorKind::Malformed, text).about("prompt"));
    }
    checks.text_bytes(input.prompt.as_ref().map_or(0, String::len), "prompt")?;
    checks.count(input.images.len() + input.audios.len())?;
    let mut media = Vec::new();
    for (at, bytes) in input.images.iter().enumerate() {
        media.push(checks.image(bytes, format!("image[{at}]"))?);
    }
    for (at, bytes) in input.audios.iter().enumerate() {
        media.push(checks.audio(bytes, format!("audio[{at}]"))?);
    }
    checks.models(options)?;
    checks.prompt_fits(&input, options)?;
    Ok(Checked { input, media })
}

impl Checks<'_> {
    fn conversation(&self, input: &Input, options: &Options) -> Result<Vec<Found>> {
        let card = self.answering().and_then(|(at, _)| self.card(at));
        let (mut media, mut bytes) = (Vec::new(), 0);
        for (number, message) in input.messages.iter().enumerate() {
            let empty = message.parts.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()));
            if empty && message.role != Role::Assistant {
                return Err(
                    Error::new(ErrorKind::Malformed, "the message is empty").about(format!("messages[{number}]"))
                );
            }
            for (place, part) in message.parts.iter().enumerate() {
                let param = format!("messages[{number}].content[{place}]");
                match part {
                    Part::Text(text) => bytes += text.len(),
                    Part::Image(file) => {
                        self.sense(card, "pictures", |card| card.image.is_some(), &param)?;
                        media.push(self.image(file, param)?);
                    }
                    Part::Audio(file) => {
                        self.sense(card, "clips", |card| card.audio.is_some(), &param)?;
                        media.push(self.audio(file, param)?);
                    }
                }
            }
        }
        self.text_bytes(bytes, "messages")?;
        self.count(media.len())?;
        self.models(options)?;
        self.turns_fit(&conversation_turns(&input.messages), "messages")?;
        Ok(media)
    }

    fn sense(&self, card: Option<&ModelCard>, what: &str, has: impl Fn(&ModelCard) -> bool, param: &str) -> Result<()> {
        match card {
            Some(card) if !has(card) => {
                let others: Vec<&str> =
                    self.service.cards().filter(|card| has(card)).map(|card| card.name.as_str()).collect();
                let hint = if others.is_empty() { String::new() } else { format!("; these do: {}", others.join(", ")) };
                let text = format!("model `{}` does not take {what}{hint}", card.name);
                Err(Error::new(ErrorKind::Unsupported, text).about(param))
            }
            _ => Ok(()),
        }
    }

    fn arity(&self, word: &str, arity: Arity, count: usize) -> Result<()> {
        if arity.accepts(count) {
            return Ok(());
        }
        let name = &self.bound.definition.name;
        let (kind, text) = match arity {
            Arity::None => (ErrorKind::Unsupported, format!("`{name}` does not take {word} input")),
            Arity::Required if count == 0 => (ErrorKind::Malformed, format!("`{name}` needs {word} input")),
            Arity::Optional | Arity::Required | Arity::Many => {
                (ErrorKind::Malformed, format!("`{name}` takes one {word}, not {count}"))
            }
        };
        Err(Error::new(kind, text).about(if count == 0 { word.to_owned() } else { format!("{word}[{}]", count - 1) }))
    }

    fn count(&self, media: usize) -> Result<()> {
        if media > self.limits.media_count {
            let text = format!("the request brings {media} media: at most {} are taken", self.limits.media_count);
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        Ok(())
    }

    fn text_bytes(&self, bytes: usize, param: &str) -> Result<()> {
        if bytes > self.limits.prompt_bytes {
            let text = format!("the text has {bytes} bytes: at most {} are taken", self.limits.prompt_bytes);
            return Err(Error::new(ErrorKind::TooLarge, text).about(param));
        }
        Ok(())
    }

    fn file(&self, bytes: &Bytes, param: &str) -> Result<()> {
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Malformed, "the file is empty").about(param));
        }
        if bytes.len() > self.limits.media_bytes {
            let text = format!("the file has {} bytes: at most {} are taken", bytes.len(), self.limits.media_bytes);
            return Err(Error::new(ErrorKind::TooLarge, text).about(param));
        }
        Ok(())
    }

    fn image(&self, bytes: &Bytes, param: String) -> Result<Found> {
        self.file(bytes, &param)?;
        let facts = image_facts(bytes).map_err(|error| stage_error(error).about(&param))?;
        if facts.width as u64 * facts.height as u64 > self.limits.image_pixels {
            let text = format!(
                "the picture is {}x{}: at most {} pixels are taken",
                facts.width, facts.height, self.limits.image_pixels
            );
            return Err(Error::new(ErrorKind::TooLarge, text).about(param));
        }
        Ok(Found { param, facts: MediaFacts::Image(facts) })
    }

    fn audio(&self, bytes: &Bytes, param: String) -> Result<Found> {
        self.file(bytes, &param)?;
        let facts = audio_facts(bytes).map_err(|error| stage_error(error).about(&param))?;
        if facts.length.seconds() > self.limits.audio_seconds {
            let text = format!(
                "the clip has {:.0} seconds: at most {:.0} are taken",
                facts.length.seconds(),
                self.limits.audio_seconds
            );
            return Err(Error::new(ErrorKind::TooLarge, text).about(param));
        }
        Ok(Found { param, facts: MediaFacts::Audio(facts) })
    }

    /// Options that only a model can judge.
    fn models(&self, options: &Options) -> Result<()> {
        let Some(card) = self.card(self.bound.definition.output) else { return Ok(()) };
        if let Some((id, _)) = options.logit_bias.iter().find(|(id, _)| *id as usize >= card.vocabulary) {
            let text = format!("logit_bias names token {id}: model `{}` has {} tokens", card.name, card.vocabulary);
            return Err(Error::new(ErrorKind::Malformed, text).about("options.logit_bias"));
        }
        if let Some(many) = options.max_tokens.filter(|&many| many > card.context) {
            let text =
                format!("max_tokens is {many}: model `{}` holds {} tokens, prompt included", card.name, card.context);
            return Err(Error::new(ErrorKind::Malformed, text).about("options.max_tokens"));
        }
        self.format(card, options)
    }

    /// Whether the answer's format can be followed; it is compiled here once and found again when the answer begins.
    fn format(&self, card: &ModelCard, options: &Options) -> Result<()> {
        let Some(format) = &options.format else { return Ok(()) };
        if self.answering().is_none() {
            let text = format!("`{}` does not write its answer to a format", self.bound.definition.name);
            return Err(Error::new(ErrorKind::Unsupported, text).about("options.format"));
        }
        let text = self.service.text(&card.name).map_err(stage_error)?;
        let compiled = text.grammar(&GrammarSpec::from(format.clone()));
        compiled.map(drop).map_err(|error| stage_error(error).about("options.format"))
    }

    /// Whether the prompt alone already fills the context, for a stage that waits for no other text.
    fn prompt_fits(&self, input: &Input, _options: &Options) -> Result<()> {
        let Some((_, stage)) = self.answering().filter(|(_, stage)| stage.uses.is_empty()) else { return Ok(()) };
        let Ok(prompt) = stage.prompt.render(input.prompt.as_deref(), &std::collections::BTreeMap::new()) else {
            return Ok(());
        };
        self.turns_fit(&[Turn::text(Speaker::User, prompt)], "prompt")
    }

    fn turns_fit(&self, turns: &[Turn<()>], param: &str) -> Result<()> {
        let Some((at, card)) = self.answering().and_then(|(at, _)| Some((at, self.card(at)?))) else { return Ok(()) };
        let texts = turns.iter().flat_map(Turn::texts);
        let bytes: usize = texts.clone().map(str::len).sum();
        // A token is at least a byte, and a context of that many bytes surely holds the text.
        if bytes < card.context / 2 {
            return Ok(());
        }
        let most = card.context * BYTES_A_TOKEN;
        let tokens = if bytes > most {
            let beginning: String = texts.flat_map(str::chars).take(most).collect();
            self.service
                .text(&card.name)
                .and_then(|text| text.tokenizer().encode_plain(&beginning))
                .map(|ids| ids.len())
        } else {
            self.service.count_text(self.bound.models[at].as_deref().unwrap_or_default(), turns, SystemTime::now())
        };
        let tokens = tokens.map_err(|error| stage_error(error).about(param))?;
        if tokens >= card.context {
            let at_least = if bytes > most { "at least " } else { "" };
            let text = format!(
                "the prompt has {at_least}{tokens} tokens: model `{}` holds {}, answer included",
                card.name, card.context
            );
            return Err(Error::new(ErrorKind::TooLarge, text).about(param));
        }
        Ok(())
    }

    /// The output stage, when it answers prompts.
    fn answering(&self) -> Option<(usize, &GenerateStage)> {
        let at = self.bound.definition.output;
        match &self.bound.definition.stages[at].kind {
            StageKind::Generate(stage) => Some((at, stage)),
            _ => None,
        }
    }

    fn card(&self, at: usize) -> Option<&ModelCard> {
        self.service.card(self.bound.models[at].as_deref()?).ok().map(std::convert::AsRef::as_ref)
    }
}

/// Messages as the text stage takes them, with places for their media.
pub(super) fn conversation_turns(messages: &[Message]) -> Vec<Turn<()>> {
    let content = |part: &Part| match part {
        Part::Text(text) => Content::Text(text.clone()),
        Part::Image(_) => Content::Image(()),
        Part::Audio(_) => Content::Audio(()),
    };
    let turn = |message: &Message| Turn {
        speaker: Speaker::from(message.role),
        content: message.parts.iter().map(content).collect(),
    };
    messages.iter().map(turn).collect()
}

/// A conversation of one user message, as media and a prompt, for pipelines that take those.
fn flattened(input: Input, pipeline: &str) -> Result<Input> {
    let [message] = input.messages.as_slice() else {
        let text = format!("pipeline `{pipeline}` takes a prompt and media, not a conversation of several messages");
        return Err(Error::new(ErrorKind::Unsupported, text).about("messages"));
    };
    let mut flat = Input::default();
    let mut texts = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text(text) => texts.push(text.as_str()),
            Part::Image(bytes) => flat.images.push(bytes.clone()),
            Part::Audio(bytes) => flat.audios.push(bytes.clone()),
        }
    }
    flat.prompt = (!texts.is_empty()).then(|| texts.join("\n"));
    Ok(flat)
}
