//! Language and task of a transcription, checked against the model, and the tokens that state them.

use std::sync::Arc;

use crate::card::{ModelCard, TranscriptionCard};
use crate::error::{EngineError, ErrorKind, Result};

use super::windows::Mode;
use super::{Task, TranscribeOptions};

/// The only language of English-only models.
const ENGLISH: &str = "en";

/// What is spoken and what is wanted.
#[derive(Debug)]
pub(super) struct Speech {
    rules: Arc<TranscriptionCard>,
    /// Code and token; `None` until heard.
    language: Option<(String, u32)>,
    /// `None` in English-only models.
    task: Option<u32>,
    mode: Mode,
}

impl Speech {
    /// Refuses what the model cannot do.
    pub(super) fn new(card: &ModelCard, options: &TranscribeOptions) -> Result<Self> {
        let unsupported = |message: String| Err(EngineError::new(ErrorKind::Unsupported, message));
        let name = &card.name;
        let Some(rules) = &card.transcription else {
            return unsupported(format!("model {name} does not transcribe"));
        };
        if options.temperatures.is_empty() {
            let message = "a transcription needs at least one temperature";
            return Err(EngineError::new(ErrorKind::Malformed, message));
        }
        let wanted = options.language.as_ref().map(|language| language.to_lowercase());
        let (language, task) = if rules.languages.is_empty() {
            if let Some(other) = wanted.filter(|wanted| wanted != ENGLISH) {
                return unsupported(format!("model {name} understands English only, not {other:?}"));
            }
            if options.task == Task::Translate {
                return unsupported(format!("model {name} is English-only and does not translate"));
            }
            (None, None)
        } else {
            let task = match options.task {
                Task::Transcribe => rules.transcribe,
                Task::Translate => rules.translate,
            };
            let Some(task) = task else { return unsupported(format!("model {name} does not {:?}", options.task)) };
            (wanted.map(|wanted| find(rules, name, &wanted)).transpose()?, Some(task))
        };
        Ok(Self { rules: Arc::clone(rules), language, task, mode: options.mode })
    }

    pub(super) fn rules(&self) -> &Arc<TranscriptionCard> {
        &self.rules
    }

    /// Whether the language is the model's to find out.
    pub(super) fn must_listen(&self) -> bool {
        self.language.is_none() && !self.rules.languages.is_empty()
    }

    /// Notes the language token that the model chose.
    pub(super) fn hear(&mut self, token: u32) -> Result<()> {
        let known = self.rules.languages.iter().find(|(_, known)| *known == token).cloned();
        self.language = Some(known.ok_or_else(|| {
            EngineError::new(ErrorKind::Internal, format!("language detection gave token {token}, which is none"))
        })?);
        Ok(())
    }

    /// Language code.
    pub(super) fn language(&self) -> &str {
        self.language.as_ref().map_or(ENGLISH, |(code, _)| code)
    }

    /// The answer's given beginning: language, task, and that there are no timestamps.
    pub(super) fn forced(&self) -> Vec<u32> {
        let plain = (self.mode == Mode::Plain).then_some(self.rules.no_timestamps);
        let language = self.language.as_ref().map(|(_, token)| *token);
        [language, self.task, plain].into_iter().flatten().collect()
    }

    pub(super) fn timestamps(&self) -> bool {
        self.mode == Mode::Timestamps
    }
}

fn find(rules: &TranscriptionCard, model: &str, wanted: &str) -> Result<(String, u32)> {
    rules.languages.iter().find(|(code, _)| code == wanted).cloned().ok_or_else(|| {
        let codes: Vec<_> = rules.languages.iter().map(|(code, _)| code.as_str()).collect();
        let message = format!("model {model} does not know the language {wanted:?}; it knows {}", codes.join(", "));
        EngineError::new(ErrorKind::Unsupported, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{Family, GenerationDefaults, TokenizerSource};

    fn model(rules: Option<TranscriptionCard>) -> ModelCard {
        ModelCard {
            name: "ears".to_owned(),
            family: Family::Whisper,
            parameters: 0,
            dtype: String::new(),
            weight_bytes: 0,
            vocabulary: 40,
            context: 448,
            end_tokens: vec![10],
            image: None,
            audio: None,
            image_token: None,
            audio_token: None,
            tokenizer: TokenizerSource::Json(Arc::from(Vec::new())),
            chat_template: None,
            template_tokens: Vec::new(),
            transcription: rules.map(Arc::new),
            generation: GenerationDefaults::default(),
        }
    }

    fn multilingual() -> ModelCard {
        model(Some(TranscriptionCard {
            languages: vec![("en".to_owned(), 12), ("de".to_owned(), 13)],
            transcribe: Some(16),
            translate: Some(15),
            no_timestamps: 20,
            ..TranscriptionCard::default()
        }))
    }

    fn english() -> ModelCard {
        model(Some(TranscriptionCard { no_timestamps: 20, ..TranscriptionCard::default() }))
    }

    fn options(language: Option<&str>, task: Task) -> TranscribeOptions {
        TranscribeOptions { language: language.map(str::to_owned), task, ..TranscribeOptions::default() }
    }

    fn kind(card: &ModelCard, options: &TranscribeOptions) -> ErrorKind {
        Speech::new(card, options).expect_err("refused").kind
    }

    #[test]
    fn an_english_model_needs_no_word_about_it() {
        for language in [None, Some("en"), Some("EN")] {
            let speech = Speech::new(&english(), &options(language, Task::Transcribe)).expect("fine");
            assert_eq!((speech.language(), speech.forced(), speech.must_listen()), ("en", vec![], false));
        }
        assert_eq!(kind(&english(), &options(Some("de"), Task::Transcribe)), ErrorKind::Unsupported);
        assert_eq!(kind(&english(), &options(None, Task::Translate)), ErrorKind::Unsupported);
    }

    #[test]
    fn a_multilingual_model_is_told_or_listens() {
        let told = Speech::new(&multilingual(), &options(Some("de"), Task::Translate)).expect("fine");
        assert_eq!((told.forced(), told.must_listen()), (vec![13, 15], false));
        let plain = TranscribeOptions { mode: Mode::Plain, ..options(None, Task::Transcribe) };
        let mut listens = Speech::new(&multilingual(), &plain).expect("fine");
        assert!(listens.must_listen());
        listens.hear(12).expect("a language");
        assert_eq!((listens.language(), listens.forced()), ("en", vec![12, 16, 20]));
        assert!(listens.hear(3).is_err());
        assert_eq!(kind(&multilingual(), &options(Some("tlh"), Task::Transcribe)), ErrorKind::Unsupported);
    }

    #[test]
    fn other_models_and_empty_temperatures_are_refused() {
        assert_eq!(kind(&model(None), &options(None, Task::Transcribe)), ErrorKind::Unsupported);
        let none = TranscribeOptions { temperatures: Vec::new(), ..TranscribeOptions::default() };
        assert_eq!(kind(&english(), &none), ErrorKind::Malformed);
    }
}
