//! `weft bench mixed --simulate`: all policies on a table of costs and a trace, on a simulated clock.

use std::time::Duration;

use weft_stages::bench::simulator::arrivals::{Drawn, drawn, replay};
use weft_stages::bench::simulator::report::{SimulatedCase, simulate};
use weft_stages::bench::simulator::table::CostTable;

pub use weft_stages::bench::simulator::report::Report;

use crate::config::Policy;
use crate::error::{Error, ErrorKind, Result};

/// The traffic of a simulation.
#[derive(Debug, Clone, Copy)]
pub enum Traffic<'a> {
    /// A recorded trace: one JSON object a line.
    Recorded(&'a str),
    /// Drawn requests, three in ten with a picture and one with a clip.
    Drawn {
        /// Seconds in which requests come.
        seconds: f64,
        /// Requests a second.
        rate: f64,
        /// Requests that come at once.
        burst: usize,
    },
}

/// Runs every policy on this table (JSON) and traffic.
pub fn simulated(table: &str, traffic: Traffic<'_>, target: f64) -> Result<Vec<Report>> {
    let malformed = |what: &str, error: String| Error::new(ErrorKind::Malformed, format!("the {what}: {error}"));
    let table = CostTable::parse(table).map_err(|error| malformed("cost table", error))?;
    if !(target > 1.0 && target.is_finite()) {
        return Err(Error::new(ErrorKind::Malformed, format!("the target is {target}; it must be over 1")));
    }
    let arrivals = match traffic {
        Traffic::Recorded(text) => replay(text).map_err(|error| malformed("trace", error))?,
        Traffic::Drawn { seconds, rate, burst } => {
            drawn(Drawn { seconds, rate, burst, pictures: 0.3, clips: 0.1, batch: 0.1, seed: 7 })
        }
    };
    let last = arrivals.last().map_or(Duration::ZERO, |arrival| arrival.at);
    let until = last + PATIENCE;
    let case = SimulatedCase { table: &table, arrivals: &arrivals, target, until };
    let policies = [Policy::Inline, Policy::Slice, Policy::Partition, Policy::Auto];
    let fault = |fault: String| Error::new(ErrorKind::Internal, format!("the simulation broke off: {fault}"));
    policies.into_iter().map(|policy| simulate(case, policy).map_err(fault)).collect()
}

/// Simulated time after the last arrival.
const PATIENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = include_str!("../../../samples/bench/h200.json");
    const TRACE: &str = include_str!("../../../samples/bench/mixed-120s.jsonl");

    #[test]
    fn the_shipped_table_and_trace_are_read_and_all_requests_end() {
        assert!(replay(TRACE).expect("a trace").len() > 3000);
        let reports = simulated(TABLE, Traffic::Drawn { seconds: 4.0, rate: 6.0, burst: 2 }, 1.25).expect("simulates");
        for report in &reports {
            assert_eq!(report.open, 0, "{report:?}");
            assert!(report.finished > 5 && report.svg.starts_with("<svg"), "{report:?}");
        }
        let policies: Vec<_> = reports.iter().map(|report| report.policy).collect();
        assert_eq!(policies, ["inline", "slice", "partition", "auto"]);
    }

    /// The start of the recorded traffic; the whole of it, and how far `auto` is from its target there, is for
    /// `weft bench mixed --simulate`.
    #[test]
    fn on_the_h200_auto_delays_answers_less_than_inline_and_loses_none() {
        let lines: Vec<&str> = TRACE.lines().take(400).collect();
        let trace = lines.join("\n");
        let reports = simulated(TABLE, Traffic::Recorded(&trace), 1.25).expect("simulates");
        let find = |policy| reports.iter().find(|report| report.policy == policy).expect("every policy is simulated");
        let (auto, inline) = (find("auto"), find("inline"));
        let slow = |report: &Report| report.p99_over_alone;
        assert!(slow(auto) < slow(inline), "auto {}, inline {}", slow(auto), slow(inline));
        assert_eq!((auto.open, auto.finished), (0, lines.len()), "{auto:?}");
    }

    #[test]
    fn a_faulty_trace_names_its_line() {
        let trace = "{\"at_ms\": 1, \"text\": 4, \"answer\": 2}\n{\"at_ms\": 2, \"texd\": 4}\n";
        let error = simulated(TABLE, Traffic::Recorded(trace), 1.25).expect_err("a misspelt key");
        assert!(error.message.contains("line 2") && error.message.contains("texd"), "{}", error.message);
    }
}
