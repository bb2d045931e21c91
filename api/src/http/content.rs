//! Media and text in JSON: data URLs, base64, OpenAI message parts.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, general_purpose};
use bytes::Bytes;
use serde::Deserialize;
use weft_pipelines::request::{Message, Part, Role};

use super::ApiError;

/// Clients differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reads `data:<type>;base64,<data>`.
pub(super) fn data_url(param: &str, url: &str) -> Result<Bytes, ApiError> {
    let Some(rest) = url.strip_prefix("data:") else {
        let scheme = url.split(':').next().filter(|s| s.len() < 10).unwrap_or("?");
        let detail = format!(
            "only data URLs are read (`data:image/png;base64,...`), this one is `{scheme}:`; download the file and send it inline"
        );
        return Err(ApiError::unsupported_value(param, detail));
    };
    let Some((header, data)) = rest.split_once(',') else {
        return Err(ApiError::malformed(param, "data URL without a comma: write `data:image/png;base64,...`"));
    };
    if !header.ends_with(";base64") {
        return Err(ApiError::malformed(param, "data URL without `;base64` before its comma"));
    }
    base64(param, data)
}

/// Reads base64, standard alphabet, with or without padding.
pub(super) fn base64(param: &str, data: &str) -> Result<Bytes, ApiError> {
    let decoded = BASE64.decode(data.trim()).or_else(|_| {
        let without_space: String = data.split_whitespace().collect();
        BASE64.decode(without_space)
    });
    match decoded {
        Ok(bytes) if bytes.is_empty() => Err(ApiError::malformed(param, "the medium is empty")),
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => match general_purpose::URL_SAFE_NO_PAD.decode(data.trim_end_matches('=')) {
            Ok(bytes) => Ok(bytes.into()),
            Err(_) => Err(ApiError::malformed(param, format!("not base64: {error}"))),
        },
    }
}

/// A message as OpenAI clients write it.
#[derive(Debug, Deserialize)]
pub(super) struct WireMessage {
    role: WireRole,
    content: Option<WireContent>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WireContent {
    Text(String),
    Parts(Vec<serde_json::Value>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WirePart {
    Text { text: String },
    ImageUrl { image_url: WireUrl },
    InputAudio { input_audio: WireAudio },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WireUrl {
    Plain(String),
    Object { url: String },
}

#[derive(Debug, Deserialize)]
struct WireAudio {
    data: String,
}

/// Turns OpenAI messages into ours; an error names the part.
pub(super) fn messages(wire: Vec<WireMessage>) -> Result<Vec<Message>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::malformed("messages", "there are no messages"));
    }
    wire.into_iter().enumerate().map(|(at, message)| message.read(at)).collect()
}

impl WireMessage {
    fn read(self, at: usize) -> Result<Message, ApiError> {
        let role = match self.role {
            WireRole::System | WireRole::Developer => Role::System,
            WireRole::User => Role::User,
            WireRole::Assistant => Role::Assistant,
        };
        let parts = match self.content {
            None => Vec::new(),
            Some(WireContent::Text(text)) => vec![Part::Text(text)],
            Some(WireContent::Parts(parts)) => {
                let read = |(n, part)| read_part(&format!("messages[{at}].content[{n}]"), part);
                parts.into_iter().enumerate().map(read).collect::<Result<_, _>>()?
            }
        };
        Ok(Message { role, parts })
    }
}

fn read_part(param: &str, part: serde_json::Value) -> Result<Part, ApiError> {
    let kind = part.get("type").and_then(|t| t.as_str()).unwrap_or_default().to_owned();
    let part = serde_json::from_value::<WirePart>(part).map_err(|error| {
        let known = "text, image_url, input_audio";
        let detail = if ["text", "image_url", "input_audio"].contains(&kind.as_str()) {
            format!("{kind} part: {error}")
        } else {
            format!("part of type {kind:?}; known types are {known}")
        };
        ApiError::malformed(param, detail)
    })?;
    match part {
        WirePart::Text { text } => Ok(Part::Text(text)),
        WirePart::ImageUrl { image_url: WireUrl::Plain(url) | WireUrl::Object { url } } => {
            data_url(param, &url).map(Part::Image)
        }
        WirePart::InputAudio { input_audio } if input_audio.data.starts_with("data:") => {
            data_url(param, &input_audio.data).map(Part::Audio)
        }
        WirePart::InputAudio { input_audio } => base64(param, &input_audio.data).map(Part::Audio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<Message>, ApiError> {
        messages(serde_json::from_str(json).expect("test JSON"))
    }

    #[test]
    fn media_keep_their_place_among_the_text() {
        let read = read(
            r#"[{"role":"user","content":[{"type":"text","text":"a"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}},
            {"type":"input_audio","input_audio":{"data":"QUJD","format":"wav"}}]}]"#,
        )
        .expect("reads");
        assert!(matches!(&read[0].parts[..], [Part::Text(_), Part::Image(i), Part::Audio(_)] if &i[..] == b"ABC"));
    }

    #[test]
    fn broken_media_name_their_part() {
        for url in ["data:image/png;base64", "data:image/png,abc", "data:image/png;base64,@@@", "http://x/y.png"] {
            let json =
                format!(r#"[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]"#);
            let body = read(&json).expect_err(url).body("");
            assert_eq!(body["error"]["param"], "messages[0].content[0]", "{url}");
        }
    }

    #[test]
    fn unknown_parts_are_named() {
        let error = read(r#"[{"role":"user","content":[{"type":"video"}]}]"#).expect_err("unknown part");
        assert!(error.body("")["error"]["message"].as_str().is_some_and(|m| m.contains("video")));
    }
}
