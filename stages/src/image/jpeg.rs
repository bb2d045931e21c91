//! JPEG through zune-jpeg: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK (as Adobe stores them, inverted).

use image::metadata::Orientation;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::decode::truncated;
use crate::error::{Result, StageError};
use crate::limits::ImageLimits;

/// A JPEG whose header has been read.
pub(super) struct Jpeg<'a> {
    bytes: &'a [u8],
    options: DecoderOptions,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) orientation: Orientation,
}

const STRAY: &str = "Extra bytes between headers";

impl<'a> Jpeg<'a> {
    pub(super) fn open(bytes: &'a [u8], limits: &ImageLimits) -> Result<Self> {
        let options = DecoderOptions::default()
            .set_max_width(usize::from(u16::MAX))
            .set_max_height(usize::from(u16::MAX))
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|error| read_error(&error))?;
        let (width, height) = decoder.dimensions().ok_or_else(truncated)?;
        limits.check_size(width, height)?;
        let exif = decoder.exif().and_then(|chunk| Orientation::from_exif_chunk(chunk));
        Ok(Self { bytes, options, width, height, orientation: exif.unwrap_or(Orientation::NoTransforms) })
    }

    /// RGB rows and warnings. Strict decoding makes a cut or broken stream an error instead of a picture with a grey part;
    /// stray bytes between headers, which other readers skip with a warning, are skipped here too, but then the file must
    /// have its end marker.
    pub(super) fn decode(self) -> Result<(Vec<u8>, Vec<String>)> {
        match self.attempt(true) {
            Err(error) if error.to_string().contains(STRAY) && has_end(self.bytes) => {
                let rgb = self.attempt(false).map_err(|error| read_error(&error))?;
                Ok((rgb, vec!["the JPEG has stray bytes between its headers".into()]))
            }
            Err(error) => Err(read_error(&error)),
            Ok(rgb) => Ok((rgb, Vec::new())),
        }
    }

    fn attempt(&self, strict: bool) -> std::result::Result<Vec<u8>, DecodeErrors> {
        JpegDecoder::new_with_options(ZCursor::new(self.bytes), self.options.set_strict_mode(strict)).decode()
    }
}

fn has_end(bytes: &[u8]) -> bool {
    bytes.windows(2).rev().take(64 << 10).any(|pair| pair == [0xFF, 0xD9])
}

fn read_error(error: &DecodeErrors) -> StageError {
    match error {
        DecodeErrors::Unsupported(scheme) => {
            StageError::unsupported(format!("JPEG of a kind that is not decoded: {scheme:?}"))
        }
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(_) => truncated(),
        DecodeErrors::ZeroError => StageError::malformed("image has no pixels: its header states a side of 0"),
        DecodeErrors::FormatStatic(text) if text.contains("Premature") => truncated(),
        error => StageError::malformed(format!("JPEG is broken or truncated: {error:?}")),
    }
}
