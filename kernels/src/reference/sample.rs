//! Sampling as documented at [`SampleRow`], on sorted probabilities in `f64`.

use std::cmp::Ordering;

use crate::error::{KernelError, Result};
use crate::shapes::{SampleRow, Sampled};

fn log_total(logits: &[f64]) -> f64 {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + logits.iter().map(|l| (l - largest).exp()).sum::<f64>().ln()
}

/// Logits after bias and mask.
pub(crate) fn adjusted(logits: &[f32], row: &SampleRow) -> Vec<f64> {
    let mut adjusted: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    for &(token, amount) in &row.bias {
        adjusted[token as usize] = f64::from(adjusted[token as usize] as f32 + amount);
    }
    if let Some(mask) = &row.mask {
        for (i, logit) in adjusted.iter_mut().enumerate() {
            if mask[i / 32] >> (i % 32) & 1 == 0 {
                *logit = f64::NEG_INFINITY;
            }
        }
    }
    adjusted
}

/// Tokens that survive the truncations with their probabilities at the row's temperature, in order of number.
/// `adjusted` has a largest element.
pub(crate) fn kept(adjusted: &[f64], row: &SampleRow) -> Vec<(u32, f64)> {
    let temperature = f64::from(row.temperature);
    let scaled: Vec<f64> = adjusted.iter().map(|l| l / temperature).collect();
    let total = log_total(&scaled);
    let mut kept: Vec<(u32, f64)> = (0u32..).zip(scaled.iter().map(|l| (l - total).exp())).collect();
    kept.retain(|&(i, _)| adjusted[i as usize] > f64::NEG_INFINITY);
    // Stable: of equal tokens the lower number comes first.
    kept.sort_by(|a, b| b.1.total_cmp(&a.1));
    if row.top_k > 0 {
        kept.truncate(row.top_k as usize);
    }
    let mass: f64 = kept.iter().map(|k| k.1).sum();
    let mut reached = 0.0;
    let enough = kept.iter().position(|k| {
        reached += k.1;
        reached >= f64::from(row.top_p) * mass
    });
    if let (true, Some(last)) = (row.top_p < 1.0, enough) {
        kept.truncate(last + 1);
    }
    let least = kept[0].1 * f64::from(row.min_p);
    kept.retain(|k| k.1 >= least);
    kept.sort_by_key(|k| k.0);
    kept
}

pub(super) fn sample(logits: &[f32], row: &SampleRow) -> Result<Sampled> {
    if logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
        return Err(KernelError::Device("sample: logits hold NaN or infinity".into()));
    }
    let raw: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    let adjusted = adjusted(logits, row);
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // Stable, and both zeros are equal: of equal logits the lower number comes first. No logit is NaN here.
    order.sort_by(|&a, &b| adjusted[b as usize].partial_cmp(&adjusted[a as usize]).unwrap_or(Ordering::Equal));
    if adjusted[order[0] as usize] == f64::NEG_INFINITY {
        return Err(KernelError::Device("sample: no token is allowed".into()));
    }
    let token = if row.temperature == 0.0 {
        order[0]
    } else {
        let kept = kept(&adjusted, row);
        let target = f64::from(row.draw) * kept.iter().map(|k| k.1).sum::<f64>();
        let mut passed = 0.0;
        let drawn = kept.iter().find(|k| {
            passed += k.1;
            passed > target
        });
        drawn.unwrap_or(&kept[kept.len() - 1]).0
    };
    let mut sampled = Sampled { token, logprob: None, top: Vec::new(), watched: Vec::new() };
    if let Some(n) = row.logprobs {
        let total = log_total(&adjusted);
        sampled.logprob = Some((adjusted[token as usize] - total) as f32);
        let best = order.iter().take(n as usize).filter(|&&i| adjusted[i as usize] > f64::NEG_INFINITY);
        sampled.top = best.map(|&i| (i, (adjusted[i as usize] - total) as f32)).collect();
    }
    if !row.watch.is_empty() {
        let total = log_total(&raw);
        sampled.watched = row.watch.iter().map(|&i| (raw[i as usize] - total) as f32).collect();
    }
    Ok(sampled)
}
