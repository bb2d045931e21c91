//! Softmax attention, one query and one head at a time.

use super::{Matrix, ReferencePages};
use crate::shapes::{AttentionSpec, Mask, PagedSequence, Segment};

/// Key positions that the query at `position` sees.
fn visible(mask: Mask, position: usize, keys: usize) -> std::ops::Range<usize> {
    match mask {
        Mask::Full => 0..keys,
        Mask::Causal => 0..position + 1,
        Mask::SlidingWindow(width) => (position + 1).saturating_sub(width as usize)..position + 1,
    }
}

/// `sum_j softmax_j(scale * q . k_j) v_j`.
fn attend(query: &[f32], scale: f32, keys: &[(&[f32], &[f32])]) -> Vec<f64> {
    let dot = |k: &[f32]| query.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|(k, _)| dot(k) * f64::from(scale)).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..query.len())
        .map(|i| keys.iter().zip(&weights).map(|((_, v), w)| f64::from(v[i]) * w).sum::<f64>() / total)
        .collect()
}

/// Every query row and head of one segment; `key_value(position, head)` finds a key and its value.
fn segment<'a>(
    out: &mut Matrix,
    q: &Matrix,
    (queries, keys): (std::ops::Range<usize>, usize),
    spec: &AttentionSpec,
    key_value: impl Fn(usize, usize) -> (&'a [f32], &'a [f32]),
) {
    let (d, group) = (spec.head_dim, spec.heads / spec.kv_heads);
    for row in queries.clone() {
        // Queries are the last positions of the keys (with a full mask the position does not matter).
        let position = (keys + (row - queries.start)).wrapping_sub(queries.len());
        for head in 0..spec.heads {
            let seen: Vec<_> = visible(spec.mask, position, keys).map(|j| key_value(j, head / group)).collect();
            let columns = head * d..(head + 1) * d;
            let attended = attend(&q.row(row)[columns.clone()], spec.scale, &seen);
            for (col, value) in columns.zip(attended) {
                out.values[row * q.cols + col] = value as f32;
            }
        }
    }
}

pub(super) fn fresh(q: &Matrix, k: &Matrix, v: &Matrix, segments: &[Segment], spec: &AttentionSpec) -> Matrix {
    let mut out = Matrix::from_fn(q.rows, q.cols, |_, _| 0.0);
    let d = spec.head_dim;
    for s in segments {
        segment(&mut out, q, (s.query.clone(), s.key.len()), spec, |position, head| {
            let (row, columns) = (s.key.start + position, head * d..(head + 1) * d);
            (&k.row(row)[columns.clone()], &v.row(row)[columns])
        });
    }
    out
}

pub(super) fn paged(
    q: &Matrix,
    pages: &ReferencePages,
    sequences: &[PagedSequence<'_>],
    spec: &AttentionSpec,
) -> Matrix {
    let mut out = Matrix::from_fn(q.rows, q.cols, |_, _| 0.0);
    let (d, tokens) = (spec.head_dim, pages.layout.page_tokens);
    for s in sequences {
        segment(&mut out, q, (s.query.clone(), s.context), spec, |position, head| {
            let slot = s.table[position / tokens] as usize * tokens + position % tokens;
            let at = pages.offset(slot, head);
            (&pages.keys[at..at + d], &pages.values[at..at + d])
        });
    }
    out
}
