//! SmolLM2-135M-Instruct, real weights in Q4_1, against transformers on the same weights.
//!
//! Weights are fetched by `tests/weights/fetch`; `WEFT_WEIGHTS_CACHE` names the folder they are in.

use std::path::PathBuf;

use serde_json::Value;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::families::Loaded;
use weft_engine::handle::{ModelConfig, ModelSource, Precision};
use weft_kernels::CpuBackend;

use crate::driver::{Answer, PAGE_TOKENS, Prompt, answer, every_row};
use crate::golden::numbers;

const GOLDEN: &str = include_str!("../../../tests/golden/real/smollm2.json");

fn source(golden: &Value) -> ModelSource {
    let cache =
        std::env::var_os("WEFT_WEIGHTS_CACHE").expect("set WEFT_WEIGHTS_CACHE to the folder of fetched weights");
    let file = PathBuf::from(cache).join(golden["file"].as_str().unwrap());
    assert!(file.is_file(), "{} is missing: run tests/weights/fetch", file.display());
    ModelSource::Path(file)
}

fn load(golden: &Value, precision: Precision) -> (CpuBackend, Loaded<CpuBackend>) {
    let backend = CpuBackend::new(2);
    let source = source(golden);
    let checkpoint = Checkpoint::open(&source).unwrap();
    let config = ModelConfig { name: "smollm2".into(), source, precision };
    let model = Loaded::load(&backend, &checkpoint, &config, PAGE_TOKENS).unwrap();
    (backend, model)
}

fn answers(golden: &Value, precision: Precision) -> Vec<Answer> {
    let (backend, model) = load(golden, precision);
    let card = model.card();
    assert_eq!((card.vocabulary, card.context, card.end_tokens.as_slice()), (49_152, 8192, [2].as_slice()));
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 8);
    let prompts: Vec<Prompt> = cases.iter().map(|case| Prompt::text(&numbers(&case["prompt_ids"]))).collect();
    answer(&backend, &model, &prompts, 64, 256)
}

#[test]
#[ignore = "needs real weights: run tests/weights/fetch, set WEFT_WEIGHTS_CACHE, pass --ignored"]
fn smollm2_dequantised_equals_the_reference() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let mut worst = 0f64;
    let answers = answers(&golden, Precision::Float32);
    for (case, got) in golden["cases"].as_array().unwrap().iter().zip(&answers) {
        for (id, logit) in numbers(&case["top20_ids"]).iter().zip(case["top20_logits"].as_array().unwrap()) {
            worst = worst.max((f64::from(got.logits[*id as usize]) - logit.as_f64().unwrap()).abs());
        }
    }
    println!("{} prompts: top logits differ by at most {worst:.2e}", answers.len());
    // 4.4e-5 was observed.
    assert!(worst <= 1e-3, "logits differ by {worst:.2e}");
    for (case, got) in golden["cases"].as_array().unwrap().iter().zip(&answers) {
        let expected = numbers(&case["greedy_ids"]);
        assert_eq!(got.tokens[..expected.len()], expected, "{}", case["id"]);
    }
}

#[test]
#[ignore = "needs real weights: run tests/weights/fetch, set WEFT_WEIGHTS_CACHE, pass --ignored"]
fn smollm2_as_stored_begins_like_the_reference() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let answers = answers(&golden, Precision::Stored);
    let cases = golden["cases"].as_array().unwrap();
    let equal = |(case, got): (&Value, &Answer)| {
        numbers(&case["greedy_ids"]).iter().zip(&got.tokens).take_while(|(a, b)| a == b).count()
    };
    let lengths: Vec<usize> = cases.iter().zip(&answers).map(equal).collect();
    println!("equal tokens at the start of each answer: {lengths:?}");
    // 222 of 512 were observed: quantised products round activations, and one near tie ends the likeness.
    assert!(lengths.iter().sum::<usize>() >= 64, "{lengths:?}");
}

/// Perplexity of the paragraph relative to the reference's, minus one.
fn perplexity_error(precision: Precision) -> f64 {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let ids = numbers(&golden["perplexity"]["ids"]);
    let expected = golden["perplexity"]["perplexity"].as_f64().unwrap();
    let (backend, model) = load(&golden, precision);
    let logits = every_row(&backend, &model, &ids);
    let surprise = logits.chunks_exact(model.card().vocabulary).zip(&ids[1..]).map(|(row, &next)| {
        let largest = row.iter().fold(f32::MIN, |max, &x| max.max(x));
        let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - largest)
    });
    let perplexity = (surprise.sum::<f64>() / (ids.len() - 1) as f64).exp();
    println!("{precision:?}: perplexity {perplexity:.4}, the reference's {expected:.4}");
    perplexity / expected - 1.0
}

#[test]
#[ignore = "needs real weights: run tests/weights/fetch, set WEFT_WEIGHTS_CACHE, pass --ignored"]
fn smollm2_dequantised_perplexity_equals_the_reference() {
    let error = perplexity_error(Precision::Float32);
    // 5.2e-7 was observed.
    assert!(error.abs() <= 1e-4, "{error:.1e}");
}

#[test]
#[ignore = "needs real weights: run tests/weights/fetch, set WEFT_WEIGHTS_CACHE, pass --ignored"]
fn smollm2_as_stored_has_nearly_the_references_perplexity() {
    let error = perplexity_error(Precision::Stored);
    // With activations rounded to 8 bits in blocks of 32, 1.4e-2 was observed, and the same when transformers is made to
    // round that way; 9 bits would give 3e-3.
    assert!(error.abs() <= 0.01, "{error:.1e}");
}
