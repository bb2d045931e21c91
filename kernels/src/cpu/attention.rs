//! Attention: cutting the work into blocks of queries. The arithmetic of a block is in [`super::flash`].
//!
//! A block holds some query rows of one segment and all query heads that share one key head, so that a tile of keys
//! is read once for all of them. Blocks are the tasks of the pool; how queries fall into blocks has no influence on
//! their results.

use std::ops::Range;

use super::flash::{self, Block, Query, Source};
use super::parallel::Shared;
use super::tensor::Buffer;
use super::{CpuBackend, CpuPages, CpuTensor};
use crate::error::Result;
use crate::shapes::{AttentionSpec, Mask, PageLayout, PagedSequence, Segment};

/// Query vectors of a block: enough to pay for packing a tile, few enough to stay in the first-level cache.
const BLOCK_QUERIES: usize = 32;
/// Multiply-adds below which waking other threads costs more than it gives.
const SMALL: usize = 1 << 17;

/// Queries of one segment or sequence, and where their keys lie.
struct Piece<'a> {
    rows: Range<usize>,
    keys: usize,
    place: Place<'a>,
}

enum Place<'a> {
    /// Keys are consecutive rows from here.
    Rows(usize),
    Pages(PageLayout, &'a [u32]),
}

/// A piece's rows that form a block, and its key head.
struct Task {
    piece: usize,
    rows: Range<usize>,
    kv_head: usize,
}

pub(super) fn fresh(
    cpu: &CpuBackend,
    q: &CpuTensor,
    (k, v): (&CpuTensor, &CpuTensor),
    (segments, spec): (&[Segment], &AttentionSpec),
    out: &mut [f32],
) -> Result<()> {
    let pieces: Vec<_> = segments
        .iter()
        .map(|s| Piece { rows: s.query.clone(), keys: s.key.len(), place: Place::Rows(s.key.start) })
        .collect();
    run(cpu, (q, k.values(), v.values()), &pieces, spec, out)
}

pub(super) fn paged(
    cpu: &CpuBackend,
    q: &CpuTensor,
    pages: &CpuPages,
    (sequences, spec): (&[PagedSequence<'_>], &AttentionSpec),
    out: &mut [f32],
) -> Result<()> {
    let pieces: Vec<_> = sequences
        .iter()
        .map(|s| Piece { rows: s.query.clone(), keys: s.context, place: Place::Pages(pages.layout(), s.table) })
        .collect();
    run(cpu, (q, pages.keys(), pages.values()), &pieces, spec, out)
}

/// Key positions that query `row` of a piece sees.
fn visible(piece: &Piece<'_>, row: usize, mask: Mask) -> Range<usize> {
    let end = (piece.keys + row + 1).saturating_sub(piece.rows.end);
    match mask {
        Mask::Full => 0..piece.keys,
        Mask::Causal => 0..end,
        Mask::SlidingWindow(width) => end.saturating_sub(width as usize)..end,
    }
}

fn run(
    cpu: &CpuBackend,
    (q, keys, values): (&CpuTensor, &[f32], &[f32]),
    pieces: &[Piece<'_>],
    spec: &AttentionSpec,
    out: &mut [f32],
) -> Result<()> {
    let group = spec.heads / spec.kv_heads;
    let block_rows = (BLOCK_QUERIES / group).max(1);
    let mut tasks = Vec::new();
    let mut work = 0;
    for (i, piece) in pieces.iter().enumerate() {
        work += piece.rows.len() * piece.keys * q.cols();
        // Under a causal mask later rows see more keys: the long tasks go first.
        for start in piece.rows.clone().step_by(block_rows).rev() {
            let rows = start..piece.rows.end.min(start + block_rows);
            tasks.extend((0..spec.kv_heads).map(|kv_head| Task { piece: i, rows: rows.clone(), kv_head }));
        }
    }
    // Scratch is taken here, where a refused allocation can be reported.
    let together = if work < SMALL { tasks.len().max(1) } else { 1 };
    let calls = tasks.len().div_ceil(together);
    let size = flash::scratch_elements(block_rows * group, spec.head_dim);
    let scratches = Scratches::new(cpu, size, calls.min(cpu.pool.threads()))?;
    let shared = Shared::new(out);
    cpu.pool.run(calls, &|call| {
        let mut scratch = scratches.take();
        for task in &tasks[call * together..tasks.len().min((call + 1) * together)] {
            let piece = &pieces[task.piece];
            let d = spec.head_dim;
            let source = match piece.place {
                Place::Rows(start) => {
                    let stride = spec.kv_heads * d;
                    Source::Rows { first: start * stride + task.kv_head * d, stride }
                }
                Place::Pages(layout, table) => Source::Pages { layout, table, head: task.kv_head },
            };
            let queries = task.rows.clone().flat_map(|row| {
                let seen = visible(piece, row, spec.mask);
                let heads = task.kv_head * group..(task.kv_head + 1) * group;
                heads.map(move |head| Query { at: row * q.cols() + head * d, seen: seen.clone() })
            });
            let block = Block {
                queries: queries.collect(),
                q: q.values(),
                keys,
                values,
                source,
                head_dim: d,
                scale: spec.scale,
            };
            flash::attend(cpu.level, &block, scratch.values_mut(), &shared);
        }
        scratches.give(scratch);
    });
    Ok(())
}

/// One scratch a running task.
struct Scratches(std::sync::Mutex<Vec<Buffer>>);

impl Scratches {
    fn new(cpu: &CpuBackend, elements: usize, count: usize) -> Result<Self> {
        let all = (0..count).map(|_| cpu.buffer("attention", elements)).collect::<Result<_>>()?;
        Ok(Self(std::sync::Mutex::new(all)))
    }

    fn take(&self) -> Buffer {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.pop().expect("no more tasks run at once than there are threads")
    }

    fn give(&self, scratch: Buffer) {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(scratch);
    }
}
