//! Qwen2.5-Omni thinker against transformers: towers, positions, logits, greedy text.

use weft_engine::card::Family;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::families::Loaded;
use weft_engine::handle::Precision;
use weft_engine::media::Medium;
use weft_kernels::{Backend, CpuBackend};

use crate::driver::{PAGE_TOKENS, Prompt, Tensor, answer, difference, encode, encode_in_pieces, relative_error};
use crate::golden::{self, Case, Prepared};

const STEPS: usize = 32;
/// Largest accepted difference of logits in float32; 1.6e-5 was observed.
const LOGITS: f32 = 1e-3;
/// Largest accepted relative error of a tower; 1.1e-6 was observed.
const TOWER: f32 = 1e-4;

fn load(precision: Precision) -> (CpuBackend, Loaded<CpuBackend>) {
    let backend = CpuBackend::new(1);
    let config = golden::config(precision);
    let checkpoint = Checkpoint::open(&config.source).unwrap();
    let model = Loaded::load(&backend, &checkpoint, &config, PAGE_TOKENS).unwrap();
    (backend, model)
}

fn media(model: &Loaded<CpuBackend>) -> Vec<Prepared> {
    golden::media(model.card().image.as_ref().unwrap())
}

/// Cases all of whose media are prepared, as prompts.
fn prompts(backend: &CpuBackend, model: &Loaded<CpuBackend>) -> Vec<(Case, Prompt)> {
    let prepared = media(model);
    let encoded: Vec<Tensor> =
        prepared.iter().map(|p| encode(backend, model, &[&p.medium], usize::MAX).remove(0)).collect();
    let find = |file: &str| prepared.iter().position(|p| p.file == file).map(|i| encoded[i].clone());
    let prompts: Vec<(Case, Prompt)> = golden::cases()
        .into_iter()
        .filter_map(|case| {
            let media = case.media.iter().map(|(file, at)| Some((*at, find(file)?))).collect::<Option<Vec<_>>>()?;
            let prompt = Prompt { ids: case.prompt.clone(), parts: case.parts.clone(), media };
            Some((case, prompt))
        })
        .collect();
    assert!(prompts.len() >= 24, "{} prompts can be run", prompts.len());
    prompts
}

#[test]
fn towers_equal_the_reference() {
    for precision in [Precision::Stored, Precision::Float32] {
        let (backend, model) = load(precision);
        for prepared in media(&model) {
            let Some(expected) = &prepared.encoded else { continue };
            let got = encode(&backend, &model, &[&prepared.medium], 1).remove(0);
            let error = relative_error(&backend.download(&got).unwrap(), expected);
            println!("{precision:?} {}: relative error {error:.2e}", prepared.file);
            assert!(error <= TOWER, "{}: relative error {error:.2e}", prepared.file);
        }
    }
}

#[test]
fn a_medium_is_encoded_alike_alone_in_a_batch_and_in_slices() {
    let (backend, model) = load(Precision::Stored);
    let prepared = media(&model);
    for pictures in [true, false] {
        let tower: Vec<&Medium> =
            prepared.iter().map(|p| &p.medium).filter(|m| matches!(m, Medium::Image(_)) == pictures).collect();
        let together = encode(&backend, &model, &tower, usize::MAX);
        for (medium, together) in tower.iter().zip(&together) {
            let together = backend.download(together).unwrap();
            for layers in [1, 2, 3, usize::MAX] {
                let alone = encode(&backend, &model, &[*medium], layers).remove(0);
                assert!(backend.download(&alone).unwrap() == together, "slices of {layers} layers");
            }
        }
        for rows in [1, 7, 33, usize::MAX] {
            let (pieces, launches) = encode_in_pieces(&backend, &model, &tower, rows);
            // Attention and the rest of each layer, in towers of at least three layers, and what comes before them.
            assert!(launches > 2 * 3, "{launches} pieces of {rows} rows");
            for (piece, together) in pieces.iter().zip(&together) {
                let (piece, together) = (backend.download(piece).unwrap(), backend.download(together).unwrap());
                assert!(piece == together, "pieces of {rows} rows");
            }
        }
    }
}

#[test]
fn positions_equal_the_reference() {
    let (_, model) = load(Precision::Stored);
    for case in golden::cases() {
        let got = model.positions(&case.parts);
        assert_eq!(got.rows, case.positions, "{}: {}", case.id, case.kind);
        assert_eq!(got.next, case.next, "{}: {}", case.id, case.kind);
    }
}

#[test]
fn logits_and_greedy_text_equal_the_reference() {
    let (backend, model) = load(Precision::Float32);
    let (cases, prompts): (Vec<Case>, Vec<Prompt>) = prompts(&backend, &model).into_iter().unzip();
    let mut worst = 0f32;
    let mut alone = Vec::new();
    for (case, prompt) in cases.iter().zip(&prompts) {
        let got = answer(&backend, &model, std::slice::from_ref(prompt), STEPS, usize::MAX).remove(0);
        let error = difference(&got.logits, &case.logits);
        worst = worst.max(error);
        assert!(error <= LOGITS, "{} ({}): logits differ by {error:.2e}", case.id, case.kind);
        assert_eq!(got.tokens, case.greedy, "{} ({})", case.id, case.kind);
        alone.push(got);
    }
    println!("{} prompts: logits differ by at most {worst:.2e}, {STEPS} tokens equal in each", cases.len());
    // The same bits in a batch of all, however the prompts are cut.
    for chunk in [usize::MAX, 7] {
        assert!(answer(&backend, &model, &prompts, STEPS, chunk) == alone, "chunks of {chunk}");
    }
}

#[test]
fn weights_as_stored_give_the_same_text() {
    let (backend, model) = load(Precision::Stored);
    let (cases, prompts): (Vec<Case>, Vec<Prompt>) = prompts(&backend, &model).into_iter().unzip();
    for (case, got) in cases.iter().zip(answer(&backend, &model, &prompts, STEPS, 64)) {
        let error = difference(&got.logits, &case.logits);
        assert!(error <= LOGITS, "{}: logits differ by {error:.2e}", case.id);
        assert_eq!(got.tokens, case.greedy, "{} ({})", case.id, case.kind);
    }
}

#[test]
fn the_card_tells_what_stages_need() {
    let (_, model) = load(Precision::Stored);
    let card = model.card();
    assert_eq!(card.family, Family::QwenOmni);
    assert_eq!((card.parameters, card.vocabulary, card.context), (845_280, 2048, 4096));
    assert_eq!(card.dtype, "bf16");
    assert_eq!(card.end_tokens, [2038, 2039]);
    assert_eq!((card.image_token, card.audio_token), (Some(2040), Some(2041)));
    let image = card.image.as_ref().unwrap();
    assert_eq!((image.patch, image.merge, image.min_pixels, image.max_pixels), (14, 2, 3136, 1_003_520));
    let audio = card.audio.as_ref().unwrap();
    assert_eq!((audio.bins, audio.hop, audio.fft, audio.max_seconds), (128, 160, 400, 300.0));
    assert!(card.chat_template.as_ref().unwrap().contains("<|im_start|>"));
    assert!(card.template_tokens.contains(&("eos_token".into(), "<|im_end|>".into())));
    assert_eq!(card.generation.temperature, None);
}

#[test]
fn an_outline_needs_no_weights_on_a_device() {
    let checkpoint = Checkpoint::open(&golden::config(Precision::Stored).source).unwrap();
    let sizes: Vec<_> = checkpoint.tensor_sizes().collect();
    assert_eq!(sizes.iter().map(|tensor| tensor.parameters).sum::<u64>(), 845_408);
    assert_eq!(sizes.iter().map(|tensor| tensor.bytes).sum::<u64>(), 1_690_816);
    let outline = checkpoint.outline().unwrap();
    assert_eq!((outline.context, outline.kv_bytes_per_token), (4096, 2 * 4 * 3 * 2 * 16));
    assert!(outline.image.is_some() && outline.audio.is_some());
}
