//! From a picture to patches: bands of rows are resized, normalised by table and written in the model's order, each band by
//! its own thread.
//!
//! Order of the Qwen-VL processors (`image_processing_qwen2_vl.py`): patches as
//! `[grid.h / merge, grid.w / merge, merge, merge]`, values of a patch as `[channel, frame, row, column]`; a still picture
//! is repeated over the frames. One row of merged patches is therefore one contiguous piece of the result.

use weft_engine::card::{ImagePlan, ImageProcessor};
use weft_engine::media::MediaId;

use super::decode::Picture;
use super::resize::Resize;

/// Normalised patches, `[grid.patches(), patch_values]`, and the picture's identity, which is hashed meanwhile.
pub(super) fn patches(
    picture: &Picture,
    plan: &ImagePlan,
    processor: &ImageProcessor,
    threads: usize,
) -> (Vec<f32>, MediaId) {
    let resize = Resize::new((picture.width, picture.height), (plan.width, plan.height), processor.filter);
    let tables = tables(processor);
    let strips = plan.grid.h / processor.merge;
    let strip_values = plan.grid.w * processor.merge * processor.patch_values();
    let strip_rows = processor.merge * processor.patch;
    let mut values = vec![0f32; strips * strip_values];
    let share = strips.div_ceil(threads.max(1)).max(1);
    let work = |index: usize, piece: &mut [f32]| {
        let first = index * share * strip_rows;
        let rows = first..first + piece.len() / strip_values * strip_rows;
        let band = resize.band(&picture.rgb, rows);
        let lines = band.chunks_exact(plan.width * 3 * strip_rows);
        for (lines, strip) in lines.zip(piece.chunks_exact_mut(strip_values)) {
            write_strip(lines, strip, plan.width, processor, &tables);
        }
    };
    let work = &work;
    let id = std::thread::scope(|scope| {
        let mut pieces = values.chunks_mut(share * strip_values).enumerate();
        let own = pieces.next();
        for (index, piece) in pieces {
            scope.spawn(move || work(index, piece));
        }
        let hashed = scope.spawn(|| identity(picture, processor));
        if let Some((index, piece)) = own {
            work(index, piece);
        }
        hashed.join()
    });
    // The hash reads plain memory and cannot panic; were it to, the worker's own catch must see it.
    (values, id.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// One row of merged patches from its `merge * patch` lines of pixels.
fn write_strip(lines: &[u8], strip: &mut [f32], width: usize, processor: &ImageProcessor, tables: &[[f32; 256]; 3]) {
    let &ImageProcessor { patch, merge, temporal_patch, .. } = processor;
    for (index, values) in strip.chunks_exact_mut(processor.patch_values()).enumerate() {
        let (block, inner) = (index / (merge * merge), index % (merge * merge));
        let top = inner / merge * patch;
        let left = (block * merge + inner % merge) * patch;
        for (channel, (table, frames)) in
            tables.iter().zip(values.chunks_exact_mut(temporal_patch * patch * patch)).enumerate()
        {
            let (frame, repeats) = frames.split_at_mut(patch * patch);
            for (row, target) in frame.chunks_exact_mut(patch).enumerate() {
                let source = &lines[((top + row) * width + left) * 3..][..patch * 3];
                for (value, pixel) in target.iter_mut().zip(source.chunks_exact(3)) {
                    *value = table[usize::from(pixel[channel])];
                }
            }
            for repeat in repeats.chunks_exact_mut(patch * patch) {
                repeat.copy_from_slice(frame);
            }
        }
    }
}

/// What each byte of each channel becomes: `(byte * rescale - mean) / std`.
fn tables(processor: &ImageProcessor) -> [[f32; 256]; 3] {
    std::array::from_fn(|channel| {
        std::array::from_fn(|byte| (byte as f32 * processor.rescale - processor.mean[channel]) / processor.std[channel])
    })
}

/// 256-bit hash of pixels, dimensions, layout and every setting of the processor.
fn identity(picture: &Picture, processor: &ImageProcessor) -> MediaId {
    let ImageProcessor { patch, temporal_patch, merge, min_pixels, max_pixels, filter, rescale, mean, std } = processor;
    let mut hasher = blake3::Hasher::new_derive_key("weft image v1: rgb8, dimensions, processor");
    for number in
        [picture.width, picture.height, *patch, *temporal_patch, *merge, *min_pixels, *max_pixels, *filter as usize]
    {
        hasher.update(&(number as u64).to_le_bytes());
    }
    for number in [rescale].into_iter().chain(mean).chain(std) {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&picture.rgb);
    MediaId(*hasher.finalize().as_bytes())
}
