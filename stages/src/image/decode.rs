//! Bytes to upright RGB. Sizes are checked from the header before anything of that size is allocated; a file that ends
//! early is an error, never a picture with a grey half.

use std::io::Cursor;

use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, tiff::TiffDecoder, webp::WebPDecoder};
use image::error::{ImageError, LimitErrorKind};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, RgbImage};

use super::jpeg::Jpeg;
use super::sniff::{gif_is_animated, sniff};
use super::{ImageFacts, ImageFormat};
use crate::cancel::Cancel;
use crate::error::{Result, StageError};
use crate::limits::ImageLimits;

/// A decoded picture, upright, three bytes a pixel.
pub(super) struct Picture {
    pub(super) rgb: Vec<u8>,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) format: ImageFormat,
    pub(super) warnings: Vec<String>,
}

impl Picture {
    pub(super) fn facts(&self) -> ImageFacts {
        ImageFacts { format: self.format, width: self.width, height: self.height }
    }
}

/// A picture whose header has been read.
pub(super) enum Opened<'a> {
    Jpeg(Jpeg<'a>),
    Other { decoder: Box<dyn ImageDecoder + 'a>, facts: ImageFacts, orientation: Orientation, warnings: Vec<String> },
}

/// Reads the header.
pub(super) fn open<'a>(bytes: &'a [u8], limits: &ImageLimits) -> Result<Opened<'a>> {
    limits.check_bytes(bytes.len())?;
    let format = sniff(bytes)?;
    let source = Cursor::new(bytes);
    let mut warnings = Vec::new();
    let mut decoder: Box<dyn ImageDecoder + 'a> = match format {
        ImageFormat::Jpeg => return Jpeg::open(bytes, limits).map(Opened::Jpeg),
        ImageFormat::Png => Box::new(PngDecoder::with_limits(source, budget(limits)).map_err(read_error)?),
        ImageFormat::Gif => {
            if gif_is_animated(bytes) {
                warnings.push("the GIF is animated: only its first frame is used".into());
            }
            Box::new(GifDecoder::new(source).map_err(read_error)?)
        }
        ImageFormat::WebP => {
            let decoder = WebPDecoder::new(source).map_err(read_error)?;
            if decoder.has_animation() {
                warnings.push("the WebP is animated: only its first frame is used".into());
            }
            Box::new(decoder)
        }
        ImageFormat::Bmp => Box::new(BmpDecoder::new(source).map_err(read_error)?),
        ImageFormat::Tiff => Box::new(TiffDecoder::new(source).map_err(read_error)?),
    };
    let (width, height) = decoder.dimensions();
    limits.check_size(width as usize, height as usize)?;
    decoder.set_limits(budget(limits)).map_err(read_error)?;
    // Broken metadata do not make a picture unreadable: Pillow, too, shows it as stored.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let facts = upright(format, width as usize, height as usize, orientation);
    Ok(Opened::Other { decoder, facts, orientation, warnings })
}

impl Opened<'_> {
    /// What the header says.
    pub(super) fn facts(&self) -> ImageFacts {
        match self {
            Self::Jpeg(jpeg) => upright(ImageFormat::Jpeg, jpeg.width, jpeg.height, jpeg.orientation),
            Self::Other { facts, .. } => *facts,
        }
    }

    /// Decodes all of it.
    pub(super) fn decode(self, cancel: &Cancel) -> Result<Picture> {
        let facts = self.facts();
        let (rgb, stored, orientation, warnings) = match self {
            Self::Jpeg(jpeg) => {
                let (stored, orientation) = ((jpeg.width, jpeg.height), jpeg.orientation);
                let (rgb, warnings) = jpeg.decode()?;
                (rgb, stored, orientation, warnings)
            }
            Self::Other { decoder, orientation, warnings, .. } => {
                let (width, height) = decoder.dimensions();
                (to_rgb(decoder)?, (width as usize, height as usize), orientation, warnings)
            }
        };
        cancel.check()?;
        let rgb = turn(rgb, stored, orientation)?;
        Ok(Picture { rgb, width: facts.width, height: facts.height, format: facts.format, warnings })
    }
}

fn upright(format: ImageFormat, width: usize, height: usize, orientation: Orientation) -> ImageFacts {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let turned = matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
    let (width, height) = if turned { (height, width) } else { (width, height) };
    ImageFacts { format, width, height }
}

fn turn(rgb: Vec<u8>, (width, height): (usize, usize), orientation: Orientation) -> Result<Vec<u8>> {
    if orientation == Orientation::NoTransforms {
        return Ok(rgb);
    }
    let buffer = RgbImage::from_raw(width as u32, height as u32, rgb)
        .ok_or_else(|| StageError::malformed("image data does not have the size its header states"))?;
    let mut picture = DynamicImage::ImageRgb8(buffer);
    picture.apply_orientation(orientation);
    Ok(picture.into_rgb8().into_raw())
}

/// What a decoder may allocate beside the picture itself: eight bytes a pixel cover 16-bit RGBA.
fn budget(limits: &ImageLimits) -> image::Limits {
    let mut budget = image::Limits::no_limits();
    budget.max_alloc = Some((limits.pixels as u64).saturating_mul(8).saturating_add(16 << 20));
    budget
}

fn to_rgb(decoder: Box<dyn ImageDecoder + '_>) -> Result<Vec<u8>> {
    let color = decoder.color_type();
    if matches!(color, ColorType::Rgb32F | ColorType::Rgba32F) {
        return Ok(DynamicImage::from_decoder(decoder).map_err(read_error)?.into_rgb8().into_raw());
    }
    let size = usize::try_from(decoder.total_bytes()).map_err(|_| StageError::too_large("image is too large"))?;
    let mut data = vec![0; size];
    decoder.read_image(&mut data).map_err(read_error)?;
    if color.bytes_per_pixel() / color.channel_count() == 2 {
        data = data.chunks_exact(2).map(|pair| to_byte(u16::from_ne_bytes([pair[0], pair[1]]))).collect();
    }
    Ok(match color.channel_count() {
        1 => data.iter().flat_map(|&grey| [grey; 3]).collect(),
        2 => data.chunks_exact(2).flat_map(|pixel| [on_white(pixel[0], pixel[1]); 3]).collect(),
        3 => data,
        _ => data
            .chunks_exact(4)
            .flat_map(|p| [on_white(p[0], p[3]), on_white(p[1], p[3]), on_white(p[2], p[3])])
            .collect(),
    })
}

// 65535 / 257 = 255: the nearest byte.
const fn to_byte(value: u16) -> u8 {
    ((value as u32 + 128) / 257) as u8
}

// Pillow's `alpha_composite` on an opaque white background, bit for bit (AlphaComposite.c).
const fn on_white(value: u8, alpha: u8) -> u8 {
    let mixed = (value as u32 * alpha as u32 + 255 * (255 - alpha as u32)) * 128 + (0x80 << 7);
    ((((mixed >> 8) + mixed) >> 8) >> 7) as u8
}

fn read_error(error: ImageError) -> StageError {
    match error {
        ImageError::Unsupported(error) => {
            StageError::unsupported(format!("image uses a feature that is not decoded: {error}"))
        }
        ImageError::Limits(error)
            if matches!(error.kind(), LimitErrorKind::DimensionError | LimitErrorKind::InsufficientMemory) =>
        {
            StageError::too_large("image needs more memory than its limit in pixels allows")
        }
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        error => {
            let text = error.to_string();
            if text.to_ascii_lowercase().contains("unexpected end")
                || text.contains("EOF")
                || text.contains("end of file")
            {
                return truncated();
            }
            StageError::malformed(format!("image cannot be decoded: {text}"))
        }
    }
}

/// The file ends before its picture does.
pub(super) fn truncated() -> StageError {
    StageError::malformed("image file is truncated: it ends before its last row")
}

#[cfg(test)]
mod tests {
    use super::{on_white, to_byte};

    #[test]
    fn sixteen_bits_scale_to_the_nearest_byte() {
        assert_eq!([0, 127, 128, 129, 257, 65_534, 65_535].map(to_byte), [0, 0, 0, 1, 1, 255, 255]);
    }

    #[test]
    fn alpha_ends_are_exact() {
        for value in 0..=255 {
            assert_eq!((on_white(value, 255), on_white(value, 0)), (value, 255));
        }
    }
}
