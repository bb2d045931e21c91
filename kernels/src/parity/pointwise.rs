//! Norms, pointwise functions, rotary positions.

use super::{Suite, rowwise, same_bits};
use crate::backend::Backend;
use crate::shapes::{Activation, AttentionSpec, Mask, PageLayout, PagedSequence, RotaryFrequencies};

const NORM: f64 = 2e-6;
const ACTIVATION: f64 = 3e-7;
/// The library's `f32` cosine of an `f32` angle.
const ROTARY: f64 = 3e-7;

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    norms(suite);
    functions(suite);
    positions(suite);
}

fn norms<B: Backend>(suite: &mut Suite<'_, B>) {
    for (rows, cols, group) in [(1, 7, 7), (5, 576, 576), (33, 96, 16), (130, 384, 384), (3, 2050, 1025), (19, 1, 1)] {
        let mut x = suite.random.input(rows, cols, 3.0);
        let residual = suite.random.input(rows, cols, 1.0);
        let weight = suite.random.input(1, group, 1.0);
        // A row of zeros: eps alone is under the root.
        x.values[..cols].fill(0.0);
        let name = |op: &str| format!("{op} [{rows}, {cols}], groups of {group}");
        rowwise!(suite, name("rms_norm"), NORM, rows, |b, r| b.rms_norm(&x.part(b, r)?, &weight.on(b)?, 1e-6));
        rowwise!(suite, name("add_rms_norm, sum"), 1e-7, rows, |b, r| {
            Ok(b.add_rms_norm(&x.part(b, r.clone())?, &residual.part(b, r)?, &weight.on(b)?, 1e-5)?.0)
        });
        rowwise!(suite, name("add_rms_norm, normed"), NORM, rows, |b, r| {
            Ok(b.add_rms_norm(&x.part(b, r.clone())?, &residual.part(b, r)?, &weight.on(b)?, 1e-5)?.1)
        });
    }
    for (rows, cols) in [(1, 5), (7, 384), (40, 1281), (300, 80)] {
        let mut x = suite.random.input(rows, cols, 2.0);
        // Far from zero: the variance must not be a difference of large numbers.
        x.values.iter_mut().for_each(|x| *x += 30.0);
        let (weight, bias) = (suite.random.input(1, cols, 1.0), suite.random.input(1, cols, 1.0));
        let name = |what: &str| format!("layer_norm [{rows}, {cols}]{what}");
        // The mean of values near 30 is known to 30 * 2^-24.
        rowwise!(suite, name(""), 1e-5, rows, |b, r| {
            b.layer_norm(&x.part(b, r)?, &weight.on(b)?, Some(&bias.on(b)?), 1e-5)
        });
        rowwise!(suite, name(" without bias"), 1e-5, rows, |b, r| {
            b.layer_norm(&x.part(b, r)?, &weight.on(b)?, None, 1e-6)
        });
    }
}

fn functions<B: Backend>(suite: &mut Suite<'_, B>) {
    let all = [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::QuickGelu, Activation::Relu];
    for (rows, cols) in [(1, 3), (37, 129), (40, 1536)] {
        let a = suite.random.input(rows, cols, 1.0);
        let b = suite.random.input(rows, cols, 1.0);
        let row = suite.random.input(1, cols, 1.0);
        let mut x = suite.random.input(rows, cols, 3.0);
        let corners = [0.0, -0.0, 1e-30, -1e-30, 5.0, -5.0, 20.0, -20.0, 90.0, -90.0, 200.0, -200.0, 1e9, -1e9];
        x.values.iter_mut().rev().zip(corners).for_each(|(x, corner)| *x = corner);
        let name = |op: &str| format!("{op} [{rows}, {cols}]");
        rowwise!(suite, name("add"), 1e-7, rows, |on, r| on.add(&a.part(on, r.clone())?, &b.part(on, r)?));
        rowwise!(suite, name("add of one row"), 1e-7, rows, |on, r| on.add(&a.part(on, r)?, &row.on(on)?));
        for f in all {
            rowwise!(suite, name(&format!("activate {f:?}")), ACTIVATION, rows, |b, r| b.activate(&x.part(b, r)?, f));
            rowwise!(suite, name(&format!("gated {f:?}")), 4.0 * ACTIVATION, rows, |b, r| {
                b.gated(&x.part(b, r.clone())?, &a.part(b, r)?, f)
            });
        }
    }
}

fn positions<B: Backend>(suite: &mut Suite<'_, B>) {
    // (heads, head_dim, pairs, axes)
    for (rows, (heads, head_dim, pairs, axes)) in
        [(1, (1, 6, 3, 1)), (29, (3, 64, 32, 1)), (70, (2, 80, 40, 2)), (33, (2, 128, 64, 3)), (9, (4, 20, 5, 1))]
    {
        let frequencies = RotaryFrequencies {
            inverse: (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect(),
            axis: (0..pairs).map(|i| (i * axes / pairs) as u8).collect(),
            attention_factor: 1.1,
        };
        let positions: Vec<u32> =
            (0..rows * axes).map(|i| if i % 5 == 0 { 131_000 } else { suite.random.below(4096) as u32 }).collect();
        let x = suite.random.input(rows, heads * head_dim, 1.0);
        let name = |op: &str| format!("{op}, {rows} rows, {heads} heads of {head_dim}, {pairs} pairs, {axes} axes");
        let part = |r: std::ops::Range<usize>| &positions[r.start * axes..r.end * axes];
        rowwise!(suite, name("rotary_table"), ROTARY, rows, |b, r| b.rotary_table(&frequencies, part(r), axes));
        rowwise!(suite, name("rotary"), 2e-6, rows, |b, r| {
            let table = b.rotary_table(&frequencies, part(r.clone()), axes)?;
            b.rotary(&x.part(b, r)?, &table, head_dim)
        });
        fused(suite, (heads, head_dim), &frequencies, &positions);
    }
}

/// Turning and writing in one operation gives the bits of the single ones.
fn fused<B: Backend>(
    suite: &mut Suite<'_, B>,
    (heads, head_dim): (usize, usize),
    frequencies: &RotaryFrequencies,
    positions: &[u32],
) {
    let axes = usize::from(frequencies.axis.iter().copied().max().unwrap_or(0)) + 1;
    let rows = positions.len() / axes;
    let q = suite.random.input(rows, 2 * heads * head_dim, 1.0);
    let k = suite.random.input(rows, heads * head_dim, 1.0);
    let slots: Vec<u32> = suite.random.shuffled(rows.next_multiple_of(8)).into_iter().take(rows).collect();
    let layout = PageLayout { page_tokens: 8, kv_heads: heads, head_dim };
    let spec = AttentionSpec { heads: 2 * heads, kv_heads: heads, head_dim, scale: 0.1, mask: Mask::Full };
    let table: Vec<u32> = (0..rows.div_ceil(8) as u32).collect();
    let run = |b: &B| -> crate::error::Result<bool> {
        let angles = b.rotary_table(frequencies, positions, axes)?;
        let (q, k) = (q.on(b)?, k.on(b)?);
        let mut together = b.pages(layout, table.len())?;
        let turned = b.rotary_kv_write(&mut together, (&q, &k, &k), &angles, &slots)?;
        let mut apart = b.pages(layout, table.len())?;
        b.kv_write(&mut apart, &b.rotary(&k, &angles, head_dim)?, &k, &slots)?;
        let wanted = b.rotary(&q, &angles, head_dim)?;
        let all = [PagedSequence { query: 0..rows, context: rows, table: &table }];
        let seen = |pages| b.download(&b.paged_attention(&wanted, pages, &all, &spec)?);
        Ok(same_bits(&b.download(&turned)?, &b.download(&wanted)?) && same_bits(&seen(&together)?, &seen(&apart)?))
    };
    let outcome = match run(suite.backend) {
        Ok(true) => Ok(()),
        Ok(false) => Err("differs from rotary and kv_write".into()),
        Err(e) => Err(e.to_string()),
    };
    suite.note(format!("rotary_kv_write, {rows} rows, {heads} heads of {head_dim}"), (0.0, 0.0), outcome);
}
