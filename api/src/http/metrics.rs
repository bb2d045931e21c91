//! Prometheus metrics. The recorder belongs to the application, so that several can live in one process.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use weft_pipelines::event::{Event, Usage};

use super::App;

/// Upper bounds in seconds of every latency histogram.
const SECONDS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0];

/// The metrics of one application.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    stages: Mutex<HashMap<String, Histogram>>,
    first_token: Histogram,
    inter_token: Histogram,
    tokens_in: Counter,
    tokens_out: Counter,
    gauges: Gauges,
}

struct Gauges {
    running: Gauge,
    waiting: Gauge,
    kv_used: Gauge,
    kv_total: Gauge,
    encoder_bytes: Gauge,
    encoder_hits: Counter,
    encoder_misses: Counter,
    audit_failures: Counter,
    drafted: Counter,
    accepted: Counter,
}

impl Metrics {
    /// An empty set.
    pub fn new() -> Self {
        let recorder = match PrometheusBuilder::new().set_buckets(&SECONDS) {
            Ok(builder) => builder.build_recorder(),
            Err(_) => PrometheusBuilder::new().build_recorder(),
        };
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            metrics::describe_histogram!("weft_stage_seconds", "Time a stage took for one request.");
            metrics::describe_histogram!("weft_time_to_first_token_seconds", "From the request to its first text.");
            metrics::describe_histogram!("weft_inter_token_seconds", "Between two pieces of one answer.");
            metrics::describe_counter!("weft_requests_total", "Answers by HTTP status.");
            metrics::describe_counter!("weft_tokens_in_total", "Prompt tokens, media included.");
            metrics::describe_counter!("weft_tokens_out_total", "Answer tokens.");
            metrics::describe_counter!("weft_media_total", "Media by kind and outcome.");
            metrics::describe_counter!("weft_drafted_tokens_total", "Guesses of tokens that decode steps ran.");
            metrics::describe_counter!("weft_accepted_tokens_total", "Guesses that came true.");
            metrics::describe_gauge!("weft_running", "Sequences on the device.");
            metrics::describe_gauge!("weft_waiting", "Requests waiting for the device.");
            metrics::describe_gauge!("weft_kv_blocks_used", "KV pages in use.");
            metrics::describe_gauge!("weft_kv_blocks", "KV pages in all.");
            metrics::describe_gauge!("weft_encoder_cache_bytes", "Bytes of encoder outputs held.");
        });
        let (stages, gauges) = metrics::with_local_recorder(&recorder, || {
            let gauges = Gauges {
                running: gauge!("weft_running"),
                waiting: gauge!("weft_waiting"),
                kv_used: gauge!("weft_kv_blocks_used"),
                kv_total: gauge!("weft_kv_blocks"),
                encoder_bytes: gauge!("weft_encoder_cache_bytes"),
                encoder_hits: counter!("weft_encoder_cache_hits_total"),
                encoder_misses: counter!("weft_encoder_cache_misses_total"),
                audit_failures: counter!("weft_audit_failures_total"),
                drafted: counter!("weft_drafted_tokens_total"),
                accepted: counter!("weft_accepted_tokens_total"),
            };
            (Mutex::default(), gauges)
        });
        let (first_token, inter_token, tokens_in, tokens_out) = metrics::with_local_recorder(&recorder, || {
            (
                histogram!("weft_time_to_first_token_seconds"),
                histogram!("weft_inter_token_seconds"),
                counter!("weft_tokens_in_total"),
                counter!("weft_tokens_out_total"),
            )
        });
        Self { recorder, handle, stages, first_token, inter_token, tokens_in, tokens_out, gauges }
    }

    /// Counts an answer.
    pub(crate) fn answered(&self, status: u16) {
        metrics::with_local_recorder(&self.recorder, || {
            counter!("weft_requests_total", "status" => status.to_string()).increment(1);
        });
    }

    /// Counts a medium that came in with a request that went well (`ok`) or not (the error's code).
    pub(crate) fn media(&self, kind: &'static str, outcome: &'static str, count: usize) {
        if count > 0 {
            metrics::with_local_recorder(&self.recorder, || {
                counter!("weft_media_total", "kind" => kind, "outcome" => outcome).increment(count as u64);
            });
        }
    }

    fn stage(&self, stage: &str, took: Duration) {
        let mut stages = self.stages.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let histogram = stages.entry(stage.to_owned()).or_insert_with(|| {
            metrics::with_local_recorder(
                &self.recorder,
                || histogram!("weft_stage_seconds", "stage" => stage.to_owned()),
            )
        });
        histogram.record(took);
    }

    fn usage(&self, usage: &Usage) {
        self.tokens_in.increment(usage.prompt_tokens as u64);
        self.tokens_out.increment(usage.completion_tokens as u64);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Follows one request's events and records what they tell.
pub(crate) struct Watch {
    app: App,
    began: Instant,
    last_text: Option<Instant>,
    images: usize,
    audios: usize,
}

impl Watch {
    pub(crate) fn new(app: &App, images: usize, audios: usize) -> Self {
        Self { app: app.clone(), began: Instant::now(), last_text: None, images, audios }
    }

    pub(crate) fn see(&mut self, event: &Event) {
        let metrics = self.app.metrics();
        match event {
            Event::StageFinished { stage, took, .. } => metrics.stage(stage, *took),
            Event::Text { .. } => {
                let now = Instant::now();
                match self.last_text.replace(now) {
                    None => metrics.first_token.record(now - self.began),
                    Some(last) => metrics.inter_token.record(now - last),
                }
            }
            Event::Done(outcome) => {
                metrics.usage(&outcome.usage);
                self.media("ok");
            }
            Event::Failed(error) => self.media(error.kind.name()),
            Event::StageStarted { .. } | Event::Segment(_) => {}
        }
    }

    fn media(&self, outcome: &'static str) {
        self.app.metrics().media("image", outcome, self.images);
        self.app.metrics().media("audio", outcome, self.audios);
    }
}

/// `GET /metrics`.
pub(super) async fn export(State(app): State<App>) -> impl IntoResponse {
    let metrics = app.metrics();
    if let Ok(runtime) = app.runtime() {
        let engine = runtime.stats().engine;
        let g = &metrics.gauges;
        g.running.set(engine.running as f64);
        g.waiting.set(engine.waiting as f64);
        g.kv_used.set(engine.kv_pages_used as f64);
        g.kv_total.set(engine.kv_pages_total as f64);
        g.encoder_bytes.set(engine.encoder_cache_bytes as f64);
        g.encoder_hits.absolute(engine.encoder_cache_hits);
        g.encoder_misses.absolute(engine.encoder_cache_misses);
        g.audit_failures.absolute(engine.audit_failures);
        g.drafted.absolute(engine.drafted);
        g.accepted.absolute(engine.accepted);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.handle.render())
}
