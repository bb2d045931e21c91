//! Real weights on recorded speech, when asked: `cargo test --release -p weft-engine --test whisper -- --ignored`, after
//! `tests/weights/fetch whisper-tiny.en whisper-base` (another cache folder by `WEFT_WEIGHTS_CACHE`). Missing weights fail
//! the tests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use safetensors::SafeTensors;
use serde::Deserialize;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::config::{EngineConfig, ModelConfig, ModelSource, Precision};
use weft_engine::families::{Loaded, StepBatch, StepSequence};
use weft_engine::handle::Engine;
use weft_engine::media::Medium;
use weft_engine::transcribe::{Mode, TranscribeOptions, transcribe};
use weft_kernels::{Backend, CpuBackend};

use super::speech::{log_mel, read};
use super::transcripts::block_on;

/// Relative error of encoder output and logits that is allowed; 1e-5 was seen.
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    clips: Vec<Clip>,
}

#[derive(Deserialize)]
struct Clip {
    id: String,
    file: String,
    words: String,
    language_id: Option<u32>,
    plain: Option<Run>,
    timestamps: Run,
}

#[derive(Deserialize)]
struct Run {
    text: String,
    ids: Vec<u32>,
    segments: Vec<Span>,
    prompt_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Span {
    start: f64,
    end: f64,
    ids: Vec<u32>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn weights(name: &str) -> PathBuf {
    let cache =
        std::env::var_os("WEFT_WEIGHTS_CACHE").map_or_else(|| repository().join("tests/.cache/weights"), PathBuf::from);
    let folder = cache.join(name);
    assert!(folder.is_dir(), "{} is missing; run tests/weights/fetch {name}", folder.display());
    folder
}

fn config(name: &str) -> ModelConfig {
    ModelConfig { name: name.to_owned(), source: ModelSource::Path(weights(name)), precision: Precision::Stored }
}

fn golden(name: &str) -> Golden {
    let text = match name {
        "whisper-tiny.en" => include_str!("../../../tests/golden/real/whisper_tiny_en.json"),
        _ => include_str!("../../../tests/golden/real/whisper_base.json"),
    };
    serde_json::from_str(text).expect("a golden file")
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = tensors.tensor(name).expect("a golden tensor").data();
    bytes.chunks_exact(4).map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]])).collect()
}

fn relative_error(expected: &[f32], got: &[f32]) -> f32 {
    assert_eq!(expected.len(), got.len());
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    expected.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Tokens to text: byte-level BPE keeps every byte as a printable character.
struct Vocabulary(HashMap<u32, String>);

impl Vocabulary {
    fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("tokenizer.json")).expect("a tokenizer");
        let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let entries = file["model"]["vocab"].as_object().expect("a vocabulary");
        Self(entries.iter().map(|(text, id)| (id.as_u64().expect("an id") as u32, text.clone())).collect())
    }

    fn text(&self, tokens: &[u32]) -> String {
        let plain = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let hidden: Vec<u32> = (0..256).filter(|byte| !plain(byte)).collect();
        let byte = |character: char| match u32::from(character) {
            code @ 0x100.. => hidden[code as usize - 0x100] as u8,
            code => code as u8,
        };
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.0[token].chars()).map(byte).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn words(text: &str) -> Vec<String> {
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '\'' { c.to_ascii_lowercase() } else { ' ' };
    text.chars().map(kept).collect::<String>().split_whitespace().map(str::to_owned).collect()
}

/// Word errors: the edit distance.
fn errors(truth: &[String], heard: &[String]) -> usize {
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (at, word) in truth.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, other) in heard.iter().enumerate() {
            let best = (diagonal + usize::from(word != other)).min(row[column] + 1).min(row[column + 1] + 1);
            diagonal = std::mem::replace(&mut row[column + 1], best);
        }
    }
    row[heard.len()]
}

fn towers(name: &str, tensors: &[u8]) {
    let golden = golden(name);
    let tensors = SafeTensors::deserialize(tensors).expect("golden tensors");
    let backend = CpuBackend::new(2);
    let config = config(name);
    let checkpoint = Checkpoint::open(&config.source).expect("opens");
    let loaded = Loaded::load(&backend, &checkpoint, &config, 16).expect("loads");
    let clip = &golden.clips[0];
    let mel = Medium::Audio(log_mel(&read(&repository().join("tests/golden/real").join(&clip.file))));
    let mut run = loaded.begin_encode(&backend, &[&mel]).expect("begins");
    let started = Instant::now();
    let encoded = run.advance(&backend, 99).expect("advances").expect("is finished").remove(0);
    let values = backend.download(&encoded).expect("downloads");
    println!("{name}: encoder {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let (rows, width) = backend.shape(&encoded);
    let sample: Vec<f32> = values.chunks(width).step_by(100).flatten().copied().collect();
    let encoder = relative_error(&floats(&tensors, "clip1.encoder_every_100"), &sample);

    let kv = loaded.kv();
    let mut pages: Vec<_> = (0..kv.layers).map(|_| backend.pages(kv.pages, 100).expect("pages")).collect();
    let cross: Vec<u32> = (4..100).collect();
    let slots: Vec<u32> = (4 * 16..4 * 16 + rows as u32).collect();
    loaded.write_cross(&backend, &encoded, &slots, &mut pages).expect("writes");
    let ids = clip.plain.as_ref().and_then(|run| run.prompt_ids.clone()).expect("a prompt");
    let sequence = StepSequence {
        rows: 0..ids.len(),
        context: ids.len(),
        table: &[0],
        cross: Some((&cross, rows)),
        wants_logits: true,
    };
    let positions: Vec<_> = (0..ids.len() as u32).map(|position| [position; 3]).collect();
    let slots: Vec<u32> = (0..ids.len() as u32).collect();
    let batch = StepBatch {
        ids: &ids,
        positions: &positions,
        slots: &slots,
        media: &[],
        sequences: std::slice::from_ref(&sequence),
    };
    let logits = loaded.step(&backend, &batch, &mut pages).expect("steps").expect("logits");
    let expected = floats(&tensors, "clip1.first_logits");
    let first = relative_error(&expected, &backend.download(&logits).expect("downloads")[..expected.len()]);
    println!("{name}: relative error of the encoder {encoder:.1e}, of the first logits {first:.1e}");
    assert!(encoder < TOLERANCE && first < TOLERANCE);
}

fn transcripts(name: &str) {
    let folder = weights(name);
    let vocabulary = Vocabulary::read(&folder);
    let engine = EngineConfig { models: vec![config(name)], threads: 2, ..EngineConfig::default() };
    let engine = Engine::start(engine).expect("starts");
    let model = engine.model(name).expect("is there");
    let text = |tokens: &[u32]| vocabulary.text(tokens);
    let (mut wrong, mut spoken) = (0, 0);
    let mut differing = Vec::new();
    for clip in golden(name).clips {
        let mel = log_mel(&read(&repository().join("tests/golden/real").join(&clip.file)));
        let runs = [(Mode::Timestamps, Some(&clip.timestamps)), (Mode::Plain, clip.plain.as_ref())];
        for (mode, run) in runs.into_iter().filter_map(|(mode, run)| Some((mode, run?))) {
            let options = TranscribeOptions {
                mode,
                temperatures: vec![0.0],
                compression_ratio_threshold: None,
                logprob_threshold: None,
                no_speech_threshold: None,
                ..TranscribeOptions::default()
            };
            let started = Instant::now();
            let heard = block_on(transcribe(&model, mel.clone(), &options, &text, &mut |_| {})).expect("transcribes");
            let seconds = started.elapsed().as_secs_f64();
            let ids: Vec<u32> = heard.segments.iter().flat_map(|segment| segment.tokens.iter().copied()).collect();
            println!("{name} {} {mode:?}: {seconds:.2} s, {:.90}", clip.id, heard.text);
            if ids != run.ids || heard.text != run.text {
                differing.push(format!("{} {mode:?}: {:?}, expected {:?}", clip.id, heard.text, run.text));
                continue;
            }
            if let Some(token) = clip.language_id {
                let card = model.card().transcription.as_ref().expect("a card");
                assert_eq!(card.languages.iter().find(|(_, known)| *known == token).expect("known").0, heard.language);
            }
            if mode == Mode::Timestamps {
                for (segment, expected) in heard.segments.iter().zip(&run.segments) {
                    assert_eq!(segment.tokens, expected.ids);
                    assert!(
                        (segment.start - expected.start).abs() < 0.006 && (segment.end - expected.end).abs() < 0.006
                    );
                }
                spoken += words(&clip.words).len();
                wrong += errors(&words(&clip.words), &words(&heard.text));
            }
        }
    }
    let rate = wrong as f64 / spoken as f64;
    println!("{name}: word error rate {:.2}% of {spoken} words", rate * 100.0);
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(rate <= 0.08, "{rate}");
    assert_eq!(engine.stats().audit_failures, 0);
}

#[test]
#[ignore = "needs real weights: tests/weights/fetch whisper-tiny.en"]
fn towers_of_tiny_en_equal_transformers() {
    towers("whisper-tiny.en", include_bytes!("../../../tests/golden/real/whisper_tiny_en.safetensors"));
}

#[test]
#[ignore = "needs real weights: tests/weights/fetch whisper-base"]
fn towers_of_base_equal_transformers() {
    towers("whisper-base", include_bytes!("../../../tests/golden/real/whisper_base.safetensors"));
}

#[test]
#[ignore = "needs real weights: tests/weights/fetch whisper-tiny.en"]
fn tiny_en_writes_what_transformers_writes() {
    transcripts("whisper-tiny.en");
}

#[test]
#[ignore = "needs real weights: tests/weights/fetch whisper-base"]
fn base_writes_what_transformers_writes() {
    transcripts("whisper-base");
}
