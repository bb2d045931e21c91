//! Bad input of every kind against one server: a clear error of the right class within a second, and the server goes on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::door::{Answer, Door, chat_body, file};

const RUN: &str = "/v1/pipelines/tiny-omni/run";
const CHAT: &str = "/v1/chat/completions";

/// Checks an error's number, shape and speed; its text must hold no payload and no internals.
fn check(what: &str, answer: &Answer, expected: u16, began: Instant) {
    let took = began.elapsed();
    assert_eq!(answer.status.as_u16(), expected, "{what}: {}", answer.text);
    assert!(took < Duration::from_secs(1), "{what} took {took:?}");
    let error = &answer.json()["error"];
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{what}: {}", answer.text));
    assert!(message.len() > 8 && message.len() < 600, "{what}: {message}");
    assert!(!message.contains("panicked") && !message.contains(".rs:"), "{what} shows internals: {message}");
    assert!(error["request_id"].as_str().is_some_and(|id| id.starts_with("req-")), "{what}: {error}");
    assert!(error["type"].is_string() && error["code"].is_string(), "{what}: {error}");
    assert_eq!(answer.retry_after, matches!(expected, 429 | 503), "{what}");
}

/// A request that must succeed, to show that the server lives.
async fn good_request(door: &Door) {
    let image = file("tests/golden/media/scene_56x56.png");
    let fields: [(&str, Option<&str>, &[u8]); 3] = [
        ("image", Some("a.png"), &image),
        ("prompt", None, b"What is it?"),
        ("options", None, br#"{"max_tokens": 4}"#),
    ];
    let answer = door.upload(RUN, &fields, "application/json").await;
    assert_eq!(answer.status, 200, "a good request after bad ones: {}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_media_cost_one_request_each() {
    let door = Door::open().await;
    let list: Value = serde_json::from_slice(&file("tests/golden/media_fixtures/odd/odd.json")).expect("a list");
    let broken = list["broken"].as_array().expect("files");
    assert!(broken.len() >= 20);
    for entry in broken {
        let name = entry["file"].as_str().expect("a name");
        let expected = match entry["expect"].as_str().expect("a class") {
            "ok" => 200,
            "malformed" => 400,
            "unsupported" => 415,
            "too large" => 413,
            other => panic!("{name}: unknown class {other}"),
        };
        let bytes = file(&format!("tests/golden/media_fixtures/odd/{name}"));
        let is_sound = name.ends_with(".wav") || name.ends_with(".mp3");
        let field = if is_sound { "audio" } else { "image" };
        let fields: [(&str, Option<&str>, &[u8]); 3] =
            [(field, Some(name), &bytes), ("prompt", None, b"What?"), ("options", None, br#"{"max_tokens": 2}"#)];
        let began = Instant::now();
        let answer = door.upload(RUN, &fields, "application/json").await;
        if expected == 200 {
            assert_eq!(answer.status, 200, "{name}: {}", answer.text);
        } else {
            check(name, &answer, expected, began);
        }
        let began = Instant::now();
        let streamed = door.upload(RUN, &fields, "text/event-stream").await;
        if expected != 200 && streamed.status == 200 {
            // Found out while the medium was prepared: the stream's one terminal event says so.
            let events = crate::door::events(&streamed.text);
            let ends: Vec<_> = events.iter().filter(|(n, _)| n == "done" || n == "error").collect();
            assert_eq!(ends.len(), 1, "{name}: {}", streamed.text);
            assert_eq!(ends[0].0, "error", "{name}");
            assert!(began.elapsed() < Duration::from_secs(1), "{name}");
        }
    }
    good_request(&door).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_requests_are_told_what_is_wrong() {
    let door = Door::open().await;
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    let image = |url: &str| user(json!([{ "type": "image_url", "image_url": { "url": url } }]));
    let cases: Vec<(&str, &str, String, u16)> = vec![
        ("broken JSON", CHAT, "{\"model\": ".into(), 400),
        ("not an object", CHAT, "[]".into(), 400),
        ("empty body", CHAT, String::new(), 400),
        ("no messages", CHAT, json!({ "model": "tiny-omni", "messages": [] }).to_string(), 400),
        (
            "unknown role",
            CHAT,
            json!({ "model": "tiny-omni", "messages": [{ "role": "x", "content": "a" }] }).to_string(),
            400,
        ),
        ("unknown model", CHAT, json!({ "model": "nope", "messages": user("a".into()) }).to_string(), 404),
        ("unknown pipeline", "/v1/pipelines/nope/run", json!({ "prompt": "a" }).to_string(), 404),
        ("unknown field", RUN, json!({ "prompt": "a", "imagse": [] }).to_string(), 400),
        ("unknown option", RUN, json!({ "prompt": "a", "options": { "max_tokes": 1 } }).to_string(), 400),
        ("option out of range", RUN, json!({ "prompt": "a", "options": { "temperature": -1 } }).to_string(), 400),
        ("top_p out of range", RUN, json!({ "prompt": "a", "options": { "top_p": 7 } }).to_string(), 400),
        ("no prompt", RUN, json!({}).to_string(), 400),
        (
            "URL without a comma",
            CHAT,
            json!({ "model": "tiny-omni", "messages": image("data:image/png;base64") }).to_string(),
            400,
        ),
        (
            "bad base64",
            CHAT,
            json!({ "model": "tiny-omni", "messages": image("data:image/png;base64,@@") }).to_string(),
            400,
        ),
        (
            "remote image",
            CHAT,
            json!({ "model": "tiny-omni", "messages": image("http://127.0.0.1/x.png") }).to_string(),
            400,
        ),
        ("tools", CHAT, json!({ "model": "tiny-omni", "messages": user("a".into()), "tools": [{}] }).to_string(), 400),
        ("two answers", CHAT, json!({ "model": "tiny-omni", "messages": user("a".into()), "n": 2 }).to_string(), 400),
    ];
    for (what, path, body, expected) in cases {
        let began = Instant::now();
        let answer = door.post(path, body).await;
        check(what, &answer, expected, began);
    }
    let began = Instant::now();
    check("unknown route", &door.get("/v1/nothing").await, 404, began);
    let began = Instant::now();
    check("wrong method", &door.get(CHAT).await, 405, began);
    good_request(&door).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_over_the_context_is_refused_before_any_work() {
    let door = Door::open().await;
    let long = "word ".repeat(60_000);
    let body = json!({ "model": "tiny-omni", "messages": [{ "role": "user", "content": long }], "stream": true });
    let began = Instant::now();
    let answer = door.post_json(CHAT, &body).await;
    check("a prompt over the context, streamed", &answer, 413, began);
    let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("tokens") && message.contains("4096"), "{message}");
    good_request(&door).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_refused() {
    let door = Door::with("limits: {media_mib: 1}\n", &[]).await;
    let big = vec![0u8; 3 << 20];
    let fields: [(&str, Option<&str>, &[u8]); 2] = [("image", Some("a.png"), &big), ("prompt", None, b"a")];
    let began = Instant::now();
    check("a large upload", &door.upload(RUN, &fields, "application/json").await, 413, began);
    let began = Instant::now();
    check("a large JSON body", &door.post(CHAT, vec![b' '; 8 << 20]).await, 413, began);
    // More than the sockets can hold: whoever still sends must be able to read the refusal.
    let began = Instant::now();
    check("an upload that is refused while it is sent", &door.post(CHAT, vec![b' '; 48 << 20]).await, 413, began);
    good_request(&door).await;
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_asked_for_when_one_is_set() {
    let door = Door::with("auth: {api_keys: [secret]}\n", &[]).await;
    let began = Instant::now();
    check("no key", &door.get("/v1/models").await, 401, began);
    assert_eq!(door.get("/healthz").await.status, 200, "health needs no key");
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_answers_while_pictures_pour_in() {
    let door = std::sync::Arc::new(Door::open().await);
    let golden: Value = serde_json::from_slice(&file("tests/golden/embedded/prompts.json")).expect("golden");
    let case = golden["cases"].as_array().and_then(|c| c.iter().find(|c| c["images"][0].is_string())).expect("a case");
    let body = chat_body("tiny-omni", &case["messages"], 16);
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (door, body) = (std::sync::Arc::clone(&door), body.clone());
        flood.spawn(async move { door.post_json(CHAT, &body).await.status.as_u16() });
    }
    for _ in 0..10 {
        let began = Instant::now();
        assert_eq!(door.get("/healthz").await.status, 200);
        assert!(began.elapsed() < Duration::from_secs(1), "health took {:?}", began.elapsed());
    }
    while let Some(status) = flood.join_next().await {
        assert!(matches!(status.expect("no panic"), 200 | 429));
    }
    let Ok(door) = std::sync::Arc::try_unwrap(door).map_err(|_| ()) else { panic!("all are done") };
    door.close().await;
}
