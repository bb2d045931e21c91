//! Operations over ranges of rows: convolution and means.

use std::ops::Range;

use super::{Matrix, bias_at};
use crate::checks::conv1d_frames;
use crate::shapes::Conv1dSpec;

pub(super) fn conv1d(
    x: &Matrix,
    w: &Matrix,
    bias: Option<&Matrix>,
    segments: &[Range<usize>],
    spec: Conv1dSpec,
) -> Matrix {
    // Every output frame as (segment, first input frame, which may lie before the segment).
    let frames: Vec<(&Range<usize>, isize)> = segments
        .iter()
        .flat_map(|s| {
            let frames = conv1d_frames(s.len(), spec).unwrap_or(0);
            (0..frames).map(move |i| (s, (s.start + i * spec.stride) as isize - spec.padding as isize))
        })
        .collect();
    Matrix::from_fn(frames.len(), w.rows, |row, col| {
        let (segment, first) = &frames[row];
        let mut sum = bias_at(bias, col);
        for t in 0..spec.kernel {
            let frame = first + t as isize;
            if frame >= segment.start as isize && frame < segment.end as isize {
                for c in 0..x.cols {
                    sum += x.at(frame as usize, c) * w.at(col, t * x.cols + c);
                }
            }
        }
        sum
    })
}

pub(super) fn mean_rows(x: &Matrix, segments: &[Range<usize>], n: usize) -> Matrix {
    let firsts: Vec<usize> = segments.iter().flat_map(|s| (0..s.len() / n).map(|i| s.start + i * n)).collect();
    Matrix::from_fn(firsts.len(), x.cols, |row, col| {
        (firsts[row]..firsts[row] + n).map(|i| x.at(i, col)).sum::<f64>() / n as f64
    })
}
