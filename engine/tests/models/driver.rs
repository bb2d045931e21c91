//! The plainest loop that makes a model answer: one page pool, all prompts in one batch, the largest logit wins.

use weft_engine::families::{Loaded, MediaRows, Piece, PromptPart, StepBatch, StepSequence};
use weft_engine::media::Medium;
use weft_kernels::{Backend, CpuBackend};

pub(crate) type Tensor = <CpuBackend as Backend>::Tensor;
pub(crate) const PAGE_TOKENS: usize = 16;

/// A prompt with encoded media.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) parts: Vec<PromptPart>,
    /// First row and encoder output of every medium.
    pub(crate) media: Vec<(usize, Tensor)>,
}

impl Prompt {
    pub(crate) fn text(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), parts: vec![PromptPart::Text(ids.len())], media: Vec::new() }
    }
}

/// Logits of the last prompt position, and the tokens after it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) logits: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
}

struct Running {
    ids: Vec<u32>,
    positions: Vec<[u32; 3]>,
    table: Vec<u32>,
    cached: usize,
    answer: Answer,
}

/// Greedy answers of `steps` tokens; prompts enter together in chunks of `chunk` rows.
pub(crate) fn answer(
    backend: &CpuBackend,
    model: &Loaded<CpuBackend>,
    prompts: &[Prompt],
    steps: usize,
    chunk: usize,
) -> Vec<Answer> {
    let kv = model.kv();
    let longest = prompts.iter().map(|p| p.ids.len() + steps).max().unwrap();
    let each = longest.div_ceil(PAGE_TOKENS);
    let mut pages: Vec<_> = (0..kv.layers).map(|_| backend.pages(kv.pages, each * prompts.len()).unwrap()).collect();
    let mut running: Vec<Running> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let positions = model.positions(&prompt.parts);
            let mut rows = positions.rows;
            rows.extend((0..steps as u32).map(|n| [positions.next + n; 3]));
            // Pages of different prompts interleave, and run backwards.
            let table = (0..each).rev().map(|page| (page * prompts.len() + i) as u32).collect();
            let answer = Answer { logits: Vec::new(), tokens: Vec::new() };
            Running { ids: prompt.ids.clone(), positions: rows, table, cached: 0, answer }
        })
        .collect();
    let plan = Plan { backend, model, prompts, steps, chunk };
    while running.iter().any(|r| r.answer.tokens.len() < steps) {
        step(&plan, &mut running, &mut pages);
    }
    running.into_iter().map(|r| r.answer).collect()
}

/// What stays the same over all steps.
struct Plan<'a> {
    backend: &'a CpuBackend,
    model: &'a Loaded<CpuBackend>,
    prompts: &'a [Prompt],
    steps: usize,
    chunk: usize,
}

fn step(plan: &Plan<'_>, running: &mut [Running], pages: &mut [<CpuBackend as Backend>::Pages]) {
    let Plan { backend, model, prompts, steps, chunk } = *plan;
    let (mut ids, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    let (mut media, mut sequences, mut chosen) = (Vec::new(), Vec::new(), Vec::new());
    for (i, r) in running.iter().enumerate().filter(|(_, r)| r.answer.tokens.len() < steps) {
        let first = ids.len();
        let end = r.ids.len().min(r.cached.saturating_add(chunk));
        for row in r.cached..end {
            ids.push(r.ids[row]);
            positions.push(r.positions[row]);
            slots.push(r.table[row / PAGE_TOKENS] * PAGE_TOKENS as u32 + (row % PAGE_TOKENS) as u32);
        }
        for (at, encoded) in &prompts[i].media {
            let rows = backend.shape(encoded).0;
            let (from, to) = (r.cached.max(*at), end.min(at + rows));
            if from < to {
                media.push(MediaRows { at: first + from - r.cached, encoded, rows: from - at..to - at });
            }
        }
        let wants_logits = end == r.ids.len();
        sequences.push(StepSequence {
            rows: first..ids.len(),
            context: end,
            table: &r.table,
            cross: None,
            wants_logits,
        });
        chosen.push((i, end, wants_logits));
    }
    let batch = StepBatch { ids: &ids, positions: &positions, slots: &slots, media: &media, sequences: &sequences };
    let logits = model.step(backend, &batch, pages).unwrap().map(|logits| backend.download(&logits).unwrap());
    let width = model.card().vocabulary;
    let mut rows = logits.as_deref().unwrap_or_default().chunks_exact(width);
    for (i, end, wants_logits) in chosen {
        let r = &mut running[i];
        r.cached = end;
        if wants_logits {
            let row = rows.next().unwrap();
            if r.answer.tokens.is_empty() {
                r.answer.logits = row.to_vec();
            }
            let token = largest(row);
            r.answer.tokens.push(token);
            r.ids.push(token);
        }
    }
    assert!(rows.next().is_none(), "one row of logits for every sequence that wanted them");
}

/// Logits at every position of a text: each row is a sequence of its own over the same pages.
pub(crate) fn every_row(backend: &CpuBackend, model: &Loaded<CpuBackend>, ids: &[u32]) -> Vec<f32> {
    let kv = model.kv();
    let count = ids.len().div_ceil(PAGE_TOKENS);
    let mut pages: Vec<_> = (0..kv.layers).map(|_| backend.pages(kv.pages, count).unwrap()).collect();
    let table: Vec<u32> = (0..count as u32).collect();
    let slots: Vec<u32> = (0..ids.len() as u32).collect();
    let positions = model.positions(&[PromptPart::Text(ids.len())]).rows;
    let sequences: Vec<StepSequence<'_>> = (0..ids.len())
        .map(|i| StepSequence { rows: i..i + 1, context: i + 1, table: &table, cross: None, wants_logits: true })
        .collect();
    let batch = StepBatch { ids, positions: &positions, slots: &slots, media: &[], sequences: &sequences };
    backend.download(&model.step(backend, &batch, &mut pages).unwrap().unwrap()).unwrap()
}

pub(crate) fn largest(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).unwrap() as u32
}

/// Encodes media of one tower together, `layers` at a time.
pub(crate) fn encode(
    backend: &CpuBackend,
    model: &Loaded<CpuBackend>,
    media: &[&Medium],
    layers: usize,
) -> Vec<Tensor> {
    let mut run = model.begin_encode(backend, media).unwrap();
    let total = run.layers();
    loop {
        let before = run.done();
        if let Some(done) = run.advance(backend, layers).unwrap() {
            assert_eq!(run.done(), total);
            return done;
        }
        assert!(run.done() > before && run.done() < total);
    }
}

/// Encodes media of one tower together, `rows` rows at a time; counts the launches.
pub(crate) fn encode_in_pieces(
    backend: &CpuBackend,
    model: &Loaded<CpuBackend>,
    media: &[&Medium],
    rows: usize,
) -> (Vec<Tensor>, usize) {
    let mut run = model.begin_encode(backend, media).unwrap();
    for launches in 1.. {
        let before = run.place();
        if let Some(done) = run.advance_piece(backend, Piece::Rows(rows)).unwrap() {
            return (done, launches);
        }
        assert_ne!(run.place(), before, "a piece that did nothing");
    }
    unreachable!("a run ends")
}

/// Largest difference, relative to the largest expected value.
pub(crate) fn relative_error(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
    difference(got, expected) / largest
}

pub(crate) fn difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    assert!(got.iter().all(|x| x.is_finite()));
    got.iter().zip(expected).fold(0f32, |max, (a, b)| max.max((a - b).abs()))
}
