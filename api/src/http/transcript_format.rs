//! Transcripts as text, SubRip, WebVTT and verbose JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};
use weft_pipelines::event::Outcome;

use super::ApiError;

/// The `response_format` of a transcription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Format {
    /// `{"text"}`.
    #[default]
    Json,
    /// Plain text.
    Text,
    /// SubRip.
    Srt,
    /// WebVTT.
    Vtt,
    /// Text, language, duration and segments.
    Verbose,
}

impl Format {
    pub(super) fn parse(name: &str) -> Result<Self, ApiError> {
        match name {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            "srt" => Ok(Self::Srt),
            "vtt" => Ok(Self::Vtt),
            "verbose_json" => Ok(Self::Verbose),
            _ => {
                let known = "json, text, srt, vtt, verbose_json";
                Err(ApiError::malformed("response_format", format!("unknown format {name:?}; known are {known}")))
            }
        }
    }

    pub(super) fn wants_times(self) -> bool {
        matches!(self, Self::Srt | Self::Vtt | Self::Verbose)
    }

    /// The transcript as a text document.
    pub(super) fn text(self, outcome: &Outcome) -> String {
        let mut out = String::new();
        if self == Self::Vtt {
            out.push_str("WEBVTT\n\n");
        }
        if matches!(self, Self::Srt | Self::Vtt) {
            for (n, segment) in outcome.segments.iter().enumerate() {
                if self == Self::Srt {
                    let _infallible = writeln!(out, "{}", n + 1);
                }
                let mark = if self == Self::Srt { ',' } else { '.' };
                let (start, end) = (clock(segment.start, mark), clock(segment.end, mark));
                // An arrow inside the text would end a WebVTT cue's timing line early.
                let text = segment.text.trim().replace("-->", "->");
                let _infallible = write!(out, "{start} --> {end}\n{text}\n\n");
            }
        } else {
            let _infallible = writeln!(out, "{}", outcome.text.trim());
        }
        out
    }

    /// The transcript with everything known about it.
    pub(super) fn verbose(self, outcome: &Outcome) -> Value {
        json!({
            "task": "transcribe",
            "language": outcome.language,
            "duration": outcome.duration,
            "text": outcome.text.trim(),
            "segments": outcome.segments.iter().map(|s| json!({
                "id": s.id, "seek": 0, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens,
                "temperature": s.temperature, "avg_logprob": s.avg_logprob,
                "compression_ratio": s.compression_ratio, "no_speech_prob": s.no_speech_prob,
            })).collect::<Vec<_>>(),
        })
    }
}

/// `hh:mm:ss,mmm`.
fn clock(seconds: f64, mark: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{h:02}:{m:02}:{s:02}{mark}{:03}", ms % 1000)
}

#[cfg(test)]
mod tests {
    use weft_pipelines::event::TranscriptSegment;

    use super::*;

    fn outcome() -> Outcome {
        let segment = TranscriptSegment {
            id: 0,
            start: 1.5,
            end: 3661.0015,
            text: " Hello --> there.".into(),
            tokens: vec![1],
            avg_logprob: -0.1,
            no_speech_prob: 0.0,
            compression_ratio: 1.0,
            temperature: 0.0,
        };
        Outcome { text: " Hello there.".into(), segments: vec![segment], ..Outcome::default() }
    }

    #[test]
    fn subtitles_follow_their_formats() {
        assert_eq!(Format::Srt.text(&outcome()), "1\n00:00:01,500 --> 01:01:01,002\nHello -> there.\n\n");
        assert!(Format::Vtt.text(&outcome()).starts_with("WEBVTT\n\n00:00:01.500 --> 01:01:01.002\nHello"));
        assert_eq!(Format::Text.text(&outcome()), "Hello there.\n");
    }

    #[test]
    fn an_unknown_format_names_the_known_ones() {
        let body = Format::parse("docx").expect_err("unknown").body("");
        assert!(body["error"]["message"].as_str().is_some_and(|m| m.contains("verbose_json")));
    }
}
