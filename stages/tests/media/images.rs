//! Pictures against Pillow and the reference processor.

use serde_json::Value;
use weft_engine::card::ImageProcessor;
use weft_stages::{ErrorKind, ImageFormat, MediaFacts, image_facts};

use crate::fixtures::fixture;
use crate::{image, qwen};

fn pair(value: &Value) -> (usize, usize) {
    (value[0].as_u64().unwrap() as usize, value[1].as_u64().unwrap() as usize)
}

/// The byte that each value came from, back in rows of pixels.
fn unpatch(values: &[f32], width: usize, processor: &ImageProcessor) -> Vec<f32> {
    let &ImageProcessor { patch, merge, temporal_patch, mean, std, .. } = processor;
    let per_patch = processor.patch_values();
    let columns = width / patch;
    let mut pixels = vec![0.0; values.len() / temporal_patch];
    for (index, chunk) in values.chunks_exact(per_patch).enumerate() {
        let (block, inner) = (index / (merge * merge), index % (merge * merge));
        let row = block / (columns / merge) * merge + inner / merge;
        let column = block % (columns / merge) * merge + inner % merge;
        for channel in 0..3 {
            let frames = &chunk[channel * temporal_patch * patch * patch..];
            for y in 0..patch {
                for x in 0..patch {
                    let value = frames[y * patch + x];
                    assert_eq!(value, frames[patch * patch + y * patch + x], "both frames are the same picture");
                    let at = ((row * patch + y) * width + column * patch + x) * 3 + channel;
                    pixels[at] = (value * std[channel] + mean[channel]) * 255.0;
                }
            }
        }
    }
    pixels
}

#[test]
fn pictures_equal_pillow_after_resize() {
    let listing: Value = serde_json::from_slice(fixture("images/images.json")).unwrap();
    println!("{:<16} {:>10} {:>6}  differing bytes", "picture", "mean abs", "max");
    let mut seen = 0;
    for entry in listing["images"].as_array().unwrap() {
        let name = entry["file"].as_str().unwrap();
        let processor = qwen(entry["max_pixels"].as_u64().unwrap() as usize);
        let prepared = image(fixture(&format!("images/{name}")), processor.clone()).unwrap();
        let MediaFacts::Image(facts) = prepared.source else { panic!("{name} is a picture") };
        assert_eq!((facts.width, facts.height), pair(&entry["oriented_size"]), "{name}");
        assert_eq!(image_facts(fixture(&format!("images/{name}"))).unwrap(), facts, "{name}: header and decoder agree");
        let grid = prepared.value.grid;
        let stated: Vec<usize> =
            entry["grid"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        assert_eq!([grid.t, grid.h, grid.w], stated[..], "{name}");
        let (width, height) = pair(&entry["resized_size"]);
        let expected = fixture(&format!("images/{}", entry["expected"].as_str().unwrap()));
        let expected = image::load_from_memory(expected).unwrap().to_rgb8();
        assert_eq!((expected.width() as usize, expected.height() as usize), (width, height), "{name}");
        let pixels = unpatch(&prepared.value.values, width, &processor);
        let gaps = || pixels.iter().zip(expected.as_raw()).map(|(a, b)| (a - f32::from(*b)).abs());
        let (mean, most) = (gaps().sum::<f32>() / pixels.len() as f32, gaps().fold(0.0, f32::max));
        println!(
            "{name:<16} {mean:>10.5} {most:>6.2}  {} of {}",
            gaps().filter(|gap| *gap > 0.5).count(),
            pixels.len()
        );
        // The bar is one grey level on average, for the formats whose decoders may round differently; the others must
        // be the reference's pixel by pixel, and then the values too.
        let lossy = name.ends_with(".jpg") || name == "lossy.webp";
        assert!(if lossy { mean <= 1.0 } else { most < 1e-3 }, "{name}: mean {mean}, most {most}");
        if most < 1e-3 {
            let values = &prepared.value.values;
            for (list, part) in [("first_patch", &values[..14]), ("last_patch", &values[values.len() - 14..])] {
                for (stated, value) in entry[list].as_array().unwrap().iter().zip(part) {
                    assert!((stated.as_f64().unwrap() as f32 - value).abs() < 1e-5, "{name} {list}");
                }
            }
        }
        seen += 1;
    }
    assert!(seen >= 10, "the goldens hold {seen} pictures");
}

#[test]
fn sizes_follow_smart_resize() {
    let listing: Value = serde_json::from_slice(fixture("images/smart_resize.json")).unwrap();
    for row in listing["rows"].as_array().unwrap() {
        let number = |i: usize| row[i].as_u64().map(|n| n as usize);
        let processor = ImageProcessor { min_pixels: number(2).unwrap(), ..qwen(number(3).unwrap()) };
        let plan = processor.plan(number(0).unwrap(), number(1).unwrap()).ok();
        assert_eq!(plan.map(|plan| plan.width), number(4), "{row}");
        assert_eq!(plan.map(|plan| plan.height), number(5), "{row}");
    }
}

fn png(width: u32, height: u32, rgb: Vec<u8>) -> Vec<u8> {
    encode(
        image::DynamicImage::ImageRgb8(image::RgbImage::from_raw(width, height, rgb).unwrap()),
        image::ImageFormat::Png,
    )
}

fn encode(picture: image::DynamicImage, format: image::ImageFormat) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut out, format).unwrap();
    out.into_inner()
}

#[test]
fn identity_covers_content_size_and_settings_but_not_the_container() {
    let rgb: Vec<u8> = (0..60 * 40 * 3).map(|i| (i * 31 % 256) as u8).collect();
    let id = |file: Vec<u8>, processor| image(file, processor).unwrap().value.id;
    let base = id(png(60, 40, rgb.clone()), qwen(100_000));
    let picture = image::DynamicImage::ImageRgb8(image::RgbImage::from_raw(60, 40, rgb.clone()).unwrap());
    assert_eq!(base, id(encode(picture, image::ImageFormat::Bmp), qwen(100_000)), "same pixels");
    let mut touched = rgb.clone();
    touched[4321] ^= 1;
    assert_ne!(base, id(png(60, 40, touched), qwen(100_000)), "one pixel");
    assert_ne!(base, id(png(40, 60, rgb.clone()), qwen(100_000)), "same bytes, other sides");
    let base_file = || png(60, 40, rgb.clone());
    let settings = [
        qwen(100_001),
        ImageProcessor { min_pixels: 3137, ..qwen(100_000) },
        ImageProcessor { filter: weft_engine::card::ResizeFilter::Lanczos, ..qwen(100_000) },
        ImageProcessor { rescale: 1.0 / 256.0, ..qwen(100_000) },
        ImageProcessor { mean: [0.5; 3], ..qwen(100_000) },
        ImageProcessor { std: [0.5; 3], ..qwen(100_000) },
        ImageProcessor { patch: 7, ..qwen(100_000) },
        ImageProcessor { temporal_patch: 1, ..qwen(100_000) },
        ImageProcessor { merge: 1, ..qwen(100_000) },
    ];
    for processor in settings {
        assert_ne!(base, id(base_file(), processor.clone()), "{processor:?}");
    }
}

#[test]
fn transparent_and_deep_pictures_land_on_white_and_keep_their_range() {
    let clear = image::DynamicImage::ImageRgba8(image::RgbaImage::from_pixel(56, 56, image::Rgba([9, 9, 9, 0])));
    let white = image(encode(clear, image::ImageFormat::Png), qwen(100_000)).unwrap().value;
    let grey = image::ImageBuffer::from_pixel(56, 56, image::Luma([32_768u16]));
    let grey =
        image(encode(image::DynamicImage::ImageLuma16(grey), image::ImageFormat::Png), qwen(100_000)).unwrap().value;
    let expected = |byte: f32| (byte / 255.0 - 0.481_454_66) / 0.268_629_54;
    assert!((white.values[0] - expected(255.0)).abs() < 1e-5);
    assert!((grey.values[0] - expected(128.0)).abs() < 1e-5, "16-bit grey is scaled, not clipped to white");
}

#[test]
fn an_animation_gives_its_first_frame_and_says_so() {
    let prepared = image(fixture("images/animated.gif"), qwen(100_000)).unwrap();
    assert!(prepared.warnings.iter().any(|text| text.contains("first frame")), "{:?}", prepared.warnings);
    let MediaFacts::Image(facts) = prepared.source else { panic!("a picture") };
    assert_eq!(facts.format, ImageFormat::Gif);
}

#[test]
fn limits_hold_before_decoding() {
    let huge = image(fixture("odd/huge_declared.png"), qwen(100_000)).unwrap_err();
    assert_eq!(huge.kind, ErrorKind::TooLarge, "{huge}");
    assert!(huge.message.contains("60000"), "{huge}");
}
