//! Attention: which kernel takes which, and what the kernels are told.
//!
//! float32, and head sizes beyond the tensor cores' kernels: `attention_exact`, the same bits however a prompt is cut.
//! bf16: sequences of one query over pages go to `decode_*` (keys split by the sequence's own context), all else to
//! `flash_*`; each gives the same bits in any batch, but the two differ in rounding.

use super::launch::{Kernel, Parameter};
use super::tensor::{CudaPages, CudaTensor};
use super::{Activations, CudaBackend};
use crate::error::{KernelError, Result};
use crate::shapes::{AttentionSpec, Mask, PagedSequence, Segment};

/// Keys of a tile, and packed rows of a block, in `flash.cu`.
const TILE: usize = 64;
const MOST_SPLITS: usize = 32;
/// Heads that share a key head in `decode_*`.
const MOST_GROUP: usize = 16;
/// Head sizes of `attention_exact`.
const MOST_DIM: usize = 256;
/// (sequence, key head) pairs of a decode launch.
pub(super) const MOST_PAIRS: usize = 1 << 16;

/// `Attention` in `attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Common {
    out: u64,
    q: u64,
    k: u64,
    v: u64,
    spans: u64,
    items: u64,
    tables: u64,
    scale: f32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    mask: u32,
    window: u32,
    page_tokens: u32,
    items_count: u32,
}

/// `Split` in `flash.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Split {
    parts: u64,
    arrived: u64,
    splits: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, eleven words.
#[expect(unsafe_code, reason = "a kernel parameter")]
unsafe impl Parameter for Common {}
// SAFETY: `repr(C)`, three words.
#[expect(unsafe_code, reason = "a kernel parameter")]
unsafe impl Parameter for Split {}

/// Queries that see the same keys; `Span` in `attention.cu`.
struct Span {
    query: usize,
    queries: usize,
    key: usize,
    keys: usize,
    /// Where its page numbers begin.
    table: usize,
}

/// Where keys and values lie.
struct Keys {
    k: u64,
    v: u64,
    page_tokens: usize,
}

pub(super) fn fresh(
    cuda: &CudaBackend,
    q: &CudaTensor,
    (k, v): (&CudaTensor, &CudaTensor),
    segments: &[Segment],
    spec: &AttentionSpec,
) -> Result<CudaTensor> {
    let span = |s: &Segment| Span {
        query: s.query.start,
        queries: s.query.len(),
        key: s.key.start,
        keys: s.key.len(),
        table: 0,
    };
    let spans: Vec<Span> = segments.iter().filter(|s| !s.query.is_empty()).map(span).collect();
    let out = cuda.result("attention", q.shape())?;
    let keys = Keys { k: k.address(), v: v.address(), page_tokens: 0 };
    let call = Call { cuda, op: "attention", q, out: &out, keys, tables: &[], spec };
    if tensor_cores(cuda, spec) {
        call.flash(&spans)?
    } else {
        call.exact(&spans)?
    }
    Ok(out)
}

pub(super) fn paged(
    cuda: &CudaBackend,
    q: &CudaTensor,
    pages: &CudaPages,
    sequences: &[PagedSequence<'_>],
    spec: &AttentionSpec,
) -> Result<CudaTensor> {
    let mut tables: Vec<u32> = Vec::new();
    let (mut decoding, mut others) = (Vec::new(), Vec::new());
    for s in sequences.iter().filter(|s| !s.query.is_empty()) {
        let (query, queries) = (s.query.start, s.query.len());
        let span = Span { query, queries, key: 0, keys: s.context, table: tables.len() };
        tables.extend(&s.table[..s.context.div_ceil(pages.layout.page_tokens)]);
        if queries == 1 { decoding.push(span) } else { others.push(span) }
    }
    let out = cuda.result("paged_attention", q.shape())?;
    let keys = Keys { k: pages.keys.address(), v: pages.values.address(), page_tokens: pages.layout.page_tokens };
    let call = Call { cuda, op: "paged_attention", q, out: &out, keys, tables: &tables, spec };
    if !tensor_cores(cuda, spec) {
        decoding.append(&mut others);
        call.exact(&decoding)?;
    } else if spec.heads / spec.kv_heads > MOST_GROUP || decoding.len() * spec.kv_heads > MOST_PAIRS {
        decoding.append(&mut others);
        call.flash(&decoding)?;
    } else {
        call.decode(&decoding)?;
        call.flash(&others)?;
    }
    Ok(out)
}

fn tensor_cores(cuda: &CudaBackend, spec: &AttentionSpec) -> bool {
    cuda.inner.activations == Activations::Bf16 && spec.head_dim.is_multiple_of(8) && spec.head_dim <= 128
}

/// Index into the kernels of four head sizes, and that size.
fn bucket(head_dim: usize) -> (usize, usize) {
    let sizes = [64, 80, 96, 128];
    let at = sizes.iter().position(|&size| head_dim <= size).unwrap_or(3);
    (at, sizes[at])
}

/// Dynamic shared memory of `flash_*` and `decode_*` for a padded head size.
fn shared_bytes(size: usize) -> (u32, u32) {
    let pitch = 2 * (size + 8);
    (((TILE + 4 * TILE) * pitch) as u32, ((2 * TILE + 16) * pitch + 4 * 16 * (size + 2) * 4) as u32)
}

/// Lets the kernels use the shared memory they need.
pub(super) fn prepare(kernels: &super::launch::Kernels) -> Result<()> {
    for (at, size) in [64, 80, 96, 128].into_iter().enumerate() {
        let (flash, decode) = shared_bytes(size);
        kernels.allow_shared(FLASH[at], flash)?;
        kernels.allow_shared(DECODE[at], decode)?;
    }
    Ok(())
}

const FLASH: [Kernel; 4] = [Kernel::Flash64, Kernel::Flash80, Kernel::Flash96, Kernel::Flash128];
const DECODE: [Kernel; 4] = [Kernel::Decode64, Kernel::Decode80, Kernel::Decode96, Kernel::Decode128];

/// One call of an operation.
struct Call<'a> {
    cuda: &'a CudaBackend,
    op: &'static str,
    q: &'a CudaTensor,
    out: &'a CudaTensor,
    keys: Keys,
    tables: &'a [u32],
    spec: &'a AttentionSpec,
}

impl Call<'_> {
    /// Sends spans, items and block tables in one array, and gives them to `launch`.
    fn with_numbers(&self, spans: &[Span], items: &[u32], launch: impl FnOnce(Common) -> Result<()>) -> Result<()> {
        let mut numbers: Vec<u32> = Vec::with_capacity(8 * spans.len() + items.len() + self.tables.len());
        for s in spans {
            numbers.extend([s.query, s.queries, s.key, s.keys, s.table, 0, 0, 0].map(|n| n as u32));
        }
        numbers.extend(items);
        numbers.extend(self.tables);
        let sent = self.cuda.numbers(self.op, &numbers)?;
        let items_at = sent.address + 4 * 8 * spans.len() as u64;
        let (mask, window) = match self.spec.mask {
            Mask::Full => (0, 0),
            Mask::Causal => (1, 0),
            Mask::SlidingWindow(width) => (2, width),
        };
        launch(Common {
            out: self.out.address(),
            q: self.q.address(),
            k: self.keys.k,
            v: self.keys.v,
            spans: sent.address,
            items: items_at,
            tables: items_at + 4 * items.len() as u64,
            scale: self.spec.scale,
            heads: self.spec.heads as u32,
            kv_heads: self.spec.kv_heads as u32,
            head_dim: self.spec.head_dim as u32,
            mask,
            window,
            page_tokens: self.keys.page_tokens as u32,
            items_count: (items.len() / 2) as u32,
        })
    }

    fn exact(&self, spans: &[Span]) -> Result<()> {
        if self.spec.head_dim > MOST_DIM {
            let detail = format!("heads of {} elements; up to {MOST_DIM} are supported", self.spec.head_dim);
            return Err(KernelError::Unsupported { op: self.op, detail });
        }
        let items: Vec<u32> = spans
            .iter()
            .enumerate()
            .flat_map(|(i, s)| (0..s.queries).flat_map(move |row| [i as u32, row as u32]))
            .collect();
        self.with_numbers(spans, &items, |common| {
            let warps = items.len() / 2 * self.spec.heads;
            let launch = self.cuda.inner.kernels.launch(Kernel::AttentionExact);
            launch.grid([warps.div_ceil(4) as u32, 1, 1]).block(128, 0).with(common).go(self.op)
        })
    }

    fn flash(&self, spans: &[Span]) -> Result<()> {
        let group = self.spec.heads / self.spec.kv_heads;
        // The longest work first: later tiles of a causal prompt see more keys.
        let tiles = |s: &Span| (s.queries * group).div_ceil(TILE);
        let mut items: Vec<[u32; 2]> = spans
            .iter()
            .enumerate()
            .flat_map(|(i, s)| (0..tiles(s)).map(move |tile| [i as u32, tile as u32]))
            .collect();
        items.reverse();
        let (at, size) = bucket(self.spec.head_dim);
        self.with_numbers(spans, items.as_flattened(), |common| {
            let grid = [items.len() as u32, self.spec.kv_heads as u32, 1];
            let launch = self.cuda.inner.kernels.launch(FLASH[at]).grid(grid).block(128, shared_bytes(size).0);
            launch.with(common).go(self.op)
        })
    }

    fn decode(&self, spans: &[Span]) -> Result<()> {
        if spans.is_empty() {
            return Ok(());
        }
        let each: Vec<u32> = spans.iter().map(|s| split(s.keys).1 as u32).collect();
        let splits = spans.iter().map(|s| split(s.keys).0).max().unwrap_or(1);
        let (at, size) = bucket(self.spec.head_dim);
        let parts = self.cuda.inner.device.block(self.op, spans.len() * self.spec.heads * splits * (size + 2) * 4)?;
        let split = Split {
            parts: parts.address(),
            arrived: self.cuda.inner.arrived.address(),
            splits: splits as u32,
            unused: 0,
        };
        self.with_numbers(spans, &each, |common| {
            let grid = [splits as u32, self.spec.kv_heads as u32, spans.len() as u32];
            let launch = self.cuda.inner.kernels.launch(DECODE[at]).grid(grid).block(128, shared_bytes(size).1);
            launch.with(common).with(split).go(self.op)
        })
    }
}

/// How many blocks share a context, and the keys of each: by the context alone, so that a sequence's result does not
/// depend on the batch.
fn split(context: usize) -> (usize, usize) {
    let wanted = context.div_ceil(TILE).clamp(1, MOST_SPLITS);
    let each = context.div_ceil(wanted).next_multiple_of(TILE).max(TILE);
    (context.div_ceil(each).max(1), each)
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn splits_cover_every_context() {
        for context in 1..10_000 {
            let (splits, each) = split(context);
            assert!(
                splits <= super::MOST_SPLITS && splits * each >= context && (splits - 1) * each < context,
                "{context}"
            );
        }
    }
}
