//! The golden fixtures, embedded: the tiny Omni checkpoint, its prompts and what the reference made of them.

use safetensors::SafeTensors;
use serde_json::Value;
use weft_engine::card::ImageProcessor;
use weft_engine::families::PromptPart;
use weft_engine::handle::{ModelConfig, ModelSource, Precision};
use weft_engine::media::{Grid, LogMel, MediaId, Medium, Patches};

macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/golden/", $name))
    };
}

/// Files of the checkpoint.
pub(crate) const CHECKPOINT: &[(&str, &[u8])] = &[
    ("config.json", golden!("omni/checkpoint/config.json")),
    ("generation_config.json", golden!("omni/checkpoint/generation_config.json")),
    ("processor_config.json", golden!("omni/checkpoint/processor_config.json")),
    ("tokenizer.json", golden!("omni/checkpoint/tokenizer.json")),
    ("tokenizer_config.json", golden!("omni/checkpoint/tokenizer_config.json")),
    ("chat_template.jinja", golden!("omni/checkpoint/chat_template.jinja")),
    ("model.safetensors.index.json", golden!("omni/checkpoint/model.safetensors.index.json")),
    ("model-00001-of-00003.safetensors", golden!("omni/checkpoint/model-00001-of-00003.safetensors")),
    ("model-00002-of-00003.safetensors", golden!("omni/checkpoint/model-00002-of-00003.safetensors")),
    ("model-00003-of-00003.safetensors", golden!("omni/checkpoint/model-00003-of-00003.safetensors")),
];
const TOWERS: &[u8] = golden!("omni/towers.safetensors");
const LOGITS: &[u8] = golden!("omni/logits.safetensors");
const PROMPTS: &[u8] = golden!("omni/prompts.json");

/// Pictures that need no resizing, so that their patches follow from the pixels alone.
const WHOLE_PICTURES: &[(&str, &[u8])] = &[
    ("scene_84x84.png", golden!("media/scene_84x84.png")),
    ("scene_112x112.png", golden!("media/scene_112x112.png")),
    ("scene_224x112.png", golden!("media/scene_224x112.png")),
    ("scene_56x168.png", golden!("media/scene_56x168.png")),
    ("scene_252x224.png", golden!("media/scene_252x224.png")),
    ("scene_196x84.png", golden!("media/scene_196x84.png")),
];

pub(crate) fn config(precision: Precision) -> ModelConfig {
    ModelConfig { name: "omni".into(), source: ModelSource::Embedded(CHECKPOINT), precision }
}

/// One prompt and the reference's answer.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) parts: Vec<PromptPart>,
    /// File and first row of every medium, in order.
    pub(crate) media: Vec<(String, usize)>,
    pub(crate) positions: Vec<[u32; 3]>,
    pub(crate) next: u32,
    pub(crate) greedy: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

pub(crate) fn cases() -> Vec<Case> {
    let root: Value = serde_json::from_slice(PROMPTS).unwrap();
    let logits = SafeTensors::deserialize(LOGITS).unwrap();
    let cases: Vec<Case> = root["cases"].as_array().unwrap().iter().map(|case| read_case(case, &logits)).collect();
    assert!(cases.len() >= 24, "{} prompts in the fixture", cases.len());
    cases
}

fn read_case(case: &Value, logits: &SafeTensors<'_>) -> Case {
    let id = case["id"].as_str().unwrap().to_owned();
    let prompt = numbers(&case["prompt_ids"]);
    let (image_token, audio_token) = (2040, 2041);
    let mut images =
        names(&case["images"]).into_iter().zip(case["image_grids"].as_array().unwrap().iter().map(|grid| {
            let sides = numbers(grid);
            Grid { t: sides[0] as usize, h: sides[1] as usize, w: sides[2] as usize }
        }));
    let mut clips = names(&case["audios"]).into_iter().zip(numbers(&case["audio_tokens"]));
    let (mut parts, mut media) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < prompt.len() {
        let (part, len) = if prompt[at] == image_token {
            let (file, grid) = images.next().unwrap();
            media.push((file, at));
            (PromptPart::Image(grid), grid.patches() / 4)
        } else if prompt[at] == audio_token {
            let (file, tokens) = clips.next().unwrap();
            media.push((file, at));
            (PromptPart::Audio(tokens as usize), tokens as usize)
        } else {
            let len = prompt[at..].iter().take_while(|&&id| id != image_token && id != audio_token).count();
            (PromptPart::Text(len), len)
        };
        parts.push(part);
        at += len;
    }
    assert_eq!(at, prompt.len(), "{id}: placeholders fit the media");
    let axes: Vec<Vec<u32>> = case["positions"].as_array().unwrap().iter().map(numbers).collect();
    let positions = (0..prompt.len()).map(|i| [axes[0][i], axes[1][i], axes[2][i]]).collect();
    Case {
        kind: case["kind"].as_str().unwrap().to_owned(),
        parts,
        media,
        positions,
        next: (prompt.len() as i64 + case["rope_delta"].as_i64().unwrap()) as u32,
        greedy: numbers(&case["greedy_ids"]),
        logits: floats(logits, &format!("{id}.logits")),
        prompt,
        id,
    }
}

/// A prepared medium and, where the fixture has it, the tower's output.
pub(crate) struct Prepared {
    pub(crate) file: String,
    pub(crate) medium: Medium,
    pub(crate) encoded: Option<Vec<f32>>,
}

/// Media whose preparation is in the fixture or trivial; the rest is tested through the stages.
pub(crate) fn media(image: &ImageProcessor) -> Vec<Prepared> {
    let root: Value = serde_json::from_slice(PROMPTS).unwrap();
    let towers = SafeTensors::deserialize(TOWERS).unwrap();
    let file_of = |stem: &str, kind: &str| {
        let (case, number) = stem.split_once(&format!(".{kind}")).unwrap();
        let case = root["cases"].as_array().unwrap().iter().find(|c| c["id"] == case).unwrap();
        names(&case[format!("{kind}s")])[number.parse::<usize>().unwrap()].clone()
    };
    let mut prepared = Vec::new();
    for name in towers.names() {
        if let Some(stem) = name.strip_suffix(".pixel_values") {
            let grid = towers.tensor(&format!("{stem}.grid_thw")).unwrap();
            let side = |i: usize| i64::from_le_bytes(grid.data()[i * 8..][..8].try_into().unwrap()) as usize;
            let grid = Grid { t: side(0), h: side(1), w: side(2) };
            let medium = Medium::Image(Patches { values: floats(&towers, name), grid, id: MediaId([0; 32]) });
            let encoded = Some(floats(&towers, &format!("{stem}.vision_out")));
            prepared.push(Prepared { file: file_of(stem, "image"), medium, encoded });
        } else if let Some(stem) = name.strip_suffix(".input_features") {
            // Stored [bins, frames]; the engine takes a row a frame.
            let shape = towers.tensor(name).unwrap().shape().to_vec();
            let (bins, frames) = (shape[0], shape[1]);
            let stored = floats(&towers, name);
            let values = (0..frames).flat_map(|f| (0..bins).map(move |b| (f, b))).map(|(f, b)| stored[b * frames + f]);
            let medium = Medium::Audio(LogMel { values: values.collect(), frames, bins, id: MediaId([0; 32]) });
            let encoded = Some(floats(&towers, &format!("{stem}.audio_out")));
            prepared.push(Prepared { file: file_of(stem, "audio"), medium, encoded });
        }
    }
    assert_eq!(prepared.len(), 9, "five pictures and four clips");
    for (file, png) in WHOLE_PICTURES {
        let medium = Medium::Image(patches(png, image));
        prepared.push(Prepared { file: (*file).to_owned(), medium, encoded: None });
    }
    prepared.sort_by(|a, b| a.file.cmp(&b.file));
    prepared
}

/// Patches of a picture whose sides are whole merge blocks, as the Qwen-VL processor lays them out.
fn patches(png: &[u8], processor: &ImageProcessor) -> Patches {
    let picture = image::load_from_memory(png).unwrap().to_rgb8();
    let (patch, merge) = (processor.patch, processor.merge);
    let grid = Grid { t: 1, h: picture.height() as usize / patch, w: picture.width() as usize / patch };
    let plan = processor.plan(picture.width() as usize, picture.height() as usize).unwrap();
    assert_eq!(plan.grid, grid, "the picture needs no resizing");
    let mut values = Vec::new();
    for (top, left) in (0..grid.h).step_by(merge).flat_map(|t| (0..grid.w).step_by(merge).map(move |l| (t, l))) {
        for (row, column) in (0..merge).flat_map(|r| (0..merge).map(move |c| (top + r, left + c))) {
            for (channel, _frame) in (0..3).flat_map(|c| (0..processor.temporal_patch).map(move |f| (c, f))) {
                for (y, x) in (0..patch).flat_map(|y| (0..patch).map(move |x| (row * patch + y, column * patch + x))) {
                    let unit = f32::from(picture.get_pixel(x as u32, y as u32)[channel]) * processor.rescale;
                    values.push((unit - processor.mean[channel]) / processor.std[channel]);
                }
            }
        }
    }
    Patches { values, grid, id: MediaId([0; 32]) }
}

pub(crate) fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = tensors.tensor(name).unwrap();
    assert_eq!(view.dtype(), safetensors::Dtype::F32);
    view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(crate) fn numbers(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn names(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}
