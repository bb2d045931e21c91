//! Embedding, products and convolution, over every weight format.

use std::borrow::Cow;

use super::{Suite, rowwise, same_bits, values};
use crate::backend::Backend;
use crate::error::Result;
use crate::quant;
use crate::shapes::Conv1dSpec;
use crate::weights::{WeightData, WeightFormat};

/// Products of dense weights: sums of up to 2,048 products in `f32`, results about 1.
const DENSE: f64 = 1e-5;
/// Products of quantised weights, whose implementations may round activations to 8 bits a block.
const QUANTISED: f64 = 4e-2;
/// One element of a quantised weight.
const ELEMENT: f64 = 1e-6;

const FORMATS: [WeightFormat; 11] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::BF16,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q5_0,
    WeightFormat::Q5_1,
    WeightFormat::Q8_0,
    WeightFormat::Q4K,
    WeightFormat::Q5K,
    WeightFormat::Q6K,
];

/// The values in a format.
pub(super) fn encode(values: &[f32], (rows, cols): (usize, usize), format: WeightFormat) -> WeightData<'static> {
    WeightData { rows, cols, format, bytes: Cow::Owned(quant::quantize(values, rows, cols, format)) }
}

pub(super) fn check<B: Backend>(suite: &mut Suite<'_, B>) {
    for format in FORMATS {
        if let Err(e) = linear(suite, format) {
            suite.note(format!("linear {format:?}"), (0.0, 0.0), Err(e.to_string()));
        }
    }
    if let Err(e) = group(suite).and_then(|()| conv1d(suite)) {
        suite.note("linear_group and conv1d".into(), (0.0, 0.0), Err(e.to_string()));
    }
}

fn linear<B: Backend>(suite: &mut Suite<'_, B>, format: WeightFormat) -> Result<()> {
    let block = format.block_elements();
    let dense = block == 1;
    let shapes: &[(usize, usize, usize)] = match block {
        1 => &[(1, 7, 5), (13, 129, 67), (64, 1024, 48), (67, 384, 130), (3, 2048, 33), (9, 33, 1)],
        32 => &[(1, 32, 5), (13, 96, 67), (67, 576, 130), (3, 1536, 33)],
        _ => &[(1, 256, 5), (13, 512, 67), (35, 1536, 66)],
    };
    for &(rows, inputs, outputs) in shapes {
        let x = suite.random.input(rows, inputs, 1.0);
        let weight = suite.random.input(outputs, inputs, 1.0 / (inputs as f32).sqrt());
        let bias = suite.random.input(1, outputs, 0.5);
        let data = encode(&weight.values, (outputs, inputs), format);
        let name = |op: &str| format!("{op} {format:?}, {rows} x {inputs} to {outputs}");
        let tolerance = if dense { DENSE } else { QUANTISED };
        rowwise!(suite, name("linear"), tolerance, rows, |b, r| b.linear(&x.part(b, r)?, &b.weight(&data)?, None));
        rowwise!(suite, name("linear with bias"), tolerance, rows, |b, r| {
            b.linear(&x.part(b, r)?, &b.weight(&data)?, Some(&bias.on(b)?))
        });
        let ids: Vec<u32> = (0..rows).map(|_| suite.random.below(outputs) as u32).collect();
        let tolerance = if dense { 0.0 } else { ELEMENT };
        rowwise!(suite, name("embed"), tolerance, rows, |b, r| b.embed(&b.weight(&data)?, &ids[r]));
    }
    Ok(())
}

/// A group gives the bits of its single products.
fn group<B: Backend>(suite: &mut Suite<'_, B>) -> Result<()> {
    let (rows, inputs) = (5, 256);
    let x = suite.random.input(rows, inputs, 1.0);
    for formats in
        [[WeightFormat::F32; 3], [WeightFormat::Q4_1; 3], [WeightFormat::Q4K, WeightFormat::Q6K, WeightFormat::F16]]
    {
        let b = suite.backend;
        let bias = suite.random.input(1, 40, 1.0).on(b)?;
        let mut weights = Vec::new();
        for (format, outputs) in formats.into_iter().zip([72, 40, 24]) {
            let weight = suite.random.input(outputs, inputs, 0.06);
            weights.push(b.weight(&encode(&weight.values, (outputs, inputs), format))?);
        }
        let x = x.on(b)?;
        let parts = [(&weights[0], None), (&weights[1], Some(&bias)), (&weights[2], None)];
        let together = b.linear_group(&x, &parts)?;
        let mut alike = together.len() == parts.len();
        for (together, (w, bias)) in together.iter().zip(parts) {
            alike &= same_bits(&b.download(together)?, &b.download(&b.linear(&x, w, bias)?)?);
        }
        let outcome = if alike { Ok(()) } else { Err("differs from single products".into()) };
        suite.note(format!("linear_group {formats:?}"), (0.0, 0.0), outcome);
    }
    Ok(())
}

fn conv1d<B: Backend>(suite: &mut Suite<'_, B>) -> Result<()> {
    let specs = [
        Conv1dSpec { kernel: 3, stride: 1, padding: 1 },
        Conv1dSpec { kernel: 3, stride: 2, padding: 1 },
        Conv1dSpec { kernel: 5, stride: 3, padding: 4 },
        Conv1dSpec { kernel: 4, stride: 4, padding: 0 },
    ];
    for spec in specs {
        for (channels, outputs, ends) in [(3, 5, vec![4, 9, 30]), (80, 33, vec![300]), (16, 8, vec![5, 10, 15, 20])] {
            let rows = ends[ends.len() - 1];
            let x = suite.random.input(rows, channels, 1.0);
            let inputs = spec.kernel * channels;
            let weight = suite.random.input(outputs, inputs, 1.0 / (inputs as f32).sqrt());
            let bias = suite.random.input(1, outputs, 0.5);
            let data = encode(&weight.values, (outputs, inputs), WeightFormat::F32);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let segments: Vec<_> = starts.zip(ends.iter().copied()).map(|(start, end)| start..end).collect();
            let name = format!("conv1d {spec:?}, {channels} to {outputs}, {} segments", segments.len());
            values!(suite, name, DENSE, |b| {
                b.conv1d(&x.on(b)?, &b.weight(&data)?, Some(&bias.on(b)?), &segments, spec)
            });
            // A segment alone gives the bits it gives among others.
            let b = suite.backend;
            let w = b.weight(&data)?;
            let together = b.download(&b.conv1d(&x.on(b)?, &w, None, &segments, spec)?)?;
            let mut alone = Vec::new();
            for s in &segments {
                alone.extend(b.download(&b.conv1d(&x.part(b, s.clone())?, &w, None, &[0..s.len()], spec)?)?);
            }
            let outcome = if same_bits(&together, &alone) { Ok(()) } else { Err("segments depend on others".into()) };
            suite.note(format!("conv1d {spec:?}, {channels} channels, invariance"), (0.0, 0.0), outcome);
        }
    }
    Ok(())
}
