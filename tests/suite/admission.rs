//! The price route and refusals at the door.

use serde_json::json;

use crate::door::{Door, data_url, file};

const RUN: &str = "/v1/pipelines/tiny-omni/run";
const PRICE: &str = "/v1/pipelines/tiny-omni/price";

#[tokio::test(flavor = "multi_thread")]
async fn the_price_is_what_the_run_then_costs() {
    let door = Door::open().await;
    let image = data_url("image/png", &file("tests/golden/media/scene_140x140.png"));
    let audio = data_url("audio/wav", &file("tests/golden/media/word.wav"));
    let body = json!({ "prompt": "What?", "images": [image], "audios": [audio], "options": { "max_tokens": 4 } });
    let quote = door.post_json(PRICE, &body).await;
    assert_eq!(quote.status, 200, "{}", quote.text);
    let quote = quote.json();
    assert_eq!(quote["admission"]["verdict"], "accept", "{quote}");
    assert_eq!(quote["price"]["media"].as_array().map(Vec::len), Some(2), "{quote}");
    assert!(quote["price"]["encode_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{quote}");
    let metrics = door.get("/metrics").await.text;
    assert!(metrics.contains("weft_encoder_cache_misses_total 0"), "a price encodes nothing: {metrics}");
    let usage = door.post_json(RUN, &body).await.json()["usage"].clone();
    for count in ["prompt_tokens", "media_tokens"] {
        assert_eq!(quote["price"][count], usage[count], "{count}: {quote} {usage}");
    }
    let broken = json!({ "prompt": "a", "images": [data_url("image/png", b"no picture")] });
    assert_eq!(door.post_json(PRICE, &broken).await.status, door.post_json(RUN, &broken).await.status);
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_place_left_a_request_is_refused_with_when_to_come_back() {
    let door = Door::with("admission: {requests: 1}\n", &[]).await;
    let body = json!({ "model": "tiny-omni", "max_tokens": 3000, "stream": true,
        "logit_bias": { "2038": -100, "2039": -100 },
        "messages": [{ "role": "user", "content": "Go on for ever." }] });
    let request = door.request("POST", "/v1/chat/completions").header("content-type", "application/json");
    let running = door.send(request.body(body.to_string().into()).expect("a request")).await;
    assert_eq!(running.status(), 200);
    let refused = door.post_json(RUN, &json!({ "prompt": "a" })).await;
    assert_eq!((refused.status.as_u16(), refused.retry_after), (429, true), "{}", refused.text);
    drop(running);
    let mut answered = 429;
    for _ in 0..100 {
        answered = door.post_json(RUN, &json!({ "prompt": "a", "options": { "max_tokens": 2 } })).await.status.as_u16();
        if answered != 429 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(answered, 200, "the place comes back when the reader leaves");
    door.close().await;
}
