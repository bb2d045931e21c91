//! Moving rows and their means.

use super::{Suite, rowwise, same_bits, values};
use crate::backend::Backend;
use crate::error::Result;

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    let x = suite.random.input(37, 33, 1.0);
    let numbers: Vec<u32> = (0..50).map(|_| suite.random.below(37) as u32).collect();
    rowwise!(suite, "gather_rows".into(), 0.0, 50, |b, r| b.gather_rows(&x.on(b)?, &numbers[r]));
    values!(suite, "gather_rows of none".into(), 0.0, |b| b.gather_rows(&x.on(b)?, &[]));

    let replaced = suite.random.input(9, 33, 1.0);
    let places = suite.random.shuffled(37);
    values!(suite, "scatter_rows".into(), 0.0, |b| b.scatter_rows(&x.on(b)?, &places[..9], &replaced.on(b)?));

    let parts = [suite.random.input(1, 33, 1.0), suite.random.input(200, 33, 1.0), x.clone()];
    values!(suite, "concat_rows".into(), 0.0, |b| {
        let parts = parts.iter().map(|part| part.on(b)).collect::<Result<Vec<_>>>()?;
        b.concat_rows(&parts.iter().collect::<Vec<_>>())
    });
    values!(suite, "reshape".into(), 0.0, |b| b.reshape(&x.on(b)?, 11, 111));

    let segments = [0..7, 7..9, 12..37];
    for n in [1, 2, 3, 4] {
        values!(suite, format!("mean_rows of {n}"), 1e-6, |b| b.mean_rows(&x.on(b)?, &segments, n));
    }
    let outcome = unchanged(suite.backend, &x.values)
        .map_err(|e| e.to_string())
        .and_then(|unchanged| if unchanged { Ok(()) } else { Err("an operand changed".into()) });
    suite.note("tensors never change".into(), (0.0, 0.0), outcome);
}

/// A tensor and its clones keep their values whatever is made from them.
fn unchanged<B: Backend>(b: &B, values: &[f32]) -> Result<bool> {
    let x = b.upload(37, 33, values)?;
    let clone = x.clone();
    let sum = b.add(&x, &x)?;
    b.scatter_rows(&x, &[3], &b.upload(1, 33, &[9.0; 33])?)?;
    b.reshape(&x, 33, 37)?;
    drop(x);
    b.add(&sum, &sum)?;
    Ok(same_bits(&b.download(&clone)?, values))
}
