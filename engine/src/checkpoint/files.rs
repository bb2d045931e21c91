//! The files of a checkpoint by name, wherever they lie, and what is said when one cannot be read.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use weft_kernels::mapped::MappedFile;

use crate::error::{EngineError, ErrorKind, Result};
use crate::handle::ModelSource;

/// Longest JSON or template file that is read; a tokenizer of a million entries stays below.
const MAX_TEXT_BYTES: usize = 256 << 20;

/// The bytes of a file. Cloning shares them.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    Static(&'static [u8]),
    Mapped(Arc<MappedFile>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Mapped(file) => file,
        }
    }
}

/// Where the files lie.
#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    Memory(&'static [(&'static str, &'static [u8])]),
}

/// The files of one checkpoint.
#[derive(Debug)]
pub(super) struct Files {
    place: Place,
    /// The one file of a checkpoint that was given as a file.
    single: Option<String>,
}

impl Files {
    pub(super) fn open(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Embedded(files) => Ok(Self { place: Place::Memory(files), single: None }),
            ModelSource::Path(path) if path.is_dir() => Ok(Self { place: Place::Folder(path.clone()), single: None }),
            ModelSource::Path(path) => Self::of_file(path),
        }
    }

    fn of_file(path: &Path) -> Result<Self> {
        let missing = || {
            let detail = "is no folder and no file; give a folder with config.json and *.safetensors, or a .gguf file";
            EngineError::new(ErrorKind::NotFound, format!("{} {detail}", path.display()))
        };
        if !path.is_file() {
            return Err(missing());
        }
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(missing)?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { place: Place::Folder(folder), single: Some(name.to_owned()) })
    }

    /// How an error text calls a file.
    pub(super) fn label(&self, name: &str) -> String {
        match &self.place {
            Place::Folder(folder) => folder.join(name).display().to_string(),
            Place::Memory(_) => format!("embedded {name}"),
        }
    }

    /// The GGUF file, when the checkpoint is one.
    pub(super) fn gguf(&self) -> Option<String> {
        if let Some(name) = &self.single {
            return Some(name.clone());
        }
        let names = self.names();
        if names.iter().any(|name| name == "config.json") {
            return None;
        }
        let mut candidates = names.into_iter().filter(|name| name.ends_with(".gguf"));
        match (candidates.next(), candidates.next()) {
            (Some(name), None) => Some(name),
            _ => None,
        }
    }

    /// Names of all files, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = match &self.place {
            Place::Memory(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Place::Folder(folder) => std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect(),
        };
        names.sort();
        names
    }

    /// A file's bytes; `None` when there is no such file.
    pub(super) fn find(&self, name: &str) -> Result<Option<Bytes>> {
        // Names come from index files, too: a checkpoint never reaches outside its folder.
        if name.is_empty() || name.contains(['/', '\\']) || name == ".." {
            return Err(malformed(
                &self.label(name),
                "is not a plain file name; a checkpoint's files lie in one folder",
            ));
        }
        match &self.place {
            Place::Memory(files) => Ok(files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| Bytes::Static(bytes))),
            Place::Folder(folder) => {
                let path = folder.join(name);
                if !path.exists() {
                    return Ok(None);
                }
                let file = MappedFile::open(&path).map_err(|error| self.unreadable(name, &error))?;
                Ok(Some(Bytes::Mapped(Arc::new(file))))
            }
        }
    }

    fn unreadable(&self, name: &str, error: &std::io::Error) -> EngineError {
        let detail = format!("{} cannot be read: {error}", self.label(name));
        EngineError::new(
            if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Internal },
            detail,
        )
    }

    /// A text file; `None` when there is none.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.find(name)? else { return Ok(None) };
        if bytes.len() > MAX_TEXT_BYTES {
            return Err(malformed(
                &self.label(name),
                &format!("has {} bytes, more than {MAX_TEXT_BYTES}", bytes.len()),
            ));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(malformed(&self.label(name), "is not UTF-8 text")),
        }
    }

    /// A JSON object; `None` when there is no such file.
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match serde_json::from_str::<Value>(&text) {
            Ok(value) if value.is_object() => Ok(Some(value)),
            Ok(_) => Err(malformed(&self.label(name), "does not hold a JSON object")),
            Err(error) => Err(malformed(&self.label(name), &format!("is not valid JSON: {error}; fetch it again"))),
        }
    }
}

/// A file that cannot be understood.
pub(super) fn malformed(file: &str, detail: &str) -> EngineError {
    EngineError::new(ErrorKind::Malformed, format!("{file} {detail}"))
}
