//! Operand checks of every operation, shared by all backends, so that the same fault gives the same error everywhere.
//!
//! Shapes are `(rows, columns)`. A check that also works out the shape of the result returns it.

use std::ops::Range;

use crate::error::{KernelError, Result};
use crate::shapes::{
    AttentionSpec, Conv1dSpec, Mask, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Segment,
};
use crate::weights::WeightData;

/// `(rows, columns)` of a tensor or weight.
pub type Shape = (usize, usize);

fn ensure(holds: bool, op: &'static str, detail: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(KernelError::shape(op, detail())) }
}

fn show((rows, cols): Shape) -> String {
    format!("[{rows}, {cols}]")
}

/// `rows * cols` values were given.
pub fn upload(rows: usize, cols: usize, values: usize) -> Result<()> {
    ensure(rows.checked_mul(cols) == Some(values), "upload", || {
        format!("{values} values given for {}", show((rows, cols)))
    })
}

/// The bytes of a weight fit its shape, and its rows are whole blocks.
pub fn weight(data: &WeightData<'_>) -> Result<()> {
    let (rows, cols, format) = (data.rows, data.cols, data.format);
    let block = format.block_elements();
    ensure(cols % block == 0, "weight", || {
        format!("rows of {cols} elements in {format:?}, whose blocks hold {block}")
    })?;
    let bytes = rows.checked_mul(cols / block).and_then(|blocks| blocks.checked_mul(format.block_bytes()));
    ensure(bytes == Some(data.bytes.len()), "weight", || {
        format!("{} bytes given for {} in {format:?}", data.bytes.len(), show((rows, cols)))
    })
}

/// Every number is below `limit`.
fn below(op: &'static str, what: &str, numbers: &[u32], limit: usize) -> Result<()> {
    match numbers.iter().find(|&&n| n as usize >= limit) {
        None => Ok(()),
        Some(n) => Err(KernelError::shape(op, format!("{what} {n} of {limit}"))),
    }
}

/// Ids are rows of the table.
pub fn embed(table: Shape, ids: &[u32]) -> Result<()> {
    below("embed", "id", ids, table.0)
}

/// `x [rows, inputs]`, `w [outputs, inputs]`, `bias [1, outputs]`.
pub fn linear(op: &'static str, x: Shape, w: Shape, bias: Option<Shape>) -> Result<()> {
    ensure(x.1 == w.1, op, || format!("input {} and weight {} differ in columns", show(x), show(w)))?;
    match bias {
        Some(bias) => {
            ensure(bias == (1, w.0), op, || format!("bias {} given, {} expected", show(bias), show((1, w.0))))
        }
        None => Ok(()),
    }
}

fn within(op: &'static str, segments: &[Range<usize>], rows: usize) -> Result<()> {
    match segments.iter().find(|s| s.start > s.end || s.end > rows) {
        None => Ok(()),
        Some(s) => Err(KernelError::shape(op, format!("segment {s:?} of {rows} rows"))),
    }
}

/// Frames that a convolution makes of `frames`.
pub fn conv1d_frames(frames: usize, spec: Conv1dSpec) -> Option<usize> {
    (frames + 2 * spec.padding).checked_sub(spec.kernel).map(|room| room / spec.stride + 1)
}

/// Returns the number of output rows.
pub fn conv1d(x: Shape, w: Shape, bias: Option<Shape>, segments: &[Range<usize>], spec: Conv1dSpec) -> Result<usize> {
    let op = "conv1d";
    ensure(spec.kernel > 0 && spec.stride > 0, op, || format!("kernel and stride must be positive: {spec:?}"))?;
    linear(op, (x.0, spec.kernel * x.1), w, bias)?;
    within(op, segments, x.0)?;
    segments.iter().try_fold(0, |rows, s| match conv1d_frames(s.len(), spec) {
        Some(frames) => Ok(rows + frames),
        None => Err(KernelError::shape(op, format!("segment {s:?} is shorter than the kernel: {spec:?}"))),
    })
}

/// `weight [1, group]` where the group divides the row.
pub fn rms_norm(op: &'static str, x: Shape, weight: Shape) -> Result<()> {
    ensure(weight.0 == 1 && weight.1 > 0 && x.1.is_multiple_of(weight.1), op, || {
        format!("weight {} does not divide rows of {}", show(weight), show(x))
    })
}

/// Two tensors of one shape.
pub fn same(op: &'static str, a: Shape, b: Shape) -> Result<()> {
    ensure(a == b, op, || format!("{} and {} differ", show(a), show(b)))
}

/// `weight` and `bias` are `[1, columns]`.
pub fn layer_norm(x: Shape, weight: Shape, bias: Option<Shape>) -> Result<()> {
    for given in [Some(weight), bias].into_iter().flatten() {
        ensure(given == (1, x.1), "layer_norm", || {
            format!("weight or bias {} given for {}, {} expected", show(given), show(x), show((1, x.1)))
        })?;
    }
    Ok(())
}

/// `b` has the shape of `a`, or one row of it.
pub fn add(a: Shape, b: Shape) -> Result<()> {
    ensure(a.1 == b.1 && (b.0 == a.0 || b.0 == 1), "add", || format!("{} cannot be added to {}", show(b), show(a)))
}

/// Returns the number of rows.
pub fn rotary_table(frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<usize> {
    let op = "rotary_table";
    let RotaryFrequencies { inverse, axis, .. } = frequencies;
    ensure(inverse.len() == axis.len(), op, || {
        format!("{} frequencies and {} axes of pairs", inverse.len(), axis.len())
    })?;
    ensure(axes > 0 && positions.len().is_multiple_of(axes), op, || {
        format!("{} position components do not make rows of {axes}", positions.len())
    })?;
    ensure(axis.iter().all(|&a| (a as usize) < axes), op, || format!("a pair names an axis beyond {axes}"))?;
    Ok(positions.len() / axes)
}

/// Returns the number of pairs.
pub fn rotary(x: Shape, table: Shape, head_dim: usize) -> Result<usize> {
    let op = "rotary";
    ensure(head_dim > 0 && x.1.is_multiple_of(head_dim), op, || {
        format!("rows of {} are not whole heads of {head_dim}", show(x))
    })?;
    ensure(table.0 == x.0 && table.1.is_multiple_of(2) && table.1 <= head_dim, op, || {
        format!("table {} for {} with heads of {head_dim}", show(table), show(x))
    })?;
    Ok(table.1 / 2)
}

fn heads(op: &'static str, q: Shape, spec: &AttentionSpec) -> Result<()> {
    let AttentionSpec { heads, kv_heads, head_dim, .. } = *spec;
    ensure(kv_heads > 0 && head_dim > 0 && heads > 0 && heads.is_multiple_of(kv_heads), op, || {
        format!("{heads} heads of {head_dim} over {kv_heads} key heads")
    })?;
    ensure(q.1 == heads * head_dim, op, || format!("queries {} for {heads} heads of {head_dim}", show(q)))?;
    ensure(spec.mask != Mask::SlidingWindow(0), op, || "a window of no keys".into())
}

fn visible(op: &'static str, queries: usize, keys: usize, mask: Mask) -> Result<()> {
    let fits = if mask == Mask::Full { queries == 0 || keys > 0 } else { queries <= keys };
    ensure(fits, op, || format!("{queries} queries over {keys} keys leave a query without keys ({mask:?})"))
}

/// Segments cover the queries once, in any order, and every query has a key.
pub fn attention(q: Shape, k: Shape, v: Shape, segments: &[Segment], spec: &AttentionSpec) -> Result<()> {
    let op = "attention";
    heads(op, q, spec)?;
    let width = spec.kv_heads * spec.head_dim;
    ensure(k == v && k.1 == width, op, || {
        format!("keys {} and values {}, {width} columns expected", show(k), show(v))
    })?;
    for s in segments {
        within(op, std::slice::from_ref(&s.query), q.0)?;
        within(op, std::slice::from_ref(&s.key), k.0)?;
        visible(op, s.query.len(), s.key.len(), spec.mask)?;
    }
    let mut ranges: Vec<_> = segments.iter().map(|s| s.query.clone()).filter(|r| !r.is_empty()).collect();
    ranges.sort_by_key(|r| r.start);
    cover(op, ranges.into_iter(), q.0)
}

fn cover(op: &'static str, ranges: impl Iterator<Item = Range<usize>>, rows: usize) -> Result<()> {
    let mut next = 0;
    for r in ranges {
        ensure(r.start == next && r.end >= next, op, || format!("query rows {r:?} where {next}.. was expected"))?;
        next = r.end;
    }
    ensure(next == rows, op, || format!("segments cover {next} of {rows} query rows"))
}

/// A layout with elements, and no overflow in the size of `count` pages. Returns elements of keys (or values).
pub fn pages(layout: PageLayout, count: usize) -> Result<usize> {
    let PageLayout { page_tokens, kv_heads, head_dim } = layout;
    let size = page_tokens.checked_mul(kv_heads).and_then(|n| n.checked_mul(head_dim));
    match size.and_then(|n| n.checked_mul(count)) {
        Some(elements) if page_tokens > 0 && kv_heads > 0 && head_dim > 0 => Ok(elements),
        _ => Err(KernelError::shape("pages", format!("{count} pages of {layout:?}"))),
    }
}

/// One slot a row, each within the pages.
pub fn kv_write(layout: PageLayout, count: usize, k: Shape, v: Shape, slots: &[u32]) -> Result<()> {
    let op = "kv_write";
    let expected = (slots.len(), layout.kv_heads * layout.head_dim);
    ensure(k == expected && v == expected, op, || {
        format!("keys {} and values {}, {} expected", show(k), show(v), show(expected))
    })?;
    below(op, "slot", slots, count * layout.page_tokens)
}

/// Sequences cover the queries in order and their tables reach their contexts.
pub fn paged_attention(
    q: Shape,
    (layout, count): (PageLayout, usize),
    sequences: &[PagedSequence<'_>],
    spec: &AttentionSpec,
) -> Result<()> {
    let op = "paged_attention";
    heads(op, q, spec)?;
    ensure((spec.kv_heads, spec.head_dim) == (layout.kv_heads, layout.head_dim), op, || {
        format!("{} key heads of {} over pages of {layout:?}", spec.kv_heads, spec.head_dim)
    })?;
    for s in sequences {
        within(op, std::slice::from_ref(&s.query), q.0)?;
        visible(op, s.query.len(), s.context, spec.mask)?;
        let used = s.context.div_ceil(layout.page_tokens);
        ensure(used <= s.table.len(), op, || {
            format!("a table of {} pages for a context of {}", s.table.len(), s.context)
        })?;
        below(op, "page", &s.table[..used], count)?;
    }
    cover(op, sequences.iter().map(|s| s.query.clone()), q.0)
}

/// Row numbers are within the tensor.
pub fn gather_rows(x: Shape, rows: &[u32]) -> Result<()> {
    below("gather_rows", "row", rows, x.0)
}

/// One row of values for every number.
pub fn scatter_rows(x: Shape, rows: &[u32], values: Shape) -> Result<()> {
    let op = "scatter_rows";
    ensure(values == (rows.len(), x.1), op, || {
        format!("values {} given, {} expected", show(values), show((rows.len(), x.1)))
    })?;
    below(op, "row", rows, x.0)
}

/// Parts of one width. Returns the shape of the result.
pub fn concat_rows(parts: &[Shape]) -> Result<Shape> {
    let op = "concat_rows";
    let cols = parts.first().ok_or_else(|| KernelError::shape(op, "no parts"))?.1;
    let rows = parts.iter().map(|part| part.0).sum();
    ensure(parts.iter().all(|part| part.1 == cols), op, || format!("parts of different widths: {parts:?}"))?;
    Ok((rows, cols))
}

/// The same number of elements.
pub fn reshape(x: Shape, rows: usize, cols: usize) -> Result<()> {
    ensure(rows.checked_mul(cols) == Some(x.0 * x.1), "reshape", || {
        format!("{} cannot become {}", show(x), show((rows, cols)))
    })
}

/// Returns the number of means.
pub fn mean_rows(x: Shape, segments: &[Range<usize>], n: usize) -> Result<usize> {
    ensure(n > 0, "mean_rows", || "groups of no rows".into())?;
    within("mean_rows", segments, x.0)?;
    Ok(segments.iter().map(|s| s.len() / n).sum())
}

/// One description a row, whose numbers are in range.
pub fn sample(logits: Shape, rows: &[SampleRow]) -> Result<()> {
    let op = "sample";
    ensure(logits.0 == rows.len(), op, || format!("{} rows described for logits {}", rows.len(), show(logits)))?;
    ensure(logits.1 > 0 || rows.is_empty(), op, || "an empty vocabulary".into())?;
    let words = logits.1.div_ceil(32);
    for row in rows {
        let SampleRow { temperature, top_p, min_p, draw, .. } = *row;
        let sane = temperature.is_finite() && temperature >= 0.0 && top_p > 0.0 && min_p <= 1.0;
        ensure(sane && (0.0..1.0).contains(&draw), op, || {
            format!("temperature {temperature}, top-p {top_p}, min-p {min_p}, draw {draw}")
        })?;
        if let Some(mask) = &row.mask {
            ensure(mask.len() == words, op, || format!("a mask of {} words, {words} expected", mask.len()))?;
        }
        if let Some(n) = row.bias.iter().map(|b| b.0).chain(row.watch.iter().copied()).find(|&n| n as usize >= logits.1)
        {
            return Err(KernelError::shape(op, format!("bias or watch of token {n} of {}", logits.1)));
        }
    }
    Ok(())
}
