//! A timeline of launches as SVG: one row a kind of work, time to the right.

use std::fmt::Write;

use super::Span;
use crate::scheduler::Kind;

const WIDTH: f64 = 1600.0;
const ROW: f64 = 28.0;
const LEFT: f64 = 80.0;

/// Draws the spans.
pub(super) fn timeline(title: &str, spans: &[Span]) -> String {
    let end = spans.last().map_or(1e-9, |span| span.end.as_secs_f64()).max(1e-9);
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - 10.0);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\"><text x=\"4\" y=\"16\">{title}: first {:.1} ms</text>",
        5.0 * ROW,
        end * 1e3
    );
    for (row, name, color) in [(1, "decode", "#2a6"), (2, "prefill", "#c82"), (3, "encoders", "#36c")] {
        let y = f64::from(row) * ROW;
        let _ = write!(out, "<text x=\"4\" y=\"{}\">{name}</text>", y + 16.0);
        for span in spans.iter().filter(|span| row_of(span.kind) == row) {
            let (from, to) = (x(span.start.as_secs_f64()), x(span.end.as_secs_f64()));
            let width = (to - from).max(0.2);
            let _ =
                write!(out, "<rect x=\"{from:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"20\" fill=\"{color}\"/>");
        }
    }
    out.push_str("</svg>\n");
    out
}

const fn row_of(kind: Kind) -> i32 {
    match kind {
        Kind::Decode | Kind::LoneDecode => 1,
        Kind::Prefill | Kind::Ride => 2,
        Kind::Begin(_) | Kind::Layer(_) | Kind::Rows(..) => 3,
    }
}
