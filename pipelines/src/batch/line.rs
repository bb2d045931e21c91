//! Lines of a job: what one asks, what one answers.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::event::{FinishReason, Outcome, TranscriptSegment, Usage};
use crate::request::{Input, Message, Options, Part, Role};

/// A request of a job, as written.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchLine {
    /// The caller's own name for it; comes back with the answer.
    #[serde(default)]
    pub custom_id: Option<String>,
    /// The question.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Pictures: paths (relative to the input file) or data URLs.
    #[serde(default)]
    pub images: Vec<String>,
    /// Clips: paths (relative to the input file) or data URLs.
    #[serde(default)]
    pub audios: Vec<String>,
    /// A conversation, as chat clients write it.
    #[serde(default)]
    pub messages: Vec<LineMessage>,
    /// Options, over those of the job.
    #[serde(default)]
    pub options: Options,
}

/// A message of a line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineMessage {
    /// Who.
    pub role: Role,
    /// What.
    pub content: LineContent,
}

/// A message's content.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum LineContent {
    /// Text alone.
    Text(String),
    /// Parts.
    Parts(Vec<LinePart>),
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LinePart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture.
    ImageUrl {
        /// Where it is.
        image_url: LineUrl,
    },
    /// A clip.
    InputAudio {
        /// Its bytes.
        input_audio: LineAudio,
    },
}

/// A picture's place.
#[derive(Debug, Clone, Deserialize)]
pub struct LineUrl {
    /// Path or data URL.
    pub url: String,
}

/// A clip's bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct LineAudio {
    /// Base64, path or data URL.
    pub data: String,
}

/// The answer to a line.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Answer {
    /// The pipeline's output.
    pub text: String,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// What it cost.
    pub usage: Usage,
    /// Language of a transcript.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Segments of a transcript.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<TranscriptSegment>,
    /// What was tolerated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self {
            text: outcome.text,
            finish_reason: outcome.finish_reason,
            usage: outcome.usage,
            language: outcome.language,
            segments: outcome.segments,
            warnings: outcome.warnings,
        }
    }
}

/// What stands in the output for one line of the input.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) custom_id: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<&'a Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Failure<'a>>,
}

/// An error in the output.
#[derive(Debug, Serialize)]
pub(super) struct Failure<'a> {
    kind: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<&'a str>,
}

impl<'a> From<&'a Error> for Failure<'a> {
    fn from(error: &'a Error) -> Self {
        Self { kind: error.kind.name(), message: &error.message, param: error.param.as_deref() }
    }
}

impl BatchLine {
    /// Reads a line.
    pub fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text)
            .map_err(|error| Error::new(ErrorKind::Malformed, format!("the line is not a request: {error}")))
    }

    /// Fetches its media. Paths are seen from `folder`; a file over `most_bytes` is not read.
    pub(super) fn load(self, folder: &Path, most_bytes: usize) -> Result<(Input, Options)> {
        let fetch = |from: &str, param: String| fetch(from, folder, most_bytes).map_err(|error| error.about(param));
        let all = |files: &[String], word: &str| -> Result<Vec<Bytes>> {
            files.iter().enumerate().map(|(at, from)| fetch(from, format!("{word}[{at}]"))).collect()
        };
        let mut messages = Vec::new();
        for (number, message) in self.messages.into_iter().enumerate() {
            let parts = match message.content {
                LineContent::Text(text) => vec![Part::Text(text)],
                LineContent::Parts(parts) => parts
                    .into_iter()
                    .enumerate()
                    .map(|(place, part)| {
                        let param = format!("messages[{number}].content[{place}]");
                        Ok(match part {
                            LinePart::Text { text } => Part::Text(text),
                            LinePart::ImageUrl { image_url } => Part::Image(fetch(&image_url.url, param)?),
                            LinePart::InputAudio { input_audio } => {
                                let plain = STANDARD.decode(input_audio.data.trim());
                                let fetched =
                                    plain.map_or_else(|_| fetch(&input_audio.data, param), |bytes| Ok(bytes.into()));
                                Part::Audio(fetched?)
                            }
                        })
                    })
                    .collect::<Result<_>>()?,
            };
            messages.push(Message { role: message.role, parts });
        }
        let input = Input {
            images: all(&self.images, "image")?,
            audios: all(&self.audios, "audio")?,
            prompt: self.prompt,
            messages,
        };
        Ok((input, self.options))
    }
}

/// Bytes of a path or a data URL.
fn fetch(from: &str, folder: &Path, most_bytes: usize) -> Result<Bytes> {
    let malformed = |text: &str| Error::new(ErrorKind::Malformed, text);
    if let Some(url) = from.strip_prefix("data:") {
        let (head, data) = url.split_once(',').ok_or_else(|| malformed("the data URL has no comma"))?;
        if !head.ends_with(";base64") {
            return Err(malformed("the data URL is not base64"));
        }
        return STANDARD
            .decode(data.trim())
            .map(Bytes::from)
            .map_err(|_| malformed("the data URL holds broken base64"));
    }
    if from.contains("://") {
        let text = "a job takes paths and data URLs; fetch remote media beforehand";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let path = folder.join(from);
    let failed = |error: std::io::Error| {
        let kind =
            if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Malformed };
        Error::new(kind, format!("{}: {error}", path.display()))
    };
    let size = std::fs::metadata(&path).map_err(failed)?.len();
    if size > most_bytes as u64 {
        let text = format!("{} has {size} bytes: at most {most_bytes} are taken", path.display());
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    std::fs::read(&path).map(Bytes::from).map_err(failed)
}
