//! A server in this process on a free port, and a client that speaks to it over a real socket.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use axum::http::{Request, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use weft_api::http::{Server, serve};
use weft_api::settings::{Overrides, Written};

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the repository").to_owned()
}

/// A file of the repository; a missing one fails the test.
pub(crate) fn file(path: &str) -> Vec<u8> {
    std::fs::read(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// An embedded-model server and its client.
pub(crate) struct Door {
    server: Server,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read whole.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    pub(crate) retry_after: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
}

impl Door {
    /// Serves the embedded model.
    pub(crate) async fn open() -> Self {
        Self::with("", &[]).await
    }

    /// Serves with this `weft.yaml` and these `name=path` models.
    pub(crate) async fn with(yaml: &str, models: &[String]) -> Self {
        let flags = Overrides {
            models: models.to_vec(),
            pipelines: Vec::new(),
            listen: Some("127.0.0.1:0".into()),
            device: None,
            threads: None,
        };
        let written = Written::parse("weft.yaml", yaml).expect("configuration parses");
        let (config, settings) = written.resolve(flags).expect("configuration resolves");
        let server = serve(settings, config).await.unwrap_or_else(|e| panic!("server starts: {e}"));
        Self { server, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn close(self) {
        drop(self.client);
        tokio::time::timeout(Duration::from_secs(20), self.server.stop()).await.expect("the server stops in time");
    }

    /// Sends a request; the response's body is still to come.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<hyper::body::Incoming> {
        self.client.request(request).await.expect("the server answers")
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> axum::http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.server.address))
    }

    async fn whole(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.send(request).await;
        let status = response.status();
        let retry_after = response.headers().contains_key("retry-after");
        let body = response.into_body().collect().await.expect("the body ends").to_bytes();
        Answer { status, text: String::from_utf8_lossy(&body).into_owned(), retry_after }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.whole(self.request("GET", path).body(Full::default()).expect("a request")).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        let request = self.request("POST", path).header("content-type", "application/json");
        self.whole(request.body(Full::new(body.into())).expect("a request")).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Answer {
        self.post(path, body.to_string()).await
    }

    /// Uploads fields (name, file name when it is a file, value).
    pub(crate) async fn upload(&self, path: &str, fields: &[(&str, Option<&str>, &[u8])], accept: &str) -> Answer {
        let request = self
            .request("POST", path)
            .header("accept", accept)
            .header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
        self.whole(request.body(Full::new(form(fields))).expect("a request")).await
    }
}

const BOUNDARY: &str = "weft-test-boundary-4b1d";

fn form(fields: &[(&str, Option<&str>, &[u8])]) -> Bytes {
    let mut body = Vec::new();
    for (name, file, value) in fields {
        let file = file.map(|f| format!("; filename=\"{f}\"")).unwrap_or_default();
        let head = format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"{file}\r\n\r\n");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body.into()
}

/// A picture or clip as a data URL.
pub(crate) fn data_url(kind: &str, bytes: &[u8]) -> String {
    format!("data:{kind};base64,{}", STANDARD.encode(bytes))
}

/// The (name, data) pairs of an event stream.
pub(crate) fn events(text: &str) -> Vec<(String, String)> {
    let field = |event: &str, name: &str| -> String {
        event.lines().filter_map(|l| l.strip_prefix(name)).map(|v| v.strip_prefix(' ').unwrap_or(v)).collect()
    };
    text.split("\n\n").filter(|e| e.contains("data:")).map(|e| (field(e, "event:"), field(e, "data:"))).collect()
}

/// A chat request in OpenAI form from golden messages: parts `{"type": "image"|"audio"|"text", ...}` by file name.
pub(crate) fn chat_body(model: &str, messages: &Value, max_tokens: usize) -> Value {
    let read = |part: &Value| match part["type"].as_str() {
        Some("image") => {
            let bytes = golden_media(part, "image");
            json!({ "type": "image_url", "image_url": { "url": data_url("image/png", &bytes) } })
        }
        Some("audio") => {
            let bytes = golden_media(part, "audio");
            json!({ "type": "input_audio", "input_audio": { "data": STANDARD.encode(bytes), "format": "wav" } })
        }
        _ => json!({ "type": "text", "text": part["text"] }),
    };
    let messages: Vec<_> = messages
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| {
            let content = match &message["content"] {
                Value::Array(parts) => parts.iter().map(read).collect(),
                text => text.clone(),
            };
            json!({ "role": message["role"], "content": content })
        })
        .collect();
    json!({ "model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0 })
}

fn golden_media(part: &Value, kind: &str) -> Vec<u8> {
    let name = part[kind].as_str().unwrap_or_else(|| panic!("a {kind} part names its file: {part}"));
    file(&format!("tests/golden/media/{name}"))
}

/// Path of the `weft` binary. `cargo test` of the workspace has just built it, with the features that its tests unite to
/// (building it alone would compile every dependency again), so here it is built only when it is old.
pub(crate) fn weft() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let built = std::process::Command::new(cargo)
            .args(["build", "--quiet", "--locked", "--workspace", "--tests"])
            .current_dir(root())
            .status();
        assert!(built.expect("cargo runs").success(), "the binary builds");
        let test = std::env::current_exe().expect("a path");
        test.parent().and_then(Path::parent).expect("target/debug").join("weft")
    })
}
