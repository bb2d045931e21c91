//! The image stage: bytes of a picture to normalised patches in the model's order.
//!
//! Steps: sniff by content, header and limits, decode to upright RGB on white, resize as Pillow does, normalise by table,
//! cut into patches. Sizes and constants come from the model's [`ImageProcessor`].

mod decode;
mod jpeg;
mod patches;
mod resize;
mod sniff;

use weft_engine::card::ImageProcessor;
use weft_engine::media::Patches;

use crate::cancel::Cancel;
use crate::error::{Result, guarded};
use crate::limits::ImageLimits;
use crate::prepared::{MediaFacts, Worked};

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

/// Facts of a picture from its header alone, for pricing. Reads no pixel and applies no limit.
pub fn image_facts(bytes: &[u8]) -> Result<ImageFacts> {
    let limits = ImageLimits { bytes: usize::MAX, pixels: usize::MAX, side: usize::MAX };
    guarded(|| Ok(decode::open(bytes, &limits)?.facts()))
}

/// One picture's preparation.
pub(crate) struct Task<'a> {
    pub(crate) limits: ImageLimits,
    pub(crate) threads: usize,
    pub(crate) cancel: &'a Cancel,
}

impl Task<'_> {
    /// Header, limits, plan, pixels, patches; asks between steps whether the result is still wanted.
    pub(crate) fn prepare(&self, bytes: &[u8], processor: &ImageProcessor) -> Result<Worked<Patches>> {
        let opened = decode::open(bytes, &self.limits)?;
        let facts = opened.facts();
        let plan = processor.plan(facts.width, facts.height)?;
        self.cancel.check()?;
        let picture = opened.decode(self.cancel)?;
        self.cancel.check()?;
        let (values, id) = patches::patches(&picture, &plan, processor, self.threads);
        let source = MediaFacts::Image(picture.facts());
        Ok(Worked { value: Patches { values, grid: plan.grid, id }, warnings: picture.warnings, source })
    }
}
