//! What the text stage knows about one model: its tokenizer and template, and how a conversation becomes a layout.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use weft_engine::card::ModelCard;
use weft_engine::grammar::{Grammar, GrammarSpec, Grammars};

use super::conversation::{Content, Turn};
use super::detokenise::{Decoding, Detokeniser};
use super::guard;
use super::template::ChatTemplate;
use super::tokenizer::TextTokenizer;
use crate::error::{Result, StageError};

/// A piece of a prompt's layout, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Tokens.
    Text(Vec<u32>),
    /// The n-th picture of the conversation, from 0.
    Image(usize),
    /// The n-th clip of the conversation, from 0.
    Audio(usize),
}

/// See the module.
#[derive(Debug)]
pub struct TextModel {
    card: Arc<ModelCard>,
    tokenizer: Arc<TextTokenizer>,
    template: Option<ChatTemplate>,
    decoding: Arc<Decoding>,
    /// Made for the first structured answer: it takes a moment and memory.
    grammars: OnceLock<Result<Grammars>>,
}

impl TextModel {
    /// Builds tokenizer and template of a model.
    pub fn new(card: Arc<ModelCard>) -> Result<Self> {
        let placeholders: Vec<u32> = [card.image_token, card.audio_token].into_iter().flatten().collect();
        let named = |error: StageError| StageError::new(error.kind, format!("model `{}`: {error}", card.name));
        let tokenizer = Arc::new(TextTokenizer::new(&card.tokenizer, &placeholders).map_err(named)?);
        let template = card
            .chat_template
            .as_deref()
            .map(|source| ChatTemplate::new(&card.name, source, &card.template_tokens))
            .transpose()?;
        let decoding = Arc::new(Decoding::of(Arc::clone(&tokenizer)));
        Ok(Self { card, tokenizer, template, decoding, grammars: OnceLock::new() })
    }

    /// The model's card.
    pub fn card(&self) -> &Arc<ModelCard> {
        &self.card
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// Compiles a grammar over this model's vocabulary, or finds it. Takes milliseconds, the first one longer.
    pub fn grammar(&self, spec: &GrammarSpec) -> Result<Grammar> {
        let grammars = self.grammars.get_or_init(|| {
            let vocabulary =
                super::vocabulary::vocabulary(&self.tokenizer, self.card.vocabulary, &self.card.end_tokens)?;
            Ok(Grammars::new(vocabulary)?)
        });
        match grammars {
            Ok(grammars) => Ok(grammars.compile(spec)?),
            Err(error) => Err(error.clone()),
        }
    }

    /// A detokeniser for one answer.
    pub fn detokeniser(&self) -> Detokeniser {
        Detokeniser::new(Arc::clone(&self.decoding))
    }

    /// Lays a conversation out as token runs and media in order, with exactly as many places for media as it has media.
    /// `now` is what templates take for the date.
    pub fn layout<M: Clone>(&self, turns: &[Turn<M>], now: SystemTime) -> Result<Vec<Piece>> {
        let ids = self.prompt(turns, now)?;
        let count =
            |image: bool| {
                let media = turns.iter().flat_map(|turn| &turn.content);
                media
                    .filter(|content| {
                        if image { matches!(content, Content::Image(_)) } else { matches!(content, Content::Audio(_)) }
                    })
                    .count()
            };
        self.split(&ids, count(true), count(false))
    }

    /// Token ids of a conversation, one placeholder a medium.
    fn prompt<M: Clone>(&self, turns: &[Turn<M>], now: SystemTime) -> Result<Vec<u32>> {
        let Some(template) = &self.template else { return self.bare(turns) };
        let texts = turns.iter().flat_map(|turn| &turn.content).filter_map(|content| match content {
            Content::Text(text) => Some(text.as_str()),
            Content::Image(_) | Content::Audio(_) => None,
        });
        let nonce = guard::nonce(texts.chain([template.source()]));
        let mut broken = false;
        let mut safe = |content: &Content<M>| match content {
            Content::Text(text) => {
                let text = self.tokenizer.break_up(text, nonce);
                broken |= matches!(text, Cow::Owned(_));
                Content::Text(text.into_owned())
            }
            media => media.clone(),
        };
        let turns: Vec<Turn<M>> = turns
            .iter()
            .map(|turn| Turn { speaker: turn.speaker, content: turn.content.iter().map(&mut safe).collect() })
            .collect();
        let rendered = template.render(&turns, now)?;
        if broken { self.tokenizer.encode_guarded(&rendered, nonce) } else { self.tokenizer.encode(&rendered) }
    }

    /// A model without a template goes on from one user's text.
    fn bare<M>(&self, turns: &[Turn<M>]) -> Result<Vec<u32>> {
        let [Turn { content, .. }] = turns else { return Err(self.no_template()) };
        let [Content::Text(text)] = content.as_slice() else { return Err(self.no_template()) };
        self.tokenizer.encode_plain(text)
    }

    fn no_template(&self) -> StageError {
        let text = format!(
            "model `{}` has no chat template: it continues one text, it does not hold conversations",
            self.card.name
        );
        StageError::unsupported(text)
    }

    fn split(&self, ids: &[u32], images: usize, audios: usize) -> Result<Vec<Piece>> {
        let (mut pieces, mut run) = (Vec::new(), Vec::new());
        let (mut image, mut audio) = (0, 0);
        for &id in ids {
            let piece = if Some(id) == self.card.image_token {
                image += 1;
                Piece::Image(image - 1)
            } else if Some(id) == self.card.audio_token {
                audio += 1;
                Piece::Audio(audio - 1)
            } else {
                run.push(id);
                continue;
            };
            if !run.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut run)));
            }
            pieces.push(piece);
        }
        if !run.is_empty() {
            pieces.push(Piece::Text(run));
        }
        for (what, places, media) in [("pictures", image, images), ("clips", audio, audios)] {
            if places != media {
                let text = format!(
                    "the chat template of `{}` makes {places} places for the {media} {what} of this conversation",
                    self.card.name
                );
                return Err(StageError::unsupported(text));
            }
        }
        Ok(pieces)
    }
}
