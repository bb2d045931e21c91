//! Sampling, as documented at [`SampleRow`]; the draw walks the kept tokens in order of number.

use std::cmp::Ordering;

use super::{CpuBackend, CpuTensor};
use crate::error::{KernelError, Result};
use crate::shapes::{SampleRow, Sampled};

pub(super) fn sample(_: &CpuBackend, logits: &CpuTensor, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
    rows.iter().enumerate().map(|(i, row)| sample_row(logits.row(i), row)).collect()
}

/// Largest logit and whether one is NaN or infinite, in one pass that vectorises.
fn scan(logits: &[f32]) -> Result<f32> {
    let (chunks, rest) = logits.as_chunks::<16>();
    let (mut largest, mut broken) = ([f32::NEG_INFINITY; 16], [false; 16]);
    let mut see = |i: usize, x: f32| {
        largest[i] = if x > largest[i] { x } else { largest[i] };
        broken[i] |= !(x < f32::INFINITY);
    };
    for chunk in chunks {
        for (i, &x) in chunk.iter().enumerate() {
            see(i, x);
        }
    }
    rest.iter().enumerate().for_each(|(i, &x)| see(i, x));
    if broken.contains(&true) {
        return Err(KernelError::Device("sample: logits hold NaN or infinity".into()));
    }
    match largest.into_iter().fold(f32::NEG_INFINITY, f32::max) {
        f32::NEG_INFINITY => Err(KernelError::Device("sample: no token is allowed".into())),
        largest => Ok(largest),
    }
}

/// `ln(sum(exp(logits)))`.
fn log_total(logits: &[f32], largest: f32) -> f32 {
    let total: f64 = logits.iter().map(|l| f64::from((l - largest).exp())).sum();
    (f64::from(largest) + total.ln()) as f32
}

/// One row of logits, all of it on the host.
pub(crate) fn sample_row(raw: &[f32], row: &SampleRow) -> Result<Sampled> {
    let raw_largest = scan(raw)?;
    let changed = (!row.bias.is_empty() || row.mask.is_some()).then(|| adjust(raw, row));
    let logits = changed.as_deref().unwrap_or(raw);
    let largest = if changed.is_some() { scan(logits)? } else { raw_largest };
    let token = if row.temperature == 0.0 {
        logits.iter().position(|&l| l == largest).unwrap_or(0) as u32
    } else {
        draw(&kept(logits, largest, row), row.draw)
    };
    let mut sampled = Sampled { token, logprob: None, top: Vec::new(), watched: Vec::new() };
    if let Some(n) = row.logprobs {
        let total = log_total(logits, largest);
        sampled.logprob = Some(logits[token as usize] - total);
        sampled.top = best(logits, n as usize).into_iter().map(|i| (i, logits[i as usize] - total)).collect();
    }
    if !row.watch.is_empty() {
        let total = log_total(raw, raw_largest);
        sampled.watched = row.watch.iter().map(|&i| raw[i as usize] - total).collect();
    }
    Ok(sampled)
}

/// Logits after bias and mask.
fn adjust(raw: &[f32], row: &SampleRow) -> Vec<f32> {
    let mut logits = raw.to_vec();
    for &(token, amount) in &row.bias {
        logits[token as usize] += amount;
    }
    if let Some(mask) = &row.mask {
        for (logits, &word) in logits.chunks_mut(32).zip(mask) {
            for (i, logit) in logits.iter_mut().enumerate() {
                *logit = if word >> i & 1 == 1 { *logit } else { f32::NEG_INFINITY };
            }
        }
    }
    logits
}

/// The `n` largest possible tokens, best first; of equals the lower number first.
fn best(logits: &[f32], n: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| {
        let (x, y) = (logits[*a as usize], logits[*b as usize]);
        y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
    if n == 0 {
        return Vec::new();
    }
    if n < ids.len() {
        ids.select_nth_unstable_by(n - 1, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    ids
}

/// Surviving tokens with weights relative to the largest, in order of number.
fn kept(logits: &[f32], largest: f32, row: &SampleRow) -> Vec<(u32, f64)> {
    let weight = |i: u32| ((f64::from(logits[i as usize]) - f64::from(largest)) / f64::from(row.temperature)).exp();
    let mut kept: Vec<(u32, f64)> = if row.top_k > 0 || row.top_p < 1.0 {
        sorted_head(logits, row, weight)
    } else {
        (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).map(|i| (i, weight(i))).collect()
    };
    // The largest weight is 1, so the fraction is the threshold.
    kept.retain(|k| k.1 >= f64::from(row.min_p));
    kept.sort_unstable_by_key(|k| k.0);
    kept
}

/// Top-k, then top-p: only as many tokens are sorted as the truncation needs.
fn sorted_head(logits: &[f32], row: &SampleRow, weight: impl Fn(u32) -> f64) -> Vec<(u32, f64)> {
    if row.top_k > 0 {
        let head: Vec<_> = best(logits, row.top_k as usize).into_iter().map(|i| (i, weight(i))).collect();
        let mass = head.iter().map(|k| k.1).sum();
        return nucleus(&head, row.top_p, mass).unwrap_or(head);
    }
    let mass: f64 = (0..logits.len() as u32).map(&weight).sum();
    let mut size = 256;
    loop {
        let head: Vec<_> = best(logits, size).into_iter().map(|i| (i, weight(i))).collect();
        match nucleus(&head, row.top_p, mass) {
            Some(found) => return found,
            None if size >= logits.len() => return head,
            None => size *= 8,
        }
    }
}

/// The shortest start of `head` whose weight reaches `top_p` of `mass`; `None` when all of it does not.
fn nucleus(head: &[(u32, f64)], top_p: f32, mass: f64) -> Option<Vec<(u32, f64)>> {
    if top_p >= 1.0 {
        return None;
    }
    let mut reached = 0.0;
    let last = head.iter().position(|k| {
        reached += k.1;
        reached >= f64::from(top_p) * mass
    });
    last.map(|last| head[..=last].to_vec())
}

/// The first token whose cumulated weight passes the draw.
fn draw(kept: &[(u32, f64)], draw: f32) -> u32 {
    let target = f64::from(draw) * kept.iter().map(|k| k.1).sum::<f64>();
    let mut passed = 0.0;
    let drawn = kept.iter().find(|k| {
        passed += k.1;
        passed > target
    });
    // Rounding may leave the target beyond the last sum: the last token it is.
    drawn.or(kept.last()).map_or(0, |k| k.0)
}
