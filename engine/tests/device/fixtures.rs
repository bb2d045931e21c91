//! The golden prompts and media of the seeded tiny Omni checkpoint, embedded at compile time.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use weft_engine::handle::{Engine, EngineConfig, MediaTicket, Model, ModelConfig, ModelSource, Precision, TokenStream};
use weft_engine::media::{Grid, LogMel, MediaId, Medium, Patches};
use weft_engine::request::{
    Class, DeviceTimes, FinishReason, Generate, RequestId, Sampling, Segment, TokenEvent, TokenRules, Usage,
};

const PROMPTS: &str = include_str!("../../../tests/golden/omni/prompts.json");
const TOWERS: &[u8] = include_bytes!("../../../tests/golden/omni/towers.safetensors");
/// Media whose prepared values are among the tower fixtures: file, tensor prefix.
const MEDIA: [(&str, &str); 9] = [
    ("scene_56x56.png", "case05.image0"),
    ("scene_140x140.png", "case08.image0"),
    ("scene_28x112.png", "case11.image0"),
    ("scene_10x7.png", "case16.image0"),
    ("scene_112x56.png", "case20.image1"),
    ("word.wav", "case24.audio0"),
    ("blip.wav", "case25.audio0"),
    ("two_windows.wav", "case27.audio0"),
    ("silence.wav", "case29.audio0"),
];
const IMAGE_TOKEN: u32 = 2040;
const AUDIO_TOKEN: u32 = 2041;

/// A prompt and the tokens that the reference implementation answers.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    pub ids: Vec<u32>,
    pub images: Vec<&'static str>,
    pub audios: Vec<&'static str>,
    pub greedy: Vec<u32>,
}

fn tensor(name: &str) -> Option<(Vec<usize>, Vec<u8>)> {
    let file = SafeTensors::deserialize(TOWERS).expect("the fixture is a safetensors file");
    let view = file.tensor(name).ok()?;
    Some((view.shape().to_vec(), view.data().to_vec()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A medium of the fixtures by file name.
pub fn medium(file: &str) -> Medium {
    let (at, prefix) =
        MEDIA.iter().enumerate().find(|(_, (name, _))| *name == file).map(|(at, (_, p))| (at, p)).expect("known");
    let id = MediaId([u8::try_from(at).expect("few") + 1; 32]);
    if let Some((_, grid)) = tensor(&format!("{prefix}.grid_thw")) {
        let grid: Vec<usize> = grid.chunks_exact(8).map(|b| usize::from(b[0])).collect();
        let (_, values) = tensor(&format!("{prefix}.pixel_values")).expect("pixels");
        return Medium::Image(Patches {
            values: floats(&values),
            grid: Grid { t: grid[0], h: grid[1], w: grid[2] },
            id,
        });
    }
    let (shape, values) = tensor(&format!("{prefix}.input_features")).expect("features");
    let (bins, frames, values) = (shape[0], shape[1], floats(&values));
    // The reference lays bands in rows, the engine frames.
    let turned = (0..frames).flat_map(|frame| (0..bins).map(move |bin| (frame, bin)));
    let values = turned.map(|(frame, bin)| values[bin * frames + frame]).collect();
    Medium::Audio(LogMel { values, frames, bins, id })
}

fn known(value: &Value) -> Option<Vec<&'static str>> {
    let names = value.as_array()?.iter();
    names.map(|name| MEDIA.iter().map(|(file, _)| *file).find(|file| name.as_str() == Some(*file))).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("an array").iter();
    ids.map(|id| u32::try_from(id.as_u64().expect("a number")).expect("a token")).collect()
}

/// The golden cases whose media are all among the fixtures.
pub fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(PROMPTS).expect("the fixture is JSON");
    let cases = file["cases"].as_array().expect("cases").iter().filter_map(|case| {
        Some(Case {
            name: case["id"].as_str()?.to_owned(),
            ids: ids(&case["prompt_ids"]),
            images: known(&case["images"])?,
            audios: known(&case["audios"])?,
            greedy: ids(&case["greedy_ids"]),
        })
    });
    let cases: Vec<Case> = cases.collect();
    assert!(cases.len() >= 15, "only {} golden cases are usable", cases.len());
    cases
}

pub fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect("a golden case of this name")
}

/// The exactness checkpoint under this configuration.
pub fn config(change: impl FnOnce(&mut EngineConfig)) -> EngineConfig {
    // A test binary that was carried to another machine is told where the repository lies there.
    let here = std::env::var_os("WEFT_REPOSITORY").map(PathBuf::from);
    let repository = here.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let checkpoint = repository.join("tests/golden/omni/checkpoint");
    let model =
        ModelConfig { name: "omni".into(), source: ModelSource::Path(checkpoint), precision: Precision::Float32 };
    let mut config = EngineConfig { models: vec![model], threads: 1, kv_bytes: 16 << 20, ..EngineConfig::default() };
    change(&mut config);
    config
}

pub fn start(change: impl FnOnce(&mut EngineConfig)) -> (Engine, Model) {
    let engine = Engine::start(config(change)).expect("the engine starts");
    let model = engine.model("omni").expect("the model is there");
    (engine, model)
}

/// The prompt in segments: runs of placeholder tokens become media.
pub fn prompt(model: &Model, case: &Case) -> Vec<Segment> {
    let encode = |file| model.encode(medium(file)).expect("room for a medium");
    let mut images = case.images.iter().map(|&file| encode(file));
    let mut audios = case.audios.iter().map(|&file| encode(file));
    let mut segments: Vec<Segment> = Vec::new();
    let mut left: usize = 0;
    for &id in &case.ids {
        match id {
            IMAGE_TOKEN | AUDIO_TOKEN if left > 0 => left -= 1,
            IMAGE_TOKEN | AUDIO_TOKEN => {
                let ticket: MediaTicket =
                    if id == IMAGE_TOKEN { images.next() } else { audios.next() }.expect("a medium");
                left = ticket.tokens() - 1;
                segments.push(Segment::Media(ticket));
            }
            _ => match segments.last_mut() {
                Some(Segment::Text(text)) => text.push(id),
                _ => segments.push(Segment::Text(vec![id])),
            },
        }
    }
    assert_eq!(left, 0, "{}: fewer placeholders than media tokens", case.name);
    segments
}

/// A greedy request without end tokens, as the golden numbers were made.
pub fn request(prompt: Vec<Segment>, max_tokens: usize) -> Generate {
    Generate {
        id: RequestId(1),
        prompt,
        sampling: Sampling::default(),
        rules: TokenRules::Free,
        end_tokens: Vec::new(),
        max_tokens,
        watch: Vec::new(),
        class: Class::Interactive,
        deadline: None,
    }
}

/// Everything that a stream gave.
#[derive(Debug, Default)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub watched: Vec<f32>,
    pub times: DeviceTimes,
    pub end: Option<Result<(FinishReason, Usage), weft_engine::EngineError>>,
}

/// Reads a stream to its end; checks that events come in order and the terminal one once.
pub fn read(mut stream: TokenStream) -> Answer {
    let mut answer = Answer::default();
    let mut started = false;
    while let Some(event) = stream.next_blocking() {
        assert!(answer.end.is_none(), "an event after the end");
        match event {
            TokenEvent::Started { watched } => {
                assert!(!started, "started twice");
                started = true;
                answer.watched = watched;
            }
            TokenEvent::Token(token) => {
                assert!(started, "a token before the start");
                answer.ids.push(token.id);
            }
            TokenEvent::Finished { reason, usage, times } => {
                assert!(times.queued <= times.prefilled && times.prefilled <= times.finished);
                answer.times = times;
                answer.end = Some(Ok((reason, usage)));
            }
            TokenEvent::Failed(error) => answer.end = Some(Err(error)),
        }
    }
    assert!(answer.end.is_some(), "a stream without an end");
    answer
}

/// Waits until the engine is quiet, then checks that everything came back.
pub fn assert_all_returned(engine: &Engine) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let stats = engine.stats();
        let quiet = (stats.running, stats.waiting, stats.kv_pages_used, stats.media_bytes, stats.media_waiting);
        if quiet == (0, 0, 0, 0, 0) {
            assert_eq!(stats.audit_failures, 0, "the books do not balance");
            return;
        }
        assert!(std::time::Instant::now() < until, "something was not returned: {stats:?}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
