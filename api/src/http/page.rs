//! The page: three files in the binary, no request to anywhere else.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

use super::App;
use crate::embedded;

const CONTENT_SECURITY_POLICY: &str =
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; style-src 'self'; frame-ancestors 'none'";

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", include_bytes!("../../page/index.html"))))
        .route("/page/app.js", get(|| file("text/javascript; charset=utf-8", include_bytes!("../../page/app.js"))))
        .route("/page/style.css", get(|| file("text/css; charset=utf-8", include_bytes!("../../page/style.css"))))
        .route("/page/sample.png", get(|| file("image/png", embedded::SAMPLE_IMAGE)))
        .route("/page/sample.wav", get(|| file("audio/wav", embedded::SAMPLE_AUDIO)))
}

async fn file(kind: &'static str, bytes: &'static [u8]) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, bytes)
}
