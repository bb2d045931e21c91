//! Softmax attention of one block of queries over one key head, tile by tile, never storing all scores
//! (Dao et al., "FlashAttention", 2022; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//!
//! ```text
//! key positions   0 ........ 63 | 64 ........ 127 | 128 ...        tiles, anchored at position 0
//! query           largest, sum and weighted values so far, rescaled when a tile holds a larger score
//! ```
//!
//! A query meets the tiles in order, and within a tile every step has an order that belongs to the key positions:
//! so its result is the same bits whether it is computed alone, in a chunk of a prompt or beside others, over rows or
//! over pages of any size. Keys that a query does not see are never multiplied into it, whatever they hold.

#![expect(unsafe_code, reason = "vector kernels over raw rows")]

use std::ops::Range;

use super::parallel::Shared;
use super::simd::math::exp;
use super::simd::{Lanes, by_isa};
use crate::shapes::PageLayout;

/// A tile's keys; a constant of the head size, so that tiles of keys and of values each stay in the first-level cache.
const fn tile_keys(head_dim: usize) -> usize {
    if head_dim <= 80 { MOST_KEYS } else { MOST_KEYS / 2 }
}

const MOST_KEYS: usize = 64;
/// From this many queries on, a tile is copied together before use.
const PACKED_FROM: usize = 4;

/// One head of one query row.
pub(super) struct Query {
    /// Where it lies in the queries, and its result in the result.
    pub(super) at: usize,
    /// Key positions that it sees; not empty.
    pub(super) seen: Range<usize>,
}

/// Where the key of a position lies, in the keys and likewise in the values.
pub(super) enum Source<'a> {
    Rows { first: usize, stride: usize },
    Pages { layout: PageLayout, table: &'a [u32], head: usize },
}

impl Source<'_> {
    fn at(&self, position: usize) -> usize {
        match *self {
            Self::Rows { first, stride } => first + position * stride,
            Self::Pages { layout: PageLayout { page_tokens, kv_heads, head_dim }, table, head } => {
                let (page, token) = (table[position / page_tokens] as usize, position % page_tokens);
                ((page * kv_heads + head) * page_tokens + token) * head_dim
            }
        }
    }
}

/// Queries that share a key head and a source of keys.
pub(super) struct Block<'a> {
    pub(super) queries: Vec<Query>,
    pub(super) q: &'a [f32],
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) source: Source<'a>,
    pub(super) head_dim: usize,
    pub(super) scale: f32,
}

/// Head sizes are padded with zeros to whole vectors of every instruction set.
const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(16)
}

/// Elements of scratch for a block of this many queries.
pub(super) fn scratch_elements(queries: usize, head_dim: usize) -> usize {
    let (d, tile) = (padded(head_dim), tile_keys(head_dim));
    queries * (2 * d + tile + 2) + 2 * tile * d + 16
}

/// The scratch of a block, cut up. `d` is the padded head size.
struct Scratch<'a> {
    /// Tiles of keys and of values, `[tile][d]`, on a cache line.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Scaled queries, `[queries][d]`.
    queries: &'a mut [f32],
    /// Weighted values so far, `[queries][d]`.
    sums: &'a mut [f32],
    /// Scores of the tile, then their weights, `[queries][tile]`.
    weights: &'a mut [f32],
    largest: &'a mut [f32],
    totals: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn new(all: &'a mut [f32], queries: usize, (d, tile): (usize, usize)) -> Self {
        let skip = all.as_ptr().align_offset(64).min(15);
        let (keys, rest) = all[skip..].split_at_mut(tile * d);
        let (values, rest) = rest.split_at_mut(tile * d);
        let (q, rest) = rest.split_at_mut(queries * d);
        let (sums, rest) = rest.split_at_mut(queries * d);
        let (weights, rest) = rest.split_at_mut(queries * tile);
        let (largest, rest) = rest.split_at_mut(queries);
        Self { keys, values, queries: q, sums, weights, largest, totals: &mut rest[..queries] }
    }
}

by_isa! {
    /// Writes the results of the block's queries; no other task may write them meanwhile.
    pub(super) fn attend[attend_lanes](block: &Block<'_>, scratch: &mut [f32], out: &Shared<'_>)
}

/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn attend_lanes<L: Lanes>(block: &Block<'_>, scratch: &mut [f32], out: &Shared<'_>) {
    let n = block.queries.len();
    let (d, tile) = (padded(block.head_dim), tile_keys(block.head_dim));
    let s = Scratch::new(scratch, n, (d, tile));
    for (query, to) in block.queries.iter().zip(s.queries.chunks_exact_mut(d)) {
        let from = &block.q[query.at..query.at + block.head_dim];
        to.iter_mut().zip(from).for_each(|(to, q)| *to = q * block.scale);
        to[block.head_dim..].fill(0.0);
    }
    s.sums.fill(0.0);
    s.largest.fill(f32::NEG_INFINITY);
    s.totals.fill(0.0);

    let first = block.queries.iter().map(|q| q.seen.start).min().unwrap_or(0);
    let end = block.queries.iter().map(|q| q.seen.end).max().unwrap_or(0);
    let mut seen = vec![0..0; n];
    for start in (first - first % tile..end).step_by(tile) {
        let keys = tile.min(end - start);
        for (seen, query) in seen.iter_mut().zip(&block.queries) {
            let clip = |position: usize| position.clamp(start, start + keys) - start;
            *seen = clip(query.seen.start)..clip(query.seen.end);
        }
        let mut offsets = [0usize; MOST_KEYS];
        for (j, offset) in offsets[..keys].iter_mut().enumerate() {
            *offset = block.source.at(start + j);
            assert!(*offset + block.head_dim <= block.keys.len().min(block.values.len()), "a key within the operands");
        }
        let packed = n >= PACKED_FROM || d != block.head_dim;
        if packed {
            pack(block.keys, &offsets[..keys], block.head_dim, s.keys);
            pack(block.values, &offsets[..keys], block.head_dim, s.values);
            offsets.iter_mut().take(keys).enumerate().for_each(|(j, offset)| *offset = j * d);
        }
        // Lanes without a key read the first one; their scores are dropped.
        let spare = offsets[0];
        offsets[keys..].fill(spare);
        let (key_rows, value_rows) =
            if packed { (s.keys.as_ptr(), s.values.as_ptr()) } else { (block.keys.as_ptr(), block.values.as_ptr()) };
        for (i, seen) in seen.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
            // SAFETY: every offset has `d` elements behind it, by the assertion above or by packing; `i` is a query
            // of the scratch; the instruction set is the caller's promise.
            unsafe {
                let weights = &mut s.weights[i * tile..(i + 1) * tile];
                score::<L>(&s.queries[i * d..(i + 1) * d], key_rows, &offsets, seen, weights);
                let shrink = soften::<L>(weights, seen, &mut s.largest[i], &mut s.totals[i]);
                if shrink != 1.0 {
                    rescale::<L>(&mut s.sums[i * d..(i + 1) * d], shrink);
                }
            }
        }
        let mut i = 0;
        while i < n {
            let four = i + 4 <= n && seen[i + 1..i + 4].iter().all(|other| *other == seen[i]);
            // SAFETY: as above.
            unsafe {
                let weights = s.weights[i * tile..].as_ptr();
                let sums = s.sums[i * d..].as_mut_ptr();
                let rows = Rows { values: value_rows, offsets: &offsets[seen[i].clone()], d };
                if four {
                    weigh::<L, 4>(&rows, (weights.add(seen[i].start), tile), sums);
                } else {
                    weigh::<L, 1>(&rows, (weights.add(seen[i].start), tile), sums);
                }
            }
            i += if four { 4 } else { 1 };
        }
    }
    for (i, query) in block.queries.iter().enumerate() {
        // SAFETY: a query belongs to one block, and a block to one task.
        let out = unsafe { out.range(query.at..query.at + block.head_dim) };
        let inverse = 1.0 / s.totals[i];
        out.iter_mut().zip(&s.sums[i * d..]).for_each(|(out, sum)| *out = sum * inverse);
    }
}

/// Rows side by side, padded with zeros.
#[inline(always)]
fn pack(from: &[f32], offsets: &[usize], head_dim: usize, to: &mut [f32]) {
    for (to, &offset) in to.chunks_exact_mut(padded(head_dim)).zip(offsets) {
        to[..head_dim].copy_from_slice(&from[offset..offset + head_dim]);
        to[head_dim..].fill(0.0);
    }
}

/// Whole vectors of the tile that hold the seen keys.
#[inline(always)]
fn vectors<L: Lanes>(seen: &Range<usize>) -> impl Iterator<Item = usize> + use<L> {
    (seen.start / L::WIDTH * L::WIDTH..seen.end).step_by(L::WIDTH)
}

/// Products of a query with the keys it sees; minus infinity for the others of the same vectors.
#[inline(always)]
unsafe fn score<L: Lanes>(
    query: &[f32],
    keys: *const f32,
    offsets: &[usize; MOST_KEYS],
    seen: &Range<usize>,
    scores: &mut [f32],
) {
    for at in vectors::<L>(seen) {
        // SAFETY: as promised by the caller.
        unsafe {
            L::dots(query.as_ptr(), keys, offsets[at..].as_ptr(), query.len()).store(scores[at..].as_mut_ptr());
        }
        let vector = at..at + L::WIDTH;
        if seen.start > vector.start || seen.end < vector.end {
            for j in vector {
                scores[j] = if seen.contains(&j) { scores[j] } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Scores to weights relative to the largest score so far; returns the factor on what was summed before.
#[inline(always)]
unsafe fn soften<L: Lanes>(scores: &mut [f32], seen: &Range<usize>, largest: &mut f32, total: &mut f32) -> f32 {
    // SAFETY: as promised by the caller; a tile is whole vectors.
    unsafe {
        let mut most = L::splat(*largest);
        for at in vectors::<L>(seen) {
            most = most.max(L::load(scores[at..].as_ptr()));
        }
        let most = most.largest();
        let mut sum = L::splat(0.0);
        for at in vectors::<L>(seen) {
            let weights = exp(L::load(scores[at..].as_ptr()).sub(L::splat(most)));
            weights.store(scores[at..].as_mut_ptr());
            sum = sum.add(weights);
        }
        let shrink = if *largest == most { 1.0 } else { exp_one::<L>(*largest - most) };
        *total = *total * shrink + sum.total();
        *largest = most;
        shrink
    }
}

#[inline(always)]
unsafe fn exp_one<L: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; 16];
    // SAFETY: as promised by the caller; no vector has more lanes.
    unsafe { exp(L::splat(x)).store(lanes.as_mut_ptr()) };
    lanes[0]
}

#[inline(always)]
unsafe fn rescale<L: Lanes>(sums: &mut [f32], factor: f32) {
    for sums in sums.chunks_exact_mut(L::WIDTH) {
        // SAFETY: as promised by the caller.
        unsafe { L::load(sums.as_ptr()).mul(L::splat(factor)).store(sums.as_mut_ptr()) };
    }
}

/// Rows of values by offset, `d` elements each.
struct Rows<'a> {
    values: *const f32,
    offsets: &'a [usize],
    d: usize,
}

/// Adds the weighted rows to `Q` neighbouring queries, whose weights lie `stride` apart and sums `d` apart.
#[inline(always)]
unsafe fn weigh<L: Lanes, const Q: usize>(rows: &Rows<'_>, weights: (*const f32, usize), sums: *mut f32) {
    // SAFETY: as promised by the caller; the columns of one call follow those of the other.
    unsafe {
        let mut at = 0;
        if L::WIDTH == 16 {
            while at + 4 * L::WIDTH <= rows.d {
                weigh_columns::<L, Q, 4>(rows, weights, sums, at);
                at += 4 * L::WIDTH;
            }
        }
        while at + 2 * L::WIDTH <= rows.d {
            weigh_columns::<L, Q, 2>(rows, weights, sums, at);
            at += 2 * L::WIDTH;
        }
        while at < rows.d {
            weigh_columns::<L, Q, 1>(rows, weights, sums, at);
            at += L::WIDTH;
        }
    }
}

/// `V` vectors of columns from `at` on, in registers over all rows.
#[inline(always)]
unsafe fn weigh_columns<L: Lanes, const Q: usize, const V: usize>(
    rows: &Rows<'_>,
    (weights, stride): (*const f32, usize),
    sums: *mut f32,
    at: usize,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let sums: [*mut f32; Q] = std::array::from_fn(|q| sums.add(q * rows.d + at));
        let mut held = [[L::splat(0.0); V]; Q];
        for q in 0..Q {
            for v in 0..V {
                held[q][v] = L::load(sums[q].add(v * L::WIDTH));
            }
        }
        for (j, offset) in rows.offsets.iter().enumerate() {
            let row = rows.values.add(offset + at);
            let mut vectors = [L::splat(0.0); V];
            for v in 0..V {
                vectors[v] = L::load(row.add(v * L::WIDTH));
            }
            for q in 0..Q {
                let weight = L::splat(*weights.add(q * stride + j));
                for v in 0..V {
                    held[q][v] = weight.mul_add(vectors[v], held[q][v]);
                }
            }
        }
        for q in 0..Q {
            for v in 0..V {
                held[q][v].store(sums[q].add(v * L::WIDTH));
            }
        }
    }
}
