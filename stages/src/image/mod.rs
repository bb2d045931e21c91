//! The image stage.

use weft_engine::card::ImageProcessor;
use weft_engine::media::Patches;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::limits::ImageLimits;
use crate::prepared::Worked;

/// Formats that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// GIF (first frame).
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF.
    Tiff,
}

/// What a picture's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFacts {
    /// Format by content.
    pub format: ImageFormat,
    /// Width in pixels, after the EXIF orientation is applied.
    pub width: usize,
    /// Height in pixels, after the EXIF orientation is applied.
    pub height: usize,
}

/// Facts of a picture from its header alone, for pricing.
pub fn image_facts(bytes: &[u8]) -> Result<ImageFacts> {
    let _ = bytes;
    todo!()
}

/// One picture's preparation.
pub(crate) struct Task<'a> {
    pub(crate) limits: ImageLimits,
    pub(crate) threads: usize,
    pub(crate) cancel: &'a Cancel,
}

impl Task<'_> {
    pub(crate) fn prepare(
        &self,
        bytes: &[u8],
        processor: &ImageProcessor,
    ) -> Result<Worked<Patches>> {
        let _ = (bytes, processor, self.threads, self.limits);
        self.cancel.check()?;
        todo!()
    }
}
