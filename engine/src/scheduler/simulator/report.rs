//! Simulations for people: policies side by side on one table and one trace, as figures and as a drawing.

use std::time::Duration;

use serde::Serialize;

use super::arrivals::Arrival;
use super::table::CostTable;
use super::{End, Fault, Simulation, svg};
use crate::config::{EngineConfig, Policy};
use crate::request::Class;
use crate::scheduler::Limits;

/// What to simulate.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedCase<'a> {
    /// The device.
    pub table: &'a CostTable,
    /// The traffic.
    pub arrivals: &'a [Arrival],
    /// Inter-token target as a multiple of the step alone.
    pub target: f64,
    /// Time after which the simulation ends, whatever is open.
    pub until: Duration,
}

/// What a policy did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Policy.
    pub policy: &'static str,
    /// Simulated seconds.
    pub seconds: f64,
    /// Requests that ended with their answer.
    pub finished: usize,
    /// Requests without an end when the time was up.
    pub open: usize,
    /// Answer tokens a second.
    pub tokens_per_s: f64,
    /// Median inter-token time in milliseconds.
    pub token_ms_p50: f64,
    /// 99th percentile.
    pub token_ms_p99: f64,
    /// Share of tokens within the target, each held against its own step alone.
    pub within_target: f64,
    /// 99th percentile of inter-token times over each token's step alone.
    pub p99_over_alone: f64,
    /// Median time to first token of interactive requests with media, in milliseconds.
    pub media_first_ms_p50: f64,
    /// 99th percentile.
    pub media_first_ms_p99: f64,
    /// 99th percentile of interactive requests without media.
    pub text_first_ms_p99: f64,
    /// Longest time to first token of batch requests, in seconds.
    pub batch_first_s_max: f64,
    /// Encoder time alone over simulated time.
    pub encoder_share: f64,
    /// The first launches, drawn.
    #[serde(skip)]
    pub svg: String,
}

/// Runs one policy.
pub fn simulate(case: SimulatedCase<'_>, policy: Policy) -> Result<Report, Fault> {
    let config = EngineConfig { policy, inter_token_target: case.target as f32, ..EngineConfig::default() };
    let mut limits = Limits::new(&config);
    limits.max_batch = 64;
    limits.prefill_chunk = 2048;
    let mut simulation = Simulation::new(limits, case.table.model(true), case.table.truth(), (16_384, 16));
    simulation.play(case.arrivals, case.until, |_, _, _| Ok(()))?;
    let gaps = std::mem::take(&mut simulation.gaps);
    let within = gaps.iter().filter(|(gap, lone)| *gap <= lone.mul_f64(case.target)).count();
    let mut times_alone: Vec<f64> =
        gaps.iter().map(|(gap, lone)| gap.as_secs_f64() / lone.as_secs_f64().max(1e-9)).collect();
    times_alone.sort_by(f64::total_cmp);
    let mut gaps: Vec<Duration> = gaps.into_iter().map(|(gap, _)| gap).collect();
    gaps.sort_unstable();
    let outcomes = || simulation.outcomes.values();
    let firsts = |class: Class, media: bool| {
        let own = outcomes().filter(move |outcome| outcome.class == class && outcome.media == media);
        let mut times: Vec<Duration> = own.filter_map(|outcome| outcome.first_token).collect();
        times.sort_unstable();
        times
    };
    let media = firsts(Class::Interactive, true);
    let batch = [firsts(Class::Batch, true), firsts(Class::Batch, false)].concat();
    let seconds = simulation.now.as_secs_f64().max(1e-9);
    let tokens: usize = outcomes().map(|outcome| outcome.tokens).sum();
    let rank = (times_alone.len() as f64 * 0.99).ceil() as usize;
    Ok(Report {
        policy: name(policy),
        seconds,
        finished: outcomes().filter(|outcome| outcome.end == End::Finished).count(),
        open: simulation.open(),
        tokens_per_s: tokens as f64 / seconds,
        token_ms_p50: at(&gaps, 0.5),
        token_ms_p99: at(&gaps, 0.99),
        within_target: within as f64 / gaps.len().max(1) as f64,
        p99_over_alone: times_alone.get(rank.saturating_sub(1)).copied().unwrap_or_default(),
        media_first_ms_p50: at(&media, 0.5),
        media_first_ms_p99: at(&media, 0.99),
        text_first_ms_p99: at(&firsts(Class::Interactive, false), 0.99),
        batch_first_s_max: batch.iter().max().map_or(0.0, Duration::as_secs_f64),
        encoder_share: simulation.busy[2].as_secs_f64() / seconds,
        svg: svg::timeline(name(policy), &simulation.spans),
    })
}

/// Its name in configuration.
pub const fn name(policy: Policy) -> &'static str {
    match policy {
        Policy::Inline => "inline",
        Policy::Slice => "slice",
        Policy::Partition => "partition",
        Policy::Auto => "auto",
    }
}

/// A percentile of sorted times, in milliseconds.
fn at(sorted: &[Duration], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
