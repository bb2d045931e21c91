//! What a file is, by its first bytes and never by its name.

use super::ImageFormat;
use crate::error::{Result, StageError};

/// The format, or an error that names what the file is instead when that is known.
pub(super) fn sniff(bytes: &[u8]) -> Result<ImageFormat> {
    match bytes {
        [0xFF, 0xD8, 0xFF, ..] => Ok(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Ok(ImageFormat::Png),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(ImageFormat::Gif),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(ImageFormat::WebP),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Ok(ImageFormat::Tiff),
        [b'B', b'M', ..] if is_bitmap(bytes) => Ok(ImageFormat::Bmp),
        _ => Err(foreign(bytes)),
    }
}

// "BM" alone also begins plain text: the header's own length must be one of those in use.
fn is_bitmap(bytes: &[u8]) -> bool {
    bytes.get(14..18).is_none_or(|size| matches!(size, [12 | 16 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0]))
}

fn foreign(bytes: &[u8]) -> StageError {
    let accepted = "accepted are JPEG, PNG, WebP, GIF, BMP and TIFF";
    if bytes.len() < 3 {
        return StageError::malformed(format!("image file has only {} bytes", bytes.len()));
    }
    let head = &bytes[..bytes.len().min(1024)];
    let name = match head {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => match brand.first_chunk::<4>() {
            Some(b"heic" | b"heix" | b"hevc" | b"heim" | b"heis" | b"mif1" | b"msf1") => "HEIC",
            Some(b"avif" | b"avis") => "AVIF",
            _ => "an MP4 file",
        },
        [b'%', b'P', b'D', b'F', ..] => "PDF",
        [0, 0, 1, 0, ..] => "an icon (ICO)",
        [0xFF, 0x0A, ..] | [0, 0, 0, 12, b'J', b'X', b'L', ..] => "JPEG XL",
        [0, 0, 0, 12, b'j', b'P', ..] => "JPEG 2000",
        _ => match std::str::from_utf8(head).map(str::to_ascii_lowercase) {
            Ok(text) if text.contains("<svg") => "SVG",
            Ok(text) if text.contains("<html") || text.contains("<!doctype") => "an HTML page",
            Ok(_) => "text",
            Err(_) => {
                return StageError::unsupported(format!("file is no image of a known format; {accepted}"));
            }
        },
    };
    StageError::unsupported(format!("file is {name}, which is not decoded; {accepted}"))
}

/// Whether a GIF holds more than one frame, by walking its blocks.
pub(super) fn gif_is_animated(bytes: &[u8]) -> bool {
    gif_frames(bytes).is_some_and(|frames| frames > 1)
}

fn gif_frames(bytes: &[u8]) -> Option<usize> {
    let palette = |flags: u8| {
        if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
    };
    let mut at = 13 + palette(*bytes.get(10)?);
    let mut frames = 0;
    while frames < 2 {
        match bytes.get(at) {
            Some(0x21) => at += 2,
            Some(0x2C) => {
                frames += 1;
                // Ten bytes of descriptor, a palette, one byte of code size.
                at += 11 + palette(*bytes.get(at + 9)?);
            }
            _ => break,
        }
        while let Some(&length) = bytes.get(at).filter(|length| **length != 0) {
            at += 1 + usize::from(length);
        }
        at += 1;
    }
    Some(frames)
}
