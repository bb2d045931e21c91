//! Media as the engine takes them: patches and log-mel frames, each with an identity.

/// Identity of a prepared medium: a 256-bit hash of decoded content, dimensions, channel layout and processor settings.
/// Equal identities mean equal encoder output; it keys the encoder cache and enters every KV block key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaId(pub [u8; 32]);

impl std::fmt::Debug for MediaId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MediaId(")?;
        for byte in &self.0[..6] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ")")
    }
}

/// Patches along time, height and width, before any merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Temporal patches (1 for a still picture).
    pub t: usize,
    /// Rows of patches.
    pub h: usize,
    /// Columns of patches.
    pub w: usize,
}

impl Grid {
    /// Patches in all.
    pub const fn patches(self) -> usize {
        self.t * self.h * self.w
    }
}

/// A picture as flattened, normalised patches.
#[derive(Debug, Clone)]
pub struct Patches {
    /// `[grid.patches(), patch_values]` row-major, in the order the model's processor produces.
    pub values: Vec<f32>,
    /// Patch grid.
    pub grid: Grid,
    /// Identity.
    pub id: MediaId,
}

/// A clip as log-mel frames.
#[derive(Debug, Clone)]
pub struct LogMel {
    /// `[frames, bins]` row-major: one row a frame.
    pub values: Vec<f32>,
    /// Frames.
    pub frames: usize,
    /// Mel bands.
    pub bins: usize,
    /// Identity.
    pub id: MediaId,
}

/// A medium ready for its encoder.
#[derive(Debug, Clone)]
pub enum Medium {
    /// For the vision tower.
    Image(Patches),
    /// For the audio tower.
    Audio(LogMel),
}

impl Medium {
    /// Identity.
    pub fn id(&self) -> MediaId {
        match self {
            Self::Image(patches) => patches.id,
            Self::Audio(mel) => mel.id,
        }
    }
}
