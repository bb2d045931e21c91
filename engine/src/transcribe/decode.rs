//! One window to tokens: the model's answer, and another at a higher temperature while it looks wrong.

use std::sync::Arc;

use super::quality::{Measures, Verdict, compression_ratio};
use super::task::Speech;
use super::windows::Window;
use super::{TextOf, TranscribeOptions, spoken};
use crate::card::TranscriptionCard;
use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::{MediaTicket, Model, TokenStream};
use crate::request::{Generate, Sampling, Segment, TokenEvent, TokenRules};

/// Asks the model about one encoded window.
pub(super) struct Decoder<'a> {
    pub(super) model: &'a Model,
    pub(super) options: &'a TranscribeOptions,
    pub(super) text: TextOf<'a>,
    pub(super) ticket: &'a MediaTicket,
}

/// What was heard in a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    /// Text and timestamps, without the end token.
    pub(super) tokens: Vec<u32>,
    pub(super) avg_logprob: f32,
    pub(super) no_speech_prob: f32,
    pub(super) compression_ratio: f32,
    pub(super) temperature: f32,
    /// Nobody speaks: the tokens mean nothing.
    pub(super) silent: bool,
}

/// Tokens of an answer with the log-probabilities of all and of the end token.
struct Heard {
    tokens: Vec<u32>,
    logprob_sum: f32,
    /// Tokens that the sum is over.
    chosen: usize,
    no_speech_prob: f32,
}

impl Decoder<'_> {
    /// The language token that the model finds most probable.
    pub(super) async fn language(&self, rules: &TranscriptionCard) -> Result<u32> {
        let tokens = rules.languages.iter().map(|(_, token)| *token).collect();
        let request = Generate {
            rules: TokenRules::OneOf(tokens),
            max_tokens: 1,
            ..self.request(vec![rules.start], Sampling::default())
        };
        let mut stream = self.model.generate(request)?;
        let mut language = None;
        while let Some(event) = stream.next().await {
            match event {
                TokenEvent::Token(token) => language = Some(token.id),
                TokenEvent::Failed(error) => return Err(error),
                TokenEvent::Started { .. } | TokenEvent::Finished { .. } => {}
            }
        }
        language.ok_or_else(|| EngineError::new(ErrorKind::Internal, "language detection gave no token"))
    }

    /// Decodes the window; the last temperature's answer stands whatever it looks like.
    pub(super) async fn decode(&self, speech: &Speech, before: &[u32], window: Window) -> Result<Answer> {
        let temperatures = &self.options.temperatures;
        let mut attempt = 0;
        loop {
            let temperature = temperatures[attempt];
            // Attempts and windows draw differently, and the same again for the same seed.
            let seed = self.options.seed ^ ((window.start as u64) << 8 | attempt as u64);
            let answer = self.attempt(speech, before, Sampling { temperature, seed, ..Sampling::default() }).await?;
            attempt += 1;
            let measures = Measures {
                avg_logprob: answer.avg_logprob,
                no_speech_prob: answer.no_speech_prob,
                compression_ratio: answer.compression_ratio,
            };
            match measures.verdict(self.options) {
                Verdict::Good => return Ok(answer),
                Verdict::Silent => return Ok(Answer { silent: true, ..answer }),
                Verdict::Again if attempt == temperatures.len() => return Ok(answer),
                Verdict::Again => tracing::debug!(?measures, window.start, temperature, "a window is decoded again"),
            }
        }
    }

    async fn attempt(&self, speech: &Speech, before: &[u32], sampling: Sampling) -> Result<Answer> {
        let rules = speech.rules();
        let temperature = sampling.temperature;
        let forced = speech.forced();
        let given = forced.len();
        let prompt = prompt(rules, before);
        let request = Generate {
            rules: TokenRules::Transcription { card: Arc::clone(rules), timestamps: speech.timestamps(), forced },
            max_tokens: rules.max_length.saturating_sub(prompt.len()),
            watch: rules.no_speech.into_iter().collect(),
            ..self.request(prompt, Sampling { logprobs: Some(0), ..sampling })
        };
        let heard = hear(self.model.generate(request)?, given, rules.end).await?;
        let text = (self.text)(&spoken(&heard.tokens, rules.end).collect::<Vec<_>>());
        Ok(Answer {
            avg_logprob: heard.logprob_sum / heard.chosen.max(1) as f32,
            no_speech_prob: heard.no_speech_prob,
            compression_ratio: compression_ratio(&text),
            tokens: heard.tokens,
            temperature,
            silent: false,
        })
    }

    /// A request about the window. No end tokens: the end's log-probability counts too, so it has to be seen.
    fn request(&self, prompt: Vec<u32>, sampling: Sampling) -> Generate {
        Generate {
            id: self.options.id,
            prompt: vec![Segment::Media(self.ticket.clone()), Segment::Text(prompt)],
            sampling,
            rules: TokenRules::Free,
            end_tokens: Vec::new(),
            max_tokens: 1,
            watch: Vec::new(),
            class: self.options.class,
            deadline: self.options.deadline,
        }
    }
}

/// `<|startofprev|>`, the end of the text before, `<|startoftranscript|>`.
fn prompt(rules: &TranscriptionCard, before: &[u32]) -> Vec<u32> {
    let mut prompt = Vec::new();
    if let Some(previous) = rules.previous.filter(|_| !before.is_empty()) {
        let most = (rules.max_length / 2).saturating_sub(1);
        prompt.push(previous);
        prompt.extend_from_slice(&before[before.len().saturating_sub(most)..]);
    }
    prompt.push(rules.start);
    prompt
}

/// Reads an answer up to its end token. The first `given` tokens were forced and say nothing.
async fn hear(mut stream: TokenStream, given: usize, end: u32) -> Result<Heard> {
    let mut heard = Heard { tokens: Vec::new(), logprob_sum: 0.0, chosen: 0, no_speech_prob: 0.0 };
    let mut seen = 0;
    while let Some(event) = stream.next().await {
        match event {
            TokenEvent::Started { watched } => heard.no_speech_prob = watched.first().map_or(0.0, |p| p.exp()),
            TokenEvent::Token(token) => {
                seen += 1;
                if seen <= given {
                    continue;
                }
                heard.chosen += 1;
                heard.logprob_sum += token.logprob.unwrap_or(0.0);
                if token.id == end {
                    break;
                }
                heard.tokens.push(token.id);
            }
            TokenEvent::Finished { .. } => break,
            TokenEvent::Failed(error) => return Err(error),
        }
    }
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_text_is_cut_to_what_the_decoder_takes() {
        let rules = TranscriptionCard { start: 900, previous: Some(901), max_length: 448, ..Default::default() };
        assert_eq!(prompt(&rules, &[]), [900]);
        assert_eq!(prompt(&rules, &[1, 2]), [901, 1, 2, 900]);
        let long: Vec<u32> = (0..500).collect();
        let cut = prompt(&rules, &long);
        assert_eq!((cut.len(), cut[1], cut[223], cut[224]), (225, 277, 499, 900));
    }
}
