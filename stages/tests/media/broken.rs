//! Broken files: each an error of its class within a second, and the service goes on.

use std::time::{Duration, Instant};

use serde_json::Value;
use weft_stages::ErrorKind;

use crate::fixtures::fixture;
use crate::{audio, image, qwen, whisper};

fn class(text: &str) -> Option<ErrorKind> {
    match text {
        "ok" => None,
        "malformed" => Some(ErrorKind::Malformed),
        "unsupported" => Some(ErrorKind::Unsupported),
        "too large" => Some(ErrorKind::TooLarge),
        other => panic!("class {other}"),
    }
}

fn is_picture(file: &str) -> bool {
    [".jpg", ".png", ".html", ".svg", ".heic", ".bin"].iter().any(|end| file.ends_with(end))
}

#[test]
fn each_broken_file_gives_its_class_within_a_second() {
    let listing: Value = serde_json::from_slice(fixture("odd/odd.json")).unwrap();
    let unsupported = listing["audio"].as_array().unwrap().iter().filter(|entry| entry["expect"] != "ok");
    let mut wrong = Vec::new();
    for entry in listing["broken"].as_array().unwrap().iter().chain(unsupported) {
        let file = entry["file"].as_str().unwrap();
        let bytes = fixture(&format!("odd/{file}"));
        let expected = class(entry["expect"].as_str().unwrap());
        let begun = Instant::now();
        let error = if is_picture(file) {
            image(bytes, qwen(1_003_520)).map(|prepared| prepared.warnings).err()
        } else {
            audio(bytes, whisper()).map(|prepared| prepared.warnings).err()
        };
        let took = begun.elapsed();
        println!("{file:<20} {took:>8.1?}  {}", error.as_ref().map_or("ok", |error| &error.message));
        if error.as_ref().map(|error| error.kind) != expected || took > Duration::from_secs(1) {
            wrong.push(format!("{file}: {error:?}, expected {expected:?}, took {took:?}"));
        }
        image(fixture("odd/good.png"), qwen(1_003_520)).unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_cut_of_a_picture_is_an_error_and_never_a_half_grey_picture() {
    for file in [
        "odd/good.jpg",
        "odd/good.png",
        "images/lossy.webp",
        "images/rgb.bmp",
        "images/lzw.tiff",
        "images/animated.gif",
    ] {
        let whole = fixture(file);
        // The first GIF frame ends before the file does.
        let last = if file.ends_with("gif") { whole.len() / 6 } else { whole.len() * 9 / 10 };
        for cut in (1..8).map(|part| last * part / 7) {
            let result = image(&whole[..cut], qwen(1_003_520));
            let error = result.err().unwrap_or_else(|| panic!("{file} cut at {cut} of {} was accepted", whole.len()));
            assert_eq!(error.kind, ErrorKind::Malformed, "{file} cut at {cut}: {error}");
        }
    }
}

#[test]
fn foreign_formats_are_named() {
    for (bytes, name) in [
        (&b"\0\0\0\x1cftypheic\0\0\0\0mif1heic"[..], "HEIC"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "AVIF"),
        (b"%PDF-1.7 and more", "PDF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    ] {
        let error = image(bytes, qwen(100_000)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.contains(name), "{error}");
    }
    let error = audio(&b"RF64\xff\xff\xff\xffWAVEds64"[..], whisper()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("RF64"), "{error}");
}
