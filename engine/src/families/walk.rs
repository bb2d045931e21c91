//! An encoder run on its way through a tower, and the pieces it can stop between. Owns the rows between two pieces; knows
//! no weights, no time and no budget.
//!
//! ```text
//! enter rows -> [ project rows -> (all keys are there) -> finish rows ] x layers -> leave rows
//! ```
//!
//! Every part works row by row but for the attention, whose query rows are independent too once all keys are there. So
//! a part may be cut anywhere, and the result is the same, bit for bit (row invariance of the backend).

use std::ops::Range;

use weft_kernels::Backend;
use weft_kernels::shapes::{AttentionSpec, Segment};

use crate::error::{EngineError, ErrorKind, Result};

/// A part of an encoder whose rows can be cut into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// Patch embedding or convolutions.
    Enter,
    /// Queries, keys and values of a layer; where a run stands between two layers.
    Project,
    /// Attention of a layer's query rows and all behind it.
    Finish,
    /// What makes prompt rows of the last layer's rows.
    Leave,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The part that comes next.
    pub part: Part,
    /// Its rows to go.
    pub rows: usize,
    /// No row of the layer went through yet, so whole layers can run.
    pub whole: bool,
}

/// What one launch does with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// This many layers. Only between two layers.
    Layers(usize),
    /// At most this many rows of the part that comes next.
    Rows(usize),
}

/// A tower with the media of one run, as its layers are walked.
pub(super) trait Tower<B: Backend> {
    /// Input rows from `from` on, at most `most` of them if they can be cut there; the rows they give, and where the next
    /// piece begins.
    fn enter(&self, backend: &B, input: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)>;
    /// Query, key and value of `x`, which are these rows of the run.
    fn project(&self, backend: &B, layer: usize, x: &B::Tensor, rows: Range<usize>) -> Result<[B::Tensor; 3]>;
    /// Who sees whom in a layer.
    fn attention(&self, layer: usize) -> (&[Segment], &AttentionSpec);
    /// The rows after the layer, of the rows before it and of what they attended to.
    fn finish(&self, backend: &B, layer: usize, x: &B::Tensor, attended: &B::Tensor) -> Result<B::Tensor>;
    /// As [`Tower::enter`], for the rows of the last layer.
    fn leave(&self, backend: &B, x: &B::Tensor, from: usize, most: usize) -> Result<(B::Tensor, usize)>;
    /// The rows of each medium of the run, in order, of all rows that left.
    fn outputs(&self, backend: &B, rows: B::Tensor) -> Result<Vec<B::Tensor>>;
}

/// A run's rows.
pub(super) struct Walk<B: Backend> {
    layers: usize,
    done: usize,
    /// Rows that enter the current part, and how many they are.
    hidden: B::Tensor,
    rows: usize,
    next: usize,
    stage: Stage<B>,
}

/// The current part with its results so far.
enum Stage<B: Backend> {
    Enter(Vec<B::Tensor>),
    Project([Vec<B::Tensor>; 3]),
    Finish { operands: [B::Tensor; 3], parts: Vec<B::Tensor> },
    Leave(Vec<B::Tensor>),
}

impl<B: Backend> Walk<B> {
    /// A run over this input; nothing ran yet.
    pub(super) fn new(backend: &B, input: B::Tensor, layers: usize) -> Self {
        let rows = backend.shape(&input).0;
        Self { layers, done: 0, hidden: input, rows, next: 0, stage: Stage::Enter(Vec::new()) }
    }

    pub(super) const fn layers(&self) -> usize {
        self.layers
    }

    pub(super) const fn done(&self) -> usize {
        self.done
    }

    pub(super) fn place(&self) -> Place {
        let part = match self.stage {
            Stage::Enter(_) => Part::Enter,
            Stage::Project(_) => Part::Project,
            Stage::Finish { .. } => Part::Finish,
            Stage::Leave(_) => Part::Leave,
        };
        Place { part, rows: self.rows - self.next, whole: part == Part::Project && self.next == 0 }
    }

    /// Runs up to `layers` more layers with what comes before and after them; `Some` when the run is finished.
    pub(super) fn advance(&mut self, backend: &B, tower: &dyn Tower<B>, layers: usize) -> Result<Option<B::Tensor>> {
        let until = self.done.saturating_add(layers).min(self.layers);
        while self.done < until {
            let piece = if self.place().whole { Piece::Layers(until - self.done) } else { Piece::Rows(usize::MAX) };
            self.piece(backend, tower, piece)?;
        }
        while self.done == self.layers {
            if let Some(left) = self.piece(backend, tower, Piece::Rows(usize::MAX))? {
                return Ok(Some(left));
            }
        }
        Ok(None)
    }

    /// Runs one piece; `Some` when it was the last.
    pub(super) fn piece(&mut self, backend: &B, tower: &dyn Tower<B>, piece: Piece) -> Result<Option<B::Tensor>> {
        match piece {
            Piece::Layers(count) if self.place().whole => {
                for layer in self.done..self.done.saturating_add(count).min(self.layers) {
                    let [query, key, value] = tower.project(backend, layer, &self.hidden, 0..self.rows)?;
                    let (segments, spec) = tower.attention(layer);
                    let attended = backend.attention(&query, &key, &value, segments, spec)?;
                    self.hidden = tower.finish(backend, layer, &self.hidden, &attended)?;
                    self.between(layer + 1);
                }
                Ok(None)
            }
            Piece::Layers(_) => Err(EngineError::new(ErrorKind::Internal, "a layer was to run whole from its middle")),
            Piece::Rows(most) => self.some_rows(backend, tower, most.max(1)),
        }
    }

    /// Stands before layer `done`, or before the last part.
    fn between(&mut self, done: usize) {
        self.done = done;
        self.next = 0;
        self.stage = if done < self.layers { Stage::Project(Default::default()) } else { Stage::Leave(Vec::new()) };
    }

    fn some_rows(&mut self, backend: &B, tower: &dyn Tower<B>, most: usize) -> Result<Option<B::Tensor>> {
        let (start, layer) = (self.next, self.done);
        let end = start.saturating_add(most).min(self.rows);
        match &mut self.stage {
            Stage::Enter(parts) => {
                let (part, next) = tower.enter(backend, &self.hidden, start, most)?;
                parts.push(part);
                self.next = next;
                if next >= self.rows {
                    self.hidden = joined(backend, std::mem::take(parts))?;
                    self.rows = backend.shape(&self.hidden).0;
                    self.between(0);
                }
            }
            Stage::Project(parts) => {
                let x = slice(backend, &self.hidden, start..end, self.rows)?;
                let found = tower.project(backend, layer, &x, start..end)?;
                parts.iter_mut().zip(found).for_each(|(parts, part)| parts.push(part));
                self.next = end;
                if end == self.rows {
                    let [query, key, value] = std::mem::take(parts);
                    let operands = [joined(backend, query)?, joined(backend, key)?, joined(backend, value)?];
                    self.stage = Stage::Finish { operands, parts: Vec::new() };
                    self.next = 0;
                }
            }
            Stage::Finish { operands: [query, key, value], parts } => {
                let x = slice(backend, &self.hidden, start..end, self.rows)?;
                let query = slice(backend, query, start..end, self.rows)?;
                let (segments, spec) = tower.attention(layer);
                let attended = backend.attention(&query, key, value, &seen(segments, start..end), spec)?;
                parts.push(tower.finish(backend, layer, &x, &attended)?);
                self.next = end;
                if end == self.rows {
                    self.hidden = joined(backend, std::mem::take(parts))?;
                    self.between(layer + 1);
                }
            }
            Stage::Leave(parts) => {
                let (part, next) = tower.leave(backend, &self.hidden, start, most)?;
                parts.push(part);
                self.next = next;
                if next >= self.rows {
                    return joined(backend, std::mem::take(parts)).map(Some);
                }
            }
        }
        Ok(None)
    }
}

/// The segments of these query rows, numbered from their first.
fn seen(segments: &[Segment], rows: Range<usize>) -> Vec<Segment> {
    let part = |segment: &Segment| {
        let (start, end) = (segment.query.start.max(rows.start), segment.query.end.min(rows.end));
        (start < end).then(|| Segment { query: start - rows.start..end - rows.start, key: segment.key.clone() })
    };
    segments.iter().filter_map(part).collect()
}

/// These rows of `x`, which has `all` rows.
pub(super) fn slice<B: Backend>(backend: &B, x: &B::Tensor, rows: Range<usize>, all: usize) -> Result<B::Tensor> {
    if rows == (0..all) {
        return Ok(x.clone());
    }
    let rows: Vec<u32> = rows.map(|row| row as u32).collect();
    Ok(backend.gather_rows(x, &rows)?)
}

fn joined<B: Backend>(backend: &B, mut parts: Vec<B::Tensor>) -> Result<B::Tensor> {
    match parts.len() {
        1 => Ok(parts.remove(0)),
        _ => Ok(backend.concat_rows(&parts.iter().collect::<Vec<_>>())?),
    }
}
