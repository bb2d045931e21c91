//! Files mapped into memory, so that weights are paged in as they are read and shared between processes.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

/// A whole file as bytes.
///
/// Hazard: whoever shortens the file while it is mapped ends this process by a signal at the next read beyond its new
/// end. Checkpoints are written once and replaced by renaming, which leaves a mapping intact.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps a file for reading.
    #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; the hazard is stated at the type")]
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and lives as long as the value that hands out its bytes. That
        // nobody changes the file meanwhile is the condition stated at the type.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self(map))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
