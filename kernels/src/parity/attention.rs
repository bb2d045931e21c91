//! Attention over fresh keys and over pages; that they agree bit for bit however a prompt is chunked and batched; and
//! that keys which a query must not see have no influence, whatever they hold.

use std::ops::Range;

use super::inputs::Input;
use super::{NARROW_ROWS, Suite, values};
use crate::backend::Backend;
use crate::error::Result;
use crate::shapes::{AttentionSpec, Mask, PageLayout, PagedSequence, Segment};

/// Softmax in `f32` over up to some thousand keys of variance 1.
const TOLERANCE: f64 = 5e-6;

fn spec(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), mask }
}

const SPECS: [(usize, usize, usize, Mask); 11] = [
    (1, 1, 6, Mask::Full),
    (6, 6, 64, Mask::Full),
    (2, 2, 80, Mask::Full),
    (4, 4, 20, Mask::Causal),
    (9, 3, 64, Mask::Causal),
    (8, 2, 128, Mask::Causal),
    (3, 1, 72, Mask::Causal),
    (7, 1, 128, Mask::Causal),
    (2, 2, 96, Mask::Causal),
    (4, 2, 64, Mask::SlidingWindow(1)),
    (4, 2, 32, Mask::SlidingWindow(37)),
];

/// Queries, keys and values of `n` tokens. Scores have some spread, so that the softmax is not flat.
struct Tokens {
    q: Input,
    k: Input,
    v: Input,
}

impl Tokens {
    fn new<B>(suite: &mut Suite<'_, B>, (queries, keys): (usize, usize), s: &AttentionSpec) -> Self {
        Self {
            q: suite.random.input(queries, s.heads * s.head_dim, 2.0),
            k: suite.random.input(keys, s.kv_heads * s.head_dim, 1.0),
            v: suite.random.input(keys, s.kv_heads * s.head_dim, 1.0),
        }
    }
}

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    for (heads, kv_heads, head_dim, mask) in SPECS {
        let s = spec(heads, kv_heads, head_dim, mask);
        let name = |what: &str| format!("{what} {heads}/{kv_heads} x {head_dim} {mask:?}");
        fresh(suite, &s, &name);
        let outcome = chunked(suite, &s).map_err(|e| e.to_string()).and_then(|fault| match fault {
            None => Ok(()),
            Some(fault) => Err(fault),
        });
        suite.note(name("attention, chunks and batches,"), (0.0, 0.0), outcome);
        for page_tokens in [16, 5, 64] {
            paged(suite, &s, page_tokens, &name);
        }
    }
}

fn fresh<B: Backend>(suite: &mut Suite<'_, B>, s: &AttentionSpec, name: &dyn Fn(&str) -> String) {
    let t = Tokens::new(suite, (211, 211), s);
    let segments = [0..1, 1..4, 4..68, 68..101, 101..211].map(Segment::both);
    values!(suite, name("attention"), TOLERANCE, |b| {
        b.attention(&t.q.on(b)?, &t.k.on(b)?, &t.v.on(b)?, &segments, s)
    });
    // Cross attention: other keys than queries, shared by two segments, out of order, and some seen by nobody.
    let mut t = Tokens::new(suite, (40, 600), s);
    t.k.values[..3 * t.k.cols].fill(f32::NAN);
    t.v.values[..3 * t.v.cols].fill(f32::NAN);
    let segments = [
        Segment { query: 11..40, key: 3..503 },
        Segment { query: 0..9, key: 3..503 },
        Segment { query: 9..11, key: 595..600 },
    ];
    values!(suite, name("attention to other keys"), TOLERANCE, |b| {
        b.attention(&t.q.on(b)?, &t.k.on(b)?, &t.v.on(b)?, &segments, s)
    });
    // Later keys that are not numbers reach only the queries that see them.
    let mut t = Tokens::new(suite, (90, 90), s);
    t.k.values[85 * t.k.cols..].fill(f32::NAN);
    t.v.values[85 * t.v.cols..].fill(f32::NAN);
    // (With bf16 activations queries share a tile of keys, whose weights of zero do not silence a NaN.)
    if s.mask != Mask::Full && !suite.narrow {
        values!(suite, name("attention before NaN"), TOLERANCE, |b| {
            b.attention(&t.q.on(b)?, &t.k.on(b)?, &t.v.on(b)?, &[Segment::both(0..90)], s)
        });
    }
    // Scores far apart: the largest must be subtracted before the exponential.
    let mut t = Tokens::new(suite, (35, 35), s);
    t.q.values.iter_mut().for_each(|q| *q *= 60.0);
    values!(suite, name("attention, large scores,"), 1e-3, |b| {
        b.attention(&t.q.on(b)?, &t.k.on(b)?, &t.v.on(b)?, &[Segment::both(0..35)], s)
    });
}

/// Pages with the tokens written through a shuffled table; every other slot holds NaN.
fn write<B: Backend>(b: &B, t: &Tokens, layout: PageLayout, table: &[u32]) -> Result<B::Pages> {
    let count = table.len();
    let mut pages = b.pages(layout, count)?;
    let all: Vec<u32> = (0..(count * layout.page_tokens) as u32).collect();
    let nan = b.upload(all.len(), t.k.cols, &vec![f32::NAN; all.len() * t.k.cols])?;
    b.kv_write(&mut pages, &nan, &nan, &all)?;
    let slots: Vec<u32> = (0..t.k.rows())
        .map(|i| table[i / layout.page_tokens] * layout.page_tokens as u32 + (i % layout.page_tokens) as u32)
        .collect();
    b.kv_write(&mut pages, &t.k.on(b)?, &t.v.on(b)?, &slots)?;
    Ok(pages)
}

fn paged<B: Backend>(suite: &mut Suite<'_, B>, s: &AttentionSpec, page_tokens: usize, name: &dyn Fn(&str) -> String) {
    let layout = PageLayout { page_tokens, kv_heads: s.kv_heads, head_dim: s.head_dim };
    // Six rows of queries over one store of 777 tokens: decode steps and chunks at different contexts.
    let t = Tokens::new(suite, (68, 777), s);
    let table = suite.random.shuffled(777usize.div_ceil(page_tokens) + 2);
    let sequences: Vec<_> = [(0..1, 777), (1..2, 1), (2..3, 64), (3..43, 300), (43..67, 24), (67..68, 513)]
        .into_iter()
        .map(|(query, context)| PagedSequence { query, context, table: &table })
        .collect();
    values!(suite, name(&format!("paged_attention, pages of {page_tokens},")), TOLERANCE, |b| {
        let pages = write(b, &t, layout, &table)?;
        b.paged_attention(&t.q.on(b)?, &pages, &sequences, s)
    });
}

/// 300 tokens at once over fresh keys, at once over pages, in chunks, one by one, and beside another sequence: the
/// same bits. Returns what differs.
fn chunked<B: Backend>(suite: &mut Suite<'_, B>, s: &AttentionSpec) -> Result<Option<String>> {
    const N: usize = 300;
    let t = Tokens::new(suite, (N, N), s);
    let b = suite.backend;
    // Chunks of one query and of several go to different kernels of a bf16 backend.
    let company = NARROW_ROWS + 1;
    let whole = b.attention(&t.q.on(b)?, &t.k.on(b)?, &t.v.on(b)?, &[Segment::both(0..N)], s)?;
    let whole = b.download(&whole)?;
    let rows_of_whole = |rows: &Range<usize>| &whole[rows.start * t.q.cols..rows.end * t.q.cols];

    // A query alone over the keys it sees (with a full mask: all of them).
    for row in [0, 1, 31, 63, 64, 65, 128, 257, N - 1] {
        let keys = if s.mask == Mask::Full { 0..N } else { 0..row + 1 };
        let alone = [Segment { query: 0..1, key: keys }];
        let got = b.attention(&t.q.part(b, row..row + 1)?, &t.k.on(b)?, &t.v.on(b)?, &alone, s)?;
        if !suite.alike(company, &b.download(&got)?, rows_of_whole(&(row..row + 1))) {
            return Ok(Some(format!("query {row} alone differs")));
        }
    }
    for page_tokens in [16, 7] {
        let layout = PageLayout { page_tokens, kv_heads: s.kv_heads, head_dim: s.head_dim };
        let table = suite.random.shuffled(N.div_ceil(page_tokens));
        let pages = write(b, &t, layout, &table)?;
        for cuts in [vec![N], vec![1, 2, 50, 64, 191, N], vec![128, 256, N], (1..=N).step_by(13).chain([N]).collect()] {
            let chunks: Vec<Range<usize>> = std::iter::once(0)
                .chain(cuts.iter().copied())
                .zip(cuts.iter().copied())
                .filter(|(start, end)| start < end)
                .map(|(start, end)| start..end)
                .collect();
            let context = |chunk: &Range<usize>| if s.mask == Mask::Full { N } else { chunk.end };
            // Each chunk in a call of its own, then all in one call as if they were different requests.
            for chunk in &chunks {
                let alone = [PagedSequence { query: 0..chunk.len(), context: context(chunk), table: &table }];
                let got = b.download(&b.paged_attention(&t.q.part(b, chunk.clone())?, &pages, &alone, s)?)?;
                if !suite.alike(company, &got, rows_of_whole(chunk)) {
                    return Ok(Some(format!("chunk {chunk:?} over pages of {page_tokens} differs")));
                }
            }
            let batch: Vec<_> = chunks
                .iter()
                .map(|chunk| PagedSequence { query: chunk.clone(), context: context(chunk), table: &table })
                .collect();
            let got = b.download(&b.paged_attention(&t.q.on(b)?, &pages, &batch, s)?)?;
            if !suite.alike(company, &got, &whole) {
                return Ok(Some(format!("a batch of {} chunks over pages of {page_tokens} differs", batch.len())));
            }
        }
    }
    Ok(None)
}
