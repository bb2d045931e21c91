//! Towers of every family with a tiny checkpoint in `tests/golden/families`, against transformers. Their prompts are
//! tested through the front door, from files to text.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use weft_engine::checkpoint::Checkpoint;
use weft_engine::families::Loaded;
use weft_engine::handle::{ModelConfig, ModelSource, Precision};
use weft_engine::media::{Grid, MediaId, Medium, Patches};
use weft_kernels::{Backend, CpuBackend};

use crate::driver::{PAGE_TOKENS, encode, encode_in_pieces, relative_error};
use crate::golden::floats;

/// Largest accepted relative error of a tower; 1.5e-6 was observed.
const TOWER: f32 = 1e-4;
const FAMILIES: [&str; 2] = ["qwen2_5_vl", "qwen2_vl"];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/families").join(family)
}

fn load(family: &str) -> (CpuBackend, Loaded<CpuBackend>) {
    let backend = CpuBackend::new(1);
    let source = ModelSource::Path(folder(family).join("checkpoint"));
    let config = ModelConfig { name: family.into(), source, precision: Precision::Float32 };
    let checkpoint = Checkpoint::open(&config.source).unwrap();
    let model = Loaded::load(&backend, &checkpoint, &config, PAGE_TOKENS).unwrap();
    (backend, model)
}

#[test]
fn towers_equal_the_reference_whole_and_in_pieces() {
    for family in FAMILIES {
        let (backend, model) = load(family);
        let bytes = std::fs::read(folder(family).join("towers.safetensors")).unwrap();
        let towers = SafeTensors::deserialize(&bytes).unwrap();
        let stems: Vec<&str> =
            towers.names().into_iter().filter_map(|name| name.strip_suffix(".pixel_values")).collect();
        assert!(stems.len() >= 2, "{family}: {} pictures", stems.len());
        for stem in stems {
            let grid = towers.tensor(&format!("{stem}.grid_thw")).unwrap();
            let side = |i: usize| i64::from_le_bytes(grid.data()[i * 8..][..8].try_into().unwrap()) as usize;
            let grid = Grid { t: side(0), h: side(1), w: side(2) };
            let values = floats(&towers, &format!("{stem}.pixel_values"));
            let medium = Medium::Image(Patches { values, grid, id: MediaId([0; 32]) });
            let whole = encode(&backend, &model, &[&medium], usize::MAX).remove(0);
            let whole = backend.download(&whole).unwrap();
            let error = relative_error(&whole, &floats(&towers, &format!("{stem}.vision_out")));
            println!("{family} {stem}: relative error {error:.2e}");
            assert!(error <= TOWER, "{family} {stem}: relative error {error:.2e}");
            let (pieces, launches) = encode_in_pieces(&backend, &model, &[&medium], 7);
            assert!(launches > 4, "{family} {stem}: {launches} pieces");
            assert!(backend.download(&pieces[0]).unwrap() == whole, "{family} {stem}: cut into pieces");
        }
    }
}
