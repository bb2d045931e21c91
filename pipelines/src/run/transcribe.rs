//! Transcribe stages: a clip in, segments and text out.

use std::time::Instant;

use weft_stages::service::{TranscribeOptions, TranscriptEvent};
use weft_stages::{Mode, Task};

use super::graph::Output;
use super::media::describe;
use super::{Job, stage_error};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, FinishReason, TranscriptSegment, Usage};
use crate::request::Options;

impl Job {
    pub(super) async fn transcribe(&self, at: usize, own: &Options) -> Result<(Output, String)> {
        let Some(clip) = self.input.audios.first() else {
            return Ok((Output::Text(String::new()), "no clip".to_owned()));
        };
        let id = &self.bound.definition.stages[at].id;
        let output = at == self.bound.definition.output;
        let options = self.transcribe_options(self.options_of(at, own));
        let named = |error| stage_error(error).about("audio[0]");
        let mut stream = self.service.transcribe(self.model(at), clip.clone(), options).map_err(named)?;
        let (mut prepared, mut heard) = (Instant::now(), None);
        let mut tokens = 0;
        while let Some(event) = stream.next().await {
            match event {
                TranscriptEvent::Prepared(facts) => {
                    prepared = Instant::now();
                    let from = prepared.checked_sub(facts.worked).unwrap_or(prepared);
                    let queued = from.checked_sub(facts.queued).unwrap_or(from);
                    self.tally.span(self.began, format!("{id}/queue"), queued, from, String::new());
                    self.tally.span(self.began, format!("{id}/prepare"), from, prepared, describe(&facts.source));
                    self.tally.warn("audio[0]", &facts.warnings);
                    metrics::counter!("weft_media_total", "kind" => "audio", "outcome" => "prepared").increment(1);
                }
                TranscriptEvent::Language(language) => heard = Some(language),
                TranscriptEvent::Segment(segment) => {
                    tokens += segment.tokens.len();
                    if output {
                        let segment = TranscriptSegment::from(segment);
                        self.tell(Event::Text { delta: segment.text.clone(), logprobs: Vec::new() }).await?;
                        self.tell(Event::Segment(segment)).await?;
                    }
                }
                TranscriptEvent::Finished(transcript) => {
                    self.tally.span(
                        self.began,
                        format!("{id}/decode"),
                        prepared,
                        Instant::now(),
                        format!("{tokens} tokens"),
                    );
                    self.admitted.desk.answered(self.model(at), tokens);
                    self.tally.usage(Usage { completion_tokens: tokens, ..Usage::default() });
                    let text = transcript.text.trim().to_owned();
                    let segments: Vec<_> = transcript.segments.into_iter().map(TranscriptSegment::from).collect();
                    let note =
                        format!("{:.2} s, {} segments, {}", transcript.duration, segments.len(), transcript.language);
                    let language = heard.or(Some(transcript.language));
                    self.tally.transcript(language, transcript.duration, segments);
                    if output {
                        self.tally.finish(FinishReason::Stop, Vec::new());
                    }
                    return Ok((Output::Text(text), note));
                }
                TranscriptEvent::Failed(error) => return Err(named(error)),
            }
        }
        Err(Error::new(ErrorKind::Internal, "a transcript ended without saying how"))
    }

    fn transcribe_options(&self, options: Options) -> TranscribeOptions {
        let usual = TranscribeOptions::default();
        TranscribeOptions {
            id: self.id,
            language: options.language,
            task: if options.translate { Task::Translate } else { Task::Transcribe },
            temperatures: options.temperature.map_or(usual.temperatures, |temperature| vec![temperature]),
            mode: if options.timestamps == Some(false) { Mode::Plain } else { Mode::Timestamps },
            seed: options.seed.unwrap_or(usual.seed),
            class: self.class.into(),
            deadline: self.deadline,
            ..TranscribeOptions::default()
        }
    }
}

impl From<weft_stages::TranscriptSegment> for TranscriptSegment {
    fn from(segment: weft_stages::TranscriptSegment) -> Self {
        Self {
            id: segment.id,
            start: segment.start,
            end: segment.end,
            text: segment.text,
            tokens: segment.tokens,
            avg_logprob: segment.avg_logprob,
            no_speech_prob: segment.no_speech_prob,
            compression_ratio: segment.compression_ratio,
            temperature: segment.temperature,
        }
    }
}
