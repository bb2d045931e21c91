//! The files of a job, and what survives a kill.
//!
//! Invariant: **a line of the input is done exactly when a whole line of the output (or the errors file) carries its
//! index.** There is no second book that could disagree. Files only grow, by whole lines, each written with one call and
//! synced before it is reported; so whatever a kill leaves is a run of whole lines and perhaps one torn one, which the
//! next start cuts off and does again. The job file beside the output (`OUT.job`) is written, synced and renamed into
//! place before the first line; it says which input and target the output belongs to. The output is locked while a job
//! runs; the lock goes with the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// What an output belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobFile {
    /// Version of this layout.
    pub(super) version: u32,
    /// Hash of the whole input.
    pub(super) input_blake3: String,
    /// What answers.
    pub(super) target: String,
    /// Options of the job.
    pub(super) options: serde_json::Value,
}

/// Which lines are done: one bit a line.
#[derive(Debug, Default)]
pub(super) struct Done {
    bits: Vec<u64>,
    pub(super) count: usize,
    pub(super) failed: usize,
}

impl Done {
    pub(super) fn has(&self, index: usize) -> bool {
        self.bits.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Marks a line; false when it was marked before.
    fn mark(&mut self, index: usize) -> bool {
        if self.has(index) {
            return false;
        }
        if self.bits.len() <= index / 64 {
            self.bits.resize(index / 64 + 1, 0);
        }
        self.bits[index / 64] |= 1 << (index % 64);
        self.count += 1;
        true
    }
}

/// The open files of a job.
#[derive(Debug)]
pub(super) struct Journal {
    output: File,
    errors: Option<File>,
}

/// Paths of a job's files.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) output: PathBuf,
    pub(super) errors: Option<PathBuf>,
}

impl Paths {
    fn job(&self) -> PathBuf {
        let mut name = self.output.clone().into_os_string();
        name.push(".job");
        name.into()
    }
}

impl Journal {
    /// Opens a job's files, alone. A new job needs an output that is not there or empty; a resumed one an output of the
    /// same input, target and options, whose torn end is cut off. `lines` bounds the indices.
    pub(super) fn open(paths: &Paths, job: &JobFile, resume: bool, lines: usize) -> Result<(Self, Done)> {
        let mut output = open(&paths.output)?;
        match output.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let text = format!("another job is writing {}", paths.output.display());
                return Err(Error::new(ErrorKind::Overloaded, text).about("output"));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&paths.output, &error)),
        }
        let known = read_job(&paths.job())?;
        let written = output.metadata().map_err(|error| failed(&paths.output, &error))?.len() > 0;
        match (known, resume) {
            (_, false) if written => {
                let text = format!("{} is there already", paths.output.display());
                return Err(Error::new(
                    ErrorKind::Malformed,
                    format!("{text}: go on with --resume, or name another file"),
                )
                .about("output"));
            }
            (Some(known), true) => same(&known, job, &paths.output)?,
            (None, true) if written => {
                let text = format!(
                    "{} was not written by a job: {} is missing",
                    paths.output.display(),
                    paths.job().display()
                );
                return Err(Error::new(ErrorKind::Malformed, text).about("output"));
            }
            _ => write_job(&paths.job(), job)?,
        }
        let mut done = Done::default();
        scan(&mut output, &paths.output, &mut done, lines)?;
        let errors = match &paths.errors {
            Some(path) => {
                let mut errors = open(path)?;
                if !resume && errors.metadata().is_ok_and(|data| data.len() > 0) {
                    let text =
                        format!("{} is there already: go on with --resume, or name another file", path.display());
                    return Err(Error::new(ErrorKind::Malformed, text).about("errors"));
                }
                let before = done.count;
                scan(&mut errors, path, &mut done, lines)?;
                done.failed += done.count - before;
                Some(errors)
            }
            None => None,
        };
        Ok((Self { output, errors }, done))
    }

    /// Appends lines (with their ends) and syncs once; each was a failure or not.
    pub(super) fn append(&mut self, lines: &[(bool, Vec<u8>)]) -> std::io::Result<()> {
        let (mut output, mut errors) = (false, false);
        for (failure, line) in lines {
            match self.errors.as_mut().filter(|_| *failure) {
                Some(file) => {
                    file.write_all(line)?;
                    errors = true;
                }
                None => {
                    self.output.write_all(line)?;
                    output = true;
                }
            }
        }
        if output {
            self.output.sync_data()?;
        }
        if let Some(file) = self.errors.as_ref().filter(|_| errors) {
            file.sync_data()?;
        }
        Ok(())
    }
}

/// Reads which lines are done and cuts a torn end off.
fn scan(file: &mut File, path: &Path, done: &mut Done, lines: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Index {
        index: usize,
        #[serde(default)]
        error: Option<serde::de::IgnoredAny>,
    }

    file.seek(SeekFrom::Start(0)).map_err(|error| failed(path, &error))?;
    let mut reader = BufReader::new(&*file);
    let (mut whole, mut number, mut line) = (0_u64, 0, Vec::new());
    let mut torn: Option<usize> = None;
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(|error| failed(path, &error))?;
        if read == 0 {
            break;
        }
        number += 1;
        let index = serde_json::from_slice::<Index>(&line).ok().filter(|_| line.ends_with(b"\n"));
        let foreign =
            |text: String| Error::new(ErrorKind::Malformed, format!("{}:{text}", path.display())).about("output");
        match index {
            None => torn = torn.or(Some(number)),
            Some(_) if torn.is_some() => {
                let text = format!(
                    "{}: not a line of this job, and whole lines follow it; mend or remove it",
                    torn.unwrap_or(number)
                );
                return Err(foreign(text));
            }
            Some(index) if index.index >= lines => {
                return Err(foreign(format!("{number}: index {} is not in the input", index.index)));
            }
            Some(index) => {
                if !done.mark(index.index) {
                    return Err(foreign(format!("{number}: index {} is there twice", index.index)));
                }
                done.failed += usize::from(index.error.is_some());
                whole += read as u64;
            }
        }
    }
    if torn.is_some() {
        tracing::warn!(path = %path.display(), "a torn line at the end is cut off and done again");
        file.set_len(whole).and_then(|()| file.sync_data()).map_err(|error| failed(path, &error))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path).map_err(|error| failed(path, &error))
}

fn read_job(path: &Path) -> Result<Option<JobFile>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::new(ErrorKind::Malformed, format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, &error)),
    }
}

/// Written aside, synced, then renamed: there is a whole job file or none.
fn write_job(path: &Path, job: &JobFile) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let aside = path.with_extension("job.new");
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(job)?)?;
        file.sync_all()?;
        std::fs::rename(&aside, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        File::open(folder)?.sync_all()
    };
    write().map_err(|error| failed(path, &error))
}

fn same(known: &JobFile, job: &JobFile, output: &Path) -> Result<()> {
    let differs = if known.version != job.version {
        "layout of the job file"
    } else if known.input_blake3 != job.input_blake3 {
        "input file"
    } else if known.target != job.target {
        "pipeline or model"
    } else if known.options != job.options {
        "options"
    } else {
        return Ok(());
    };
    let text = format!(
        "the {differs} changed since {} was begun: go on with what it was, or name another output",
        output.display()
    );
    Err(Error::new(ErrorKind::Malformed, text).about("resume"))
}

pub(super) fn failed(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::IsADirectory => ErrorKind::Malformed,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, format!("{}: {error}", path.display()))
}
