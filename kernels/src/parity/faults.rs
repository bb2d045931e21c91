//! Operands that do not fit are errors that name the operation: never a panic, never a result.

use super::Suite;
use super::products::encode;
use crate::backend::Backend;
use crate::error::{KernelError, Result};
use crate::shapes::{
    Activation, AttentionSpec, Conv1dSpec, Mask, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Segment,
};
use crate::weights::{WeightData, WeightFormat};

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    for probe in [shapes::<B>, positions::<B>, attention::<B>, pages::<B>, rows::<B>, sampling::<B>] {
        match probe(suite.backend) {
            Err(e) => suite.note("faults: set-up".into(), (0.0, 0.0), Err(e.to_string())),
            Ok(outcomes) => {
                for (name, fault) in outcomes {
                    let outcome = match fault {
                        Some(KernelError::Shape { op, .. }) if name.starts_with(op) => Ok(()),
                        Some(KernelError::Device(_)) if name.starts_with("sample") => Ok(()),
                        other => Err(format!("{other:?} instead of an error of the operation")),
                    };
                    suite.note(format!("fault: {name}"), (0.0, 0.0), outcome);
                }
            }
        }
    }
}

/// What was tried and the error it gave.
type Outcomes = Vec<(&'static str, Option<KernelError>)>;

fn shapes<B: Backend>(b: &B) -> Result<Outcomes> {
    let x = |rows: usize, cols: usize| b.upload(rows, cols, &vec![1.0; rows * cols]);
    let f32s = |rows: usize, cols: usize| encode(&vec![1.0; rows * cols], (rows, cols), WeightFormat::F32);
    let w = b.weight(&f32s(4, 6))?;
    let other = b.weight(&f32s(4, 7))?;
    let short = WeightData { rows: 3, ..f32s(2, 2) };
    let partial = WeightData { rows: 1, cols: 31, format: WeightFormat::Q4_0, bytes: vec![0; 18].into() };
    let spec = Conv1dSpec { kernel: 3, stride: 1, padding: 1 };
    let still = Conv1dSpec { stride: 0, ..spec };
    let (five, one) = (x(5, 6)?, x(1, 6)?);
    let two = x(5, 2)?;
    Ok(vec![
        ("upload of too few values", b.upload(2, 3, &[0.0; 5]).err()),
        ("upload of an impossible size", b.upload(usize::MAX, 2, &[]).err()),
        ("weight of too few bytes", b.weight(&short).err()),
        ("weight of a part of a block", b.weight(&partial).err()),
        ("embed beyond the table", b.embed(&w, &[0, 4]).err()),
        ("linear of other columns", b.linear(&x(2, 5)?, &w, None).err()),
        ("linear with another bias", b.linear(&five, &w, Some(&x(1, 3)?)).err()),
        ("linear with two rows of bias", b.linear(&five, &w, Some(&x(2, 4)?)).err()),
        ("linear_group of other columns", b.linear_group(&five, &[(&w, None), (&other, None)]).err()),
        ("conv1d of other channels", b.conv1d(&x(5, 3)?, &w, None, &[0..5], spec).err()),
        ("conv1d beyond the rows", b.conv1d(&two, &w, None, &[0..6], spec).err()),
        ("conv1d without stride", b.conv1d(&two, &w, None, &[0..5], still).err()),
        ("conv1d of too few frames", b.conv1d(&two, &w, None, &[0..2], Conv1dSpec { padding: 0, ..spec }).err()),
        ("rms_norm of another width", b.rms_norm(&five, &x(1, 4)?, 1e-5).err()),
        ("add_rms_norm of two shapes", b.add_rms_norm(&five, &x(4, 6)?, &one, 1e-5).err()),
        ("layer_norm of another width", b.layer_norm(&five, &x(1, 3)?, None, 1e-5).err()),
        ("layer_norm of another bias", b.layer_norm(&five, &one, Some(&x(1, 3)?), 1e-5).err()),
        ("add of other columns", b.add(&five, &x(5, 3)?).err()),
        ("add of other rows", b.add(&five, &x(2, 6)?).err()),
        ("gated of two shapes", b.gated(&five, &one, Activation::Silu).err()),
    ])
}

fn positions<B: Backend>(b: &B) -> Result<Outcomes> {
    let x = |rows: usize, cols: usize| b.upload(rows, cols, &vec![1.0; rows * cols]);
    let good = RotaryFrequencies { inverse: vec![1.0, 0.1], axis: vec![0, 1], attention_factor: 1.0 };
    let uneven = RotaryFrequencies { axis: vec![0], ..good.clone() };
    Ok(vec![
        ("rotary_table of half a position", b.rotary_table(&good, &[1, 2, 3], 2).err()),
        ("rotary_table of a missing axis", b.rotary_table(&good, &[1, 2], 1).err()),
        ("rotary_table of no axes", b.rotary_table(&good, &[], 0).err()),
        ("rotary_table of unequal lists", b.rotary_table(&uneven, &[1, 2], 2).err()),
        ("rotary of half a head", b.rotary(&x(2, 6)?, &x(2, 4)?, 4).err()),
        ("rotary of more pairs than the head", b.rotary(&x(2, 4)?, &x(2, 6)?, 4).err()),
        ("rotary of other rows", b.rotary(&x(2, 4)?, &x(3, 4)?, 4).err()),
    ])
}

fn attention<B: Backend>(b: &B) -> Result<Outcomes> {
    let x = |rows: usize, cols: usize| b.upload(rows, cols, &vec![1.0; rows * cols]);
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 3, scale: 1.0, mask: Mask::Full };
    let (q, k) = (x(5, 12)?, x(5, 6)?);
    let all = [Segment::both(0..5)];
    let run = |segments: &[Segment], spec: AttentionSpec| b.attention(&q, &k, &k, segments, &spec).err();
    Ok(vec![
        ("attention of uneven heads", run(&all, AttentionSpec { kv_heads: 3, ..spec })),
        ("attention of no key heads", run(&all, AttentionSpec { kv_heads: 0, ..spec })),
        ("attention of another head size", run(&all, AttentionSpec { head_dim: 4, ..spec })),
        ("attention in a window of nothing", run(&all, AttentionSpec { mask: Mask::SlidingWindow(0), ..spec })),
        ("attention of other values", b.attention(&q, &k, &x(4, 6)?, &all, &spec).err()),
        ("attention of other keys", b.attention(&q, &x(5, 12)?, &x(5, 12)?, &all, &spec).err()),
        ("attention beyond the queries", run(&[Segment { query: 0..6, key: 0..5 }], spec)),
        ("attention beyond the keys", run(&[Segment { query: 0..5, key: 0..6 }], spec)),
        ("attention that leaves a query out", run(&[Segment::both(0..2), Segment::both(3..5)], spec)),
        ("attention that takes a query twice", run(&[Segment::both(0..3), Segment::both(2..5)], spec)),
        ("attention to nothing", run(&[Segment { query: 0..5, key: 2..2 }], spec)),
        (
            "attention of more queries than keys",
            run(&[Segment { query: 0..5, key: 0..4 }], AttentionSpec { mask: Mask::Causal, ..spec }),
        ),
    ])
}

fn pages<B: Backend>(b: &B) -> Result<Outcomes> {
    let x = |rows: usize, cols: usize| b.upload(rows, cols, &vec![1.0; rows * cols]);
    let layout = PageLayout { page_tokens: 4, kv_heads: 2, head_dim: 3 };
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 3, scale: 1.0, mask: Mask::Causal };
    let mut pages = b.pages(layout, 3)?;
    let k = x(2, 6)?;
    let mut outcomes = vec![
        ("pages of no tokens", b.pages(PageLayout { page_tokens: 0, ..layout }, 3).err()),
        ("pages of an impossible size", b.pages(layout, usize::MAX / 8).err()),
        ("kv_write beyond the pages", b.kv_write(&mut pages, &k, &k, &[0, 12]).err()),
        ("kv_write of too few slots", b.kv_write(&mut pages, &k, &k, &[0]).err()),
        ("kv_write of other heads", b.kv_write(&mut pages, &x(2, 3)?, &x(2, 3)?, &[0, 1]).err()),
        ("kv_write of other values", b.kv_write(&mut pages, &k, &x(1, 6)?, &[0, 1]).err()),
    ];
    let q = x(2, 12)?;
    let run = |query: std::ops::Range<usize>, context: usize, table: &[u32]| {
        b.paged_attention(&q, &pages, &[PagedSequence { query, context, table }], &spec).err()
    };
    outcomes.extend([
        ("paged_attention beyond the table", run(0..2, 9, &[0, 1])),
        ("paged_attention of an unknown page", run(0..2, 8, &[0, 3])),
        ("paged_attention of more queries than keys", run(0..2, 1, &[0])),
        ("paged_attention that leaves a query out", run(0..1, 8, &[0, 1])),
        ("paged_attention beyond the queries", run(0..3, 8, &[0, 1])),
        ("paged_attention of another head size", {
            let spec = AttentionSpec { head_dim: 6, heads: 2, kv_heads: 1, ..spec };
            b.paged_attention(&q, &pages, &[PagedSequence { query: 0..2, context: 2, table: &[0] }], &spec).err()
        }),
    ]);
    Ok(outcomes)
}

fn rows<B: Backend>(b: &B) -> Result<Outcomes> {
    let x = |rows: usize, cols: usize| b.upload(rows, cols, &vec![1.0; rows * cols]);
    let five = x(5, 6)?;
    Ok(vec![
        ("gather_rows beyond the end", b.gather_rows(&five, &[0, 5]).err()),
        ("scatter_rows beyond the end", b.scatter_rows(&five, &[5], &x(1, 6)?).err()),
        ("scatter_rows of too many values", b.scatter_rows(&five, &[1], &x(2, 6)?).err()),
        ("scatter_rows of other columns", b.scatter_rows(&five, &[1], &x(1, 5)?).err()),
        ("concat_rows of nothing", b.concat_rows(&[]).err()),
        ("concat_rows of two widths", b.concat_rows(&[&five, &x(5, 5)?]).err()),
        ("reshape to another size", b.reshape(&five, 4, 7).err()),
        ("mean_rows of none", b.mean_rows(&five, &[0..5], 0).err()),
        ("mean_rows beyond the end", b.mean_rows(&five, &[3..6, 0..3], 2).err()),
    ])
}

fn sampling<B: Backend>(b: &B) -> Result<Outcomes> {
    let logits = |values: &[f32]| b.upload(1, values.len(), values);
    let row = SampleRow::default;
    let (good, never) = (logits(&[1.0, 2.0, 3.0])?, f32::NEG_INFINITY);
    Ok(vec![
        ("sample without a row", b.sample(&good, &[]).err()),
        ("sample with a mask of another size", b.sample(&good, &[SampleRow { mask: Some(vec![1, 1]), ..row() }]).err()),
        ("sample with a bias beyond the end", b.sample(&good, &[SampleRow { bias: vec![(3, 1.0)], ..row() }]).err()),
        ("sample watching beyond the end", b.sample(&good, &[SampleRow { watch: vec![3], ..row() }]).err()),
        ("sample at NaN degrees", b.sample(&good, &[SampleRow { temperature: f32::NAN, ..row() }]).err()),
        ("sample at a draw of one", b.sample(&good, &[SampleRow { temperature: 1.0, draw: 1.0, ..row() }]).err()),
        ("sample of NaN", b.sample(&logits(&[1.0, f32::NAN, 3.0])?, &[row()]).err()),
        ("sample of infinity", b.sample(&logits(&[1.0, f32::INFINITY, 3.0])?, &[row()]).err()),
        ("sample of nothing", b.sample(&logits(&[never, never])?, &[row()]).err()),
        ("sample behind a closed mask", b.sample(&good, &[SampleRow { mask: Some(vec![8]), ..row() }]).err()),
        ("sample of NaN behind a mask, drawn", {
            let row = SampleRow { mask: Some(vec![1]), temperature: 0.8, top_k: 2, ..row() };
            b.sample(&logits(&[1.0, f32::NAN, 3.0])?, &[row]).err()
        }),
    ])
}
