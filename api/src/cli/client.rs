//! A small HTTP client for `weft demo`: multipart in, server-sent events out.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

const BOUNDARY: &str = "weft-demo-7f3c9a51e0d24b68";

/// One question.
pub(super) struct Question<'a> {
    pub(super) image: Option<&'a [u8]>,
    pub(super) audio: Option<&'a [u8]>,
    pub(super) prompt: &'a str,
    pub(super) options: Value,
}

/// Uploads a question to a pipeline and hands each event (name, data) to `see` as it arrives.
pub(super) async fn ask(
    address: SocketAddr,
    pipeline: &str,
    question: &Question<'_>,
    mut see: impl FnMut(&str, &Value),
) -> Result<(), String> {
    let request = axum::http::Request::post(format!("http://{address}/v1/pipelines/{pipeline}/run"))
        .header("accept", "text/event-stream")
        .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"))
        .body(Full::new(form(question)))
        .map_err(|e| e.to_string())?;
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await.map_err(|e| format!("no answer from {address}: {e}"))?;
    let status = response.status();
    let mut body = response.into_body();
    let mut waiting = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("the stream broke: {e}"))?;
        waiting.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        while status.is_success() {
            let Some(end) = waiting.windows(2).position(|pair| pair == b"\n\n") else { break };
            let event: Vec<u8> = waiting.drain(..end + 2).collect();
            if let Some((name, data)) = parse_event(&String::from_utf8_lossy(&event)) {
                see(&name, &data);
            }
        }
    }
    if !status.is_success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&waiting)));
    }
    Ok(())
}

fn form(question: &Question<'_>) -> Bytes {
    let mut body = Vec::new();
    let mut field = |name: &str, file: Option<&str>, value: &[u8]| {
        let file = file.map(|f| format!("; filename=\"{f}\"")).unwrap_or_default();
        let head = format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    };
    if let Some(image) = question.image {
        field("image", Some("sample.png"), image);
    }
    if let Some(audio) = question.audio {
        field("audio", Some("sample.wav"), audio);
    }
    field("prompt", None, question.prompt.as_bytes());
    field("options", None, question.options.to_string().as_bytes());
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body.into()
}

fn parse_event(text: &str) -> Option<(String, Value)> {
    let mut name = String::new();
    let mut data = String::new();
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("event:") {
            value.trim().clone_into(&mut name);
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push_str(value.trim_start());
        }
    }
    serde_json::from_str(&data).ok().map(|data| (name, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_comments_are_told_apart() {
        assert_eq!(parse_event("event: text\ndata: {\"delta\":\"a\"}\n\n").map(|e| e.0).as_deref(), Some("text"));
        assert!(parse_event(": keep-alive\n\n").is_none());
    }
}
