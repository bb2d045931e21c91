//! Sampling: the documented order of steps, draws at chosen places of the distribution, log-probabilities.

use super::Suite;
use crate::backend::Backend;
use crate::reference::{Reference, sampling};
use crate::shapes::{SampleRow, Sampled};

/// Log-probabilities in `f32` of logits up to 10.
const LOGPROB: f64 = 3e-6;
/// How far (in probability) from the draw the edge of the chosen token may lie.
const EDGE: f64 = 1e-5;

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    for vocabulary in [1, 31, 257, 4099, 20_000] {
        let rows: Vec<SampleRow> = (0..48).map(|i| row(suite, vocabulary, i)).collect();
        let mut logits = suite.random.input(rows.len(), vocabulary, 3.0);
        // Equal largest logits: the lowest number wins.
        if vocabulary > 100 {
            logits.values[70] = 25.0;
            logits.values[7] = 25.0;
        }
        let got = logits.on(suite.backend).and_then(|logits| suite.backend.sample(&logits, &rows));
        let want = logits.on(&Reference).and_then(|logits| Reference.sample(&logits, &rows));
        let name = format!("sample of {vocabulary}");
        let (got, want) = match (got, want) {
            (Ok(got), Ok(want)) => (got, want),
            (Err(e), _) | (_, Err(e)) => {
                suite.note(name, (0.0, LOGPROB), Err(e.to_string()));
                continue;
            }
        };
        let (mut worst, mut outcome) = (0.0f64, Ok(()));
        for (i, row) in rows.iter().enumerate() {
            match compare(logits.rows_of(i..i + 1), row, &got[i], &want[i]) {
                Ok(error) => worst = worst.max(error),
                Err(why) => outcome = Err(format!("row {i} ({row:?}): {why}")),
            }
        }
        suite.note(name, (worst, LOGPROB), outcome);
        let alone = logits.part(suite.backend, 5..6).and_then(|x| suite.backend.sample(&x, &rows[5..6]));
        let same = alone.is_ok_and(|alone| alone[0] == got[5]);
        let outcome = if same { Ok(()) } else { Err("a row alone differs".into()) };
        suite.note(format!("sample of {vocabulary}, row invariance"), (0.0, 0.0), outcome);
    }
}

/// The `i`-th kind of row: every combination of truncations, with and without bias, mask and reports.
fn row<B>(suite: &mut Suite<'_, B>, vocabulary: usize, i: usize) -> SampleRow {
    let mut row = SampleRow { draw: suite.random.uniform(), ..SampleRow::default() };
    row.temperature = [0.0, 0.7, 1.0, 1.9][i % 4];
    if i & 4 != 0 {
        row.top_k = 1 + suite.random.below(60) as u32;
    }
    if i & 8 != 0 {
        row.top_p = 0.3 + 0.69 * suite.random.uniform();
    }
    if i & 16 != 0 {
        row.min_p = 0.2 * suite.random.uniform();
    }
    if i >= 32 || i == 3 {
        row.bias = (0..5).map(|_| (suite.random.below(vocabulary) as u32, 4.0 * suite.random.normal())).collect();
        let mut mask: Vec<u32> = (0..vocabulary.div_ceil(32)).map(|_| suite.random.next() as u32).collect();
        mask[0] |= 1;
        row.mask = Some(mask);
    }
    if i % 3 == 1 {
        row.logprobs = Some((i % 7) as u32);
        row.watch = (0..i % 4).map(|_| suite.random.below(vocabulary) as u32).collect();
    }
    row
}

/// Largest error of the log-probabilities, or what is wrong.
fn compare(logits: &[f32], row: &SampleRow, got: &Sampled, want: &Sampled) -> Result<f64, String> {
    if got.token != want.token && !(row.temperature > 0.0 && near_the_draw(logits, row, got.token)) {
        return Err(format!("token {} instead of {}", got.token, want.token));
    }
    let same_tokens = got.top.iter().map(|t| t.0).eq(want.top.iter().map(|t| t.0));
    let same_reports = got.logprob.is_some() == want.logprob.is_some() && got.watched.len() == want.watched.len();
    if !same_tokens || !same_reports {
        return Err(format!("{got:?} instead of {want:?}"));
    }
    let chosen = got.logprob.zip(want.logprob).filter(|_| got.token == want.token);
    let tops = got.top.iter().map(|t| t.1).zip(want.top.iter().map(|t| t.1));
    let watched = got.watched.iter().copied().zip(want.watched.iter().copied());
    Ok(chosen
        .into_iter()
        .chain(tops)
        .chain(watched)
        .map(|(got, want)| f64::from((got - want).abs() / want.abs().max(1.0)))
        .fold(0.0, f64::max))
}

/// Rounding may move an edge of the cumulated distribution across the draw; then the neighbour is right as well.
fn near_the_draw(logits: &[f32], row: &SampleRow, token: u32) -> bool {
    let kept = sampling::kept(&sampling::adjusted(logits, row), row);
    let mass: f64 = kept.iter().map(|k| k.1).sum();
    let mut start = 0.0;
    for (id, probability) in kept {
        let end = start + probability / mass;
        if id == token {
            return (start - EDGE..end + EDGE).contains(&f64::from(row.draw));
        }
        start = end;
    }
    false
}
