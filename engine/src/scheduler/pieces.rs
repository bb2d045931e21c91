//! What an encoder run does next within a time: whole layers where they fit, some rows of a part where they do not. Asked
//! by the plan once and by the launch after every piece, with the time that is really left, so that one wrong
//! prediction costs one piece.

use std::time::Duration;

use super::snapshot::Running;
use super::{CostModel, Kind, Work};
use crate::families::{EncoderPart, Piece};

/// A piece with its prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextPiece {
    pub(crate) piece: Piece,
    /// What to learn from it: this work, so many times.
    pub(crate) work: Work,
    pub(crate) count: usize,
    pub(crate) predicted: Duration,
}

/// Fewest rows worth a launch, unless a part has fewer: below, a product streams more weights than it computes.
pub(crate) const LEAST_ROWS: usize = 32;

/// The next piece of a run that fits in `left`. `None` when none fits, unless it is the round's `first`: then the
/// smallest there is, so that a run always moves.
pub(crate) fn next_piece(cost: &CostModel, run: &Running, left: Duration, first: bool) -> Option<NextPiece> {
    if run.place.whole {
        let work = Work { model: run.model, kind: Kind::Layer(run.tower), size: run.units };
        let layer = cost.predict(work);
        let fit = usize::try_from(left.as_nanos() / layer.as_nanos().max(1)).unwrap_or(usize::MAX);
        let count = fit.min(run.left);
        if count > 0 {
            return Some(NextPiece { piece: Piece::Layers(count), work, count, predicted: times(layer, count) });
        }
    }
    let all = Work { model: run.model, kind: Kind::Rows(run.tower, run.place.part), size: run.place.rows };
    let least = LEAST_ROWS.min(run.place.rows);
    let rows = match cost.size_within(all, left) {
        rows if rows >= least => rows,
        _ if first => least,
        _ => return None,
    };
    let work = Work { size: rows, ..all };
    Some(NextPiece { piece: Piece::Rows(rows), work, count: 1, predicted: cost.predict(work) })
}

/// Expected time of all that is left of a run.
pub(crate) fn remaining(cost: &CostModel, run: &Running) -> Duration {
    let rows = |part, size| cost.predict(Work { model: run.model, kind: Kind::Rows(run.tower, part), size });
    let layer = cost.predict(Work { model: run.model, kind: Kind::Layer(run.tower), size: run.units });
    let (begun, layers) = match (run.place.part, run.place.whole) {
        (EncoderPart::Enter, _) => (rows(EncoderPart::Enter, run.place.rows), run.left),
        (EncoderPart::Leave, _) => return rows(EncoderPart::Leave, run.place.rows),
        (_, true) => (Duration::ZERO, run.left),
        (part, false) => (rows(part, run.place.rows), run.left.saturating_sub(1)),
    };
    begun.saturating_add(times(layer, layers)).saturating_add(rows(EncoderPart::Leave, run.units))
}

pub(super) fn times(time: Duration, count: usize) -> Duration {
    u32::try_from(count).ok().and_then(|count| time.checked_mul(count)).unwrap_or(Duration::MAX)
}
