//! The price of a request: tokens, device time and memory, from headers, lengths and the beginning of its text. Nothing is
//! decoded. What can never run is refused here, before any work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use weft_stages::MediaFacts;
use weft_stages::service::MediumPrice;
use weft_stages::text::{Content, Speaker, Turn};

use super::check::{Checks, conversation_turns};
use super::media::describe;
use super::stage_error;
use crate::admission::{Desk, Load};
use crate::definition::{GenerateStage, StageKind, Template};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Input, Options};

/// Bytes of text that are tokenised for a price; the rest is estimated from them.
const READ_BYTES: usize = 8 << 10;

/// What a request will cost. Times are those of its work alone on the device.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Price {
    /// Prompt tokens, media included; estimated where the text is long or an earlier stage writes it.
    pub prompt_tokens: usize,
    /// Of these, tokens that stand for media.
    pub media_tokens: usize,
    /// Most answer tokens.
    pub answer_tokens: usize,
    /// Milliseconds of encoders.
    pub encode_ms: f64,
    /// Milliseconds of prompts.
    pub prefill_ms: f64,
    /// Milliseconds of decode steps, for answers as long as they usually are.
    pub decode_ms: f64,
    /// KV blocks from start to end.
    pub kv_blocks: usize,
    /// Each medium, for each model that takes it.
    pub media: Vec<MediumCost>,
}

/// What a medium will cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MediumCost {
    /// The part of the input (`image[0]`).
    pub param: String,
    /// What its header says (`640x480 png`).
    pub what: String,
    /// The model that takes it.
    pub model: String,
    /// Prompt tokens it stands for.
    pub tokens: usize,
    /// Milliseconds of its encoder.
    pub encode_ms: f64,
}

/// A medium of a request, as its header describes it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) param: String,
    pub(crate) facts: MediaFacts,
}

/// What a stage asks of the device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StageLoad {
    /// Its encoders and its prompt.
    pub(crate) compute: Duration,
    /// An answer token's share of a full decode step.
    pub(crate) share: Duration,
}

/// A price with what the ledger and the running request need of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Priced {
    pub(crate) price: Price,
    pub(crate) load: Load,
    /// By the stage's place.
    pub(crate) stages: BTreeMap<usize, StageLoad>,
}

/// What prices are made from.
pub(crate) struct Pricing<'a> {
    pub(crate) checks: &'a Checks<'a>,
    pub(crate) desk: &'a Desk,
    pub(crate) batch: usize,
    pub(crate) input: &'a Input,
    pub(crate) options: &'a Options,
    pub(crate) media: &'a [Found],
}

impl Pricing<'_> {
    /// The price of all stages.
    pub(crate) fn price(&self) -> Result<Priced> {
        let mut priced = Priced { load: self.held(), ..Priced::default() };
        let mut encoded = BTreeSet::new();
        for (at, stage) in self.checks.bound.definition.stages.iter().enumerate() {
            match &stage.kind {
                StageKind::Generate(generate) => self.generate(at, generate, (&mut priced, &mut encoded))?,
                StageKind::Transcribe { .. } => self.transcribe(at, &mut priced)?,
                StageKind::Image | StageKind::Audio | StageKind::Text { .. } => {}
            }
        }
        priced.load.tokens = priced.price.prompt_tokens + priced.price.answer_tokens;
        Ok(priced)
    }

    /// What the request holds while it is in the works.
    fn held(&self) -> Load {
        let mut load = Load { bytes: self.input.bytes(), ..Load::default() };
        for found in self.media {
            match &found.facts {
                MediaFacts::Image(image) => load.pixels += image.width as u64 * image.height as u64,
                MediaFacts::Audio(audio) => load.seconds += audio.length.seconds().max(0.0),
            }
        }
        load
    }

    fn generate<'f>(
        &'f self,
        at: usize,
        stage: &GenerateStage,
        (priced, encoded): (&mut Priced, &mut BTreeSet<(&'f str, &'f str)>),
    ) -> Result<()> {
        let Some(model) = self.checks.bound.models[at].as_deref() else { return Ok(()) };
        let card = self.checks.service.card(model).map_err(stage_error)?;
        let mut compute = Duration::ZERO;
        let mut media_tokens = 0;
        for found in self.media.iter().filter(|found| self.takes(stage, &found.facts)) {
            let cost = self.medium(model, found)?;
            media_tokens += cost.tokens;
            // A medium goes through a model's encoder once, however many stages use it.
            if encoded.insert((model, &found.param)) {
                compute += cost.encode;
                priced.price.media.push(MediumCost {
                    param: found.param.clone(),
                    what: describe(&found.facts),
                    model: model.to_owned(),
                    tokens: cost.tokens,
                    encode_ms: millis(cost.encode),
                });
            }
        }
        let (text, counted) = self.text(model, stage)?;
        let prompt = text + media_tokens;
        if counted && prompt >= card.context {
            let detail = format!(
                "the prompt has {prompt} tokens ({media_tokens} of them media): model `{model}` holds {}, answer included",
                card.context
            );
            return Err(Error::new(ErrorKind::TooLarge, detail));
        }
        let room = card.context.saturating_sub(prompt).max(1);
        let most = self.options_of(at, &stage.options).max_tokens.map_or(room, |most| most.min(room));
        self.answer((at, model), (prompt, most), compute, priced)?;
        priced.price.media_tokens += media_tokens;
        Ok(())
    }

    fn transcribe(&self, at: usize, priced: &mut Priced) -> Result<()> {
        let Some(model) = self.checks.bound.models[at].as_deref() else { return Ok(()) };
        let clips = self.media.iter().filter_map(|found| match &found.facts {
            MediaFacts::Audio(audio) => Some((found, audio)),
            MediaFacts::Image(_) => None,
        });
        for (found, audio) in clips.take(1) {
            let cost = self.medium(model, found)?;
            priced.price.media.push(MediumCost {
                param: found.param.clone(),
                what: describe(&found.facts),
                model: model.to_owned(),
                tokens: cost.tokens,
                encode_ms: millis(cost.encode),
            });
            let most = self.checks.service.transcript_tokens(model, audio).map_err(stage_error)?;
            self.answer((at, model), (1, most.max(1)), cost.encode, priced)?;
        }
        Ok(())
    }

    /// Adds a prompt of so many tokens and an answer of at most so many.
    fn answer(
        &self,
        (at, model): (usize, &str),
        (prompt, most): (usize, usize),
        encode: Duration,
        priced: &mut Priced,
    ) -> Result<()> {
        let text = self.checks.service.text_price(model, prompt, most, self.batch).map_err(stage_error)?;
        if text.pages > text.total_pages {
            let detail = format!(
                "the request needs {} KV blocks and there are {}: shorten prompt or max_tokens",
                text.pages, text.total_pages
            );
            return Err(Error::new(ErrorKind::TooLarge, detail));
        }
        let expected = self.desk.expected(model, most);
        let tokens = u32::try_from(expected).unwrap_or(u32::MAX);
        let compute = encode + text.prefill;
        priced.load.compute += compute;
        priced.load.decode += text.share.saturating_mul(tokens);
        priced.stages.insert(at, StageLoad { compute, share: text.share });
        let price = &mut priced.price;
        price.prompt_tokens += prompt;
        price.answer_tokens += most;
        price.encode_ms += millis(encode);
        price.prefill_ms += millis(text.prefill);
        price.decode_ms += millis(text.step.saturating_mul(tokens));
        price.kv_blocks += text.pages;
        Ok(())
    }

    /// Whether a stage's prompt holds media of this kind.
    fn takes(&self, stage: &GenerateStage, facts: &MediaFacts) -> bool {
        if stage.conversation && !self.input.messages.is_empty() {
            return true;
        }
        let stages = &self.checks.bound.definition.stages;
        stage.media.iter().any(|&at| match facts {
            MediaFacts::Image(_) => matches!(stages[at].kind, StageKind::Image),
            MediaFacts::Audio(_) => matches!(stages[at].kind, StageKind::Audio),
        })
    }

    fn medium(&self, model: &str, found: &Found) -> Result<MediumPrice> {
        let service = self.checks.service;
        let price = match &found.facts {
            MediaFacts::Image(image) => service.image_price(model, image),
            MediaFacts::Audio(audio) => service.audio_price(model, audio),
        };
        price.map_err(|error| stage_error(error).about(&found.param))
    }

    /// Text tokens of a stage's prompt, and whether all of them were counted.
    fn text(&self, model: &str, stage: &GenerateStage) -> Result<(usize, bool)> {
        if stage.conversation && !self.input.messages.is_empty() {
            return self.tokens(model, &conversation_turns(&self.input.messages));
        }
        // What an earlier stage writes is not known yet; it counts as long as answers usually are.
        let written: usize = stage.uses.iter().map(|_| self.desk.expected(model, usize::MAX)).sum();
        let given = self.input.prompt.as_deref();
        let fill = |template: &Template| template.render(given, &BTreeMap::new());
        let prompt = fill(&stage.prompt).unwrap_or_else(|_| given.unwrap_or_default().to_owned());
        // Templates put marks of their own around each medium.
        let media = self.media.iter().filter(|found| self.takes(stage, &found.facts));
        let mut content: Vec<Content<()>> = media.map(|found| place(&found.facts)).collect();
        content.push(Content::Text(prompt));
        let system = stage.system.as_ref().and_then(|system| fill(system).ok());
        let mut turns: Vec<_> = system.map(|text| Turn::text(Speaker::System, text)).into_iter().collect();
        turns.push(Turn { speaker: Speaker::User, content });
        let (tokens, counted) = self.tokens(model, &turns)?;
        Ok((tokens + written, counted && stage.uses.is_empty()))
    }

    fn tokens(&self, model: &str, turns: &[Turn<()>]) -> Result<(usize, bool)> {
        let texts: Vec<&str> = turns.iter().flat_map(Turn::texts).collect();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let service = self.checks.service;
        if bytes <= READ_BYTES {
            let tokens = service.count_text(model, turns, SystemTime::now()).map_err(stage_error)?;
            return Ok((tokens, true));
        }
        let beginning: String = texts.into_iter().flat_map(str::chars).take(READ_BYTES).collect();
        let text = service.text(model).map_err(stage_error)?;
        let tokens = text.tokenizer().encode_plain(&beginning).map_err(stage_error)?.len();
        Ok(((tokens as f64 * bytes as f64 / beginning.len().max(1) as f64) as usize, false))
    }

    fn options_of(&self, at: usize, own: &Options) -> Options {
        match at == self.checks.bound.definition.output {
            true => self.options.clone().over(own),
            false => own.clone(),
        }
    }
}

/// A medium's place in a conversation.
fn place(facts: &MediaFacts) -> Content<()> {
    match facts {
        MediaFacts::Image(_) => Content::Image(()),
        MediaFacts::Audio(_) => Content::Audio(()),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
