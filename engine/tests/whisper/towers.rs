//! Encoder and decoder on their own: equal to transformers, and the same alone, in a batch, in slices and in chunks.

use weft_engine::ErrorKind;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::families::{Loaded, Piece, PromptPart, StepBatch, StepSequence};
use weft_engine::media::Medium;
use weft_kernels::{Backend, CpuBackend};

use super::checkpoint::{BINS, FRAMES, clip, model, reference};

const PAGE: usize = 4;
const PAGES: usize = 200;
const ROWS: usize = FRAMES / 2;

/// Relative error allowed against the reference; 1e-6 was seen.
const TOLERANCE: f32 = 1e-5;

type Pages = Vec<<CpuBackend as Backend>::Pages>;
type Tensor = <CpuBackend as Backend>::Tensor;

/// A model and the pages of a hand-driven device.
pub(crate) struct Rig {
    pub(crate) backend: CpuBackend,
    pub(crate) loaded: Loaded<CpuBackend>,
    pages: Pages,
    free: u32,
}

/// A sequence with its pages.
struct Seat {
    table: Vec<u32>,
    cross: Vec<u32>,
    context: usize,
}

impl Rig {
    fn new() -> Self {
        let backend = CpuBackend::new(2);
        let config = model();
        let checkpoint = Checkpoint::open(&config.source).expect("opens");
        let loaded = Loaded::load(&backend, &checkpoint, &config, PAGE).expect("loads");
        let kv = loaded.kv();
        let pages = (0..kv.layers).map(|_| backend.pages(kv.pages, PAGES).expect("pages")).collect();
        Self { backend, loaded, pages, free: 0 }
    }

    /// Encoder output, in steps of `layers` layers.
    fn encode(&self, media: &[&Medium], layers: usize) -> Vec<Tensor> {
        let mut run = self.loaded.begin_encode(&self.backend, media).expect("begins");
        loop {
            let before = run.done();
            if let Some(encoded) = run.advance(&self.backend, layers).expect("advances") {
                assert_eq!(run.done(), run.layers());
                return encoded;
            }
            assert_eq!(run.done(), before + layers);
        }
    }

    /// Encoder output, in pieces of `rows` rows.
    fn encode_in_pieces(&self, media: &[&Medium], rows: usize) -> Vec<Tensor> {
        let mut run = self.loaded.begin_encode(&self.backend, media).expect("begins");
        loop {
            let piece = Piece::Rows(rows);
            if let Some(encoded) = run.advance_piece(&self.backend, piece).expect("advances") {
                return encoded;
            }
        }
    }

    fn values(&self, x: &Tensor) -> Vec<f32> {
        self.backend.download(x).expect("downloads")
    }

    fn take(&mut self, tokens: usize) -> Vec<u32> {
        let from = self.free;
        self.free += tokens.div_ceil(PAGE) as u32;
        // Not in order, so that a table that is ignored shows.
        (from..self.free).rev().collect()
    }

    fn seat(&mut self, encoded: &Tensor) -> Seat {
        let seat = Seat { table: self.take(40), cross: self.take(ROWS), context: 0 };
        let slots = slots(&seat.cross, 0, ROWS);
        self.loaded.write_cross(&self.backend, encoded, &slots, &mut self.pages).expect("writes");
        seat
    }

    /// Feeds tokens to sequences in one step; logits of each one's last row.
    fn step(&mut self, parts: &mut [(&mut Seat, &[u32])]) -> Vec<Vec<f32>> {
        let (mut ids, mut positions, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (seat, tokens) in parts.iter_mut() {
            ids.extend_from_slice(tokens);
            positions.extend((seat.context..seat.context + tokens.len()).map(|position| [position as u32; 3]));
            places.extend(slots(&seat.table, seat.context, tokens.len()));
            seat.context += tokens.len();
        }
        let mut at = 0;
        let sequences: Vec<_> = parts
            .iter()
            .map(|(seat, tokens)| {
                at += tokens.len();
                StepSequence {
                    rows: at - tokens.len()..at,
                    context: seat.context,
                    table: &seat.table,
                    cross: Some((&seat.cross, ROWS)),
                    wants_logits: true,
                }
            })
            .collect();
        let batch = StepBatch { ids: &ids, positions: &positions, slots: &places, media: &[], sequences: &sequences };
        let logits = self.loaded.step(&self.backend, &batch, &mut self.pages).expect("steps").expect("logits");
        let (rows, vocabulary) = self.backend.shape(&logits);
        assert_eq!(rows, parts.len());
        self.values(&logits).chunks(vocabulary).map(<[f32]>::to_vec).collect()
    }
}

fn slots(table: &[u32], from: usize, count: usize) -> Vec<u32> {
    (from..from + count).map(|at| table[at / PAGE] * PAGE as u32 + (at % PAGE) as u32).collect()
}

fn relative_error(expected: &[f32], got: &[f32]) -> f32 {
    assert_eq!(expected.len(), got.len());
    let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    expected.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

fn audio(name: &str) -> Medium {
    Medium::Audio(clip(name, FRAMES))
}

#[test]
fn the_encoder_equals_transformers() {
    let rig = Rig::new();
    let encoded = rig.encode(&[&audio("window")], 99);
    let error = relative_error(&reference().encoded, &rig.values(&encoded[0]));
    println!("encoder: relative error {error:.1e}");
    assert!(error < TOLERANCE, "{error:e}");
}

#[test]
fn the_decoder_equals_transformers_token_by_token() {
    let mut rig = Rig::new();
    let encoded = rig.encode(&[&audio("window")], 99).remove(0);
    let mut seat = rig.seat(&encoded);
    let logits: Vec<f32> =
        [41, 42, 46, 50, 11, 12].iter().flat_map(|&token| rig.step(&mut [(&mut seat, &[token])]).remove(0)).collect();
    let error = relative_error(&reference().logits, &logits);
    println!("decoder: relative error {error:.1e}");
    assert!(error < TOLERANCE, "{error:e}");
}

#[test]
fn a_clip_is_encoded_the_same_alone_in_a_batch_and_in_slices() {
    let rig = Rig::new();
    let clips = ["a", "b", "c"].map(audio);
    let alone: Vec<_> = clips.iter().map(|clip| rig.values(&rig.encode(&[clip], 99)[0])).collect();
    for layers in 1..4 {
        let together = rig.encode(&clips.iter().collect::<Vec<_>>(), layers);
        let together: Vec<_> = together.iter().map(|encoded| rig.values(encoded)).collect();
        assert_eq!(together, alone, "slices of {layers}");
    }
    for rows in [1, 7, 4096] {
        let together = rig.encode_in_pieces(&clips.iter().collect::<Vec<_>>(), rows);
        let together: Vec<_> = together.iter().map(|encoded| rig.values(encoded)).collect();
        assert_eq!(together, alone, "pieces of {rows} rows");
    }
}

#[test]
fn a_sequence_is_decoded_the_same_alone_in_a_batch_and_in_chunks() {
    let mut rig = Rig::new();
    let clips = ["a", "b"].map(audio);
    let encoded = rig.encode(&clips.iter().collect::<Vec<_>>(), 99);
    let prompts: [&[u32]; 2] = [&[41, 42, 46, 50, 1, 2, 3], &[47, 9, 9, 9, 41]];
    let mut alone = Vec::new();
    for (encoded, prompt) in encoded.iter().zip(prompts) {
        let mut seat = rig.seat(encoded);
        alone.push(rig.step(&mut [(&mut seat, prompt)]).remove(0));
    }
    let (mut first, mut second) = (rig.seat(&encoded[0]), rig.seat(&encoded[1]));
    assert_eq!(rig.step(&mut [(&mut first, prompts[0]), (&mut second, prompts[1])]), alone, "batched");
    let (mut first, mut second) = (rig.seat(&encoded[0]), rig.seat(&encoded[1]));
    rig.step(&mut [(&mut first, &prompts[0][..4])]);
    rig.step(&mut [(&mut second, &prompts[1][..1]), (&mut first, &prompts[0][4..6])]);
    let chunked = rig.step(&mut [(&mut first, &prompts[0][6..]), (&mut second, &prompts[1][1..])]);
    assert_eq!(chunked, alone, "chunked");
}

#[test]
fn anything_but_a_whole_window_is_refused() {
    let rig = Rig::new();
    let refuse = |medium: Medium| rig.loaded.begin_encode(&rig.backend, &[&medium]).err().expect("refused");
    let short = refuse(Medium::Audio(clip("a", FRAMES - 1)));
    assert_eq!(short.kind, ErrorKind::Malformed);
    assert!(short.message.contains("exactly 100 frames of 8 mel bands"), "{short}");
    let mut wide = clip("a", FRAMES);
    wide.bins = BINS + 1;
    assert_eq!(refuse(Medium::Audio(wide)).kind, ErrorKind::Malformed);
}

#[test]
fn only_text_takes_positions() {
    let positions = Rig::new().loaded.positions(&[PromptPart::Audio(0), PromptPart::Text(2), PromptPart::Text(1)]);
    assert_eq!((positions.rows, positions.next), (vec![[0; 3], [1; 3], [2; 3]], 3));
}
