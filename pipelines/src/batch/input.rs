//! The input of a job: looked over once, then streamed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::journal::failed;
use crate::error::Result;

/// Bytes of a line that are taken; a longer one is an error of that line alone.
pub(super) const LINE_BYTES: usize = 256 << 20;

/// What a first pass over the input tells.
#[derive(Debug)]
pub(super) struct Survey {
    /// Hash of all of it.
    pub(super) blake3: String,
    /// Lines, blank ones included.
    pub(super) lines: usize,
    /// Lines that ask something.
    pub(super) requests: usize,
}

/// Reads the input once, keeping nothing.
pub(super) fn survey(path: &Path) -> Result<Survey> {
    let mut file = File::open(path).map_err(|error| failed(path, &error))?;
    let mut hasher = blake3::Hasher::new();
    let (mut lines, mut requests, mut blank, mut open) = (0, 0, true, false);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer).map_err(|error| failed(path, &error))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        for &byte in &buffer[..read] {
            open = byte != b'\n';
            if open {
                blank &= byte.is_ascii_whitespace();
            } else {
                lines += 1;
                requests += usize::from(!blank);
                blank = true;
            }
        }
    }
    lines += usize::from(open);
    requests += usize::from(open && !blank);
    Ok(Survey { blake3: hasher.finalize().to_hex().to_string(), lines, requests })
}

/// A line of the input: its index, and its bytes unless it is too long.
pub(super) type Line = (usize, Option<Vec<u8>>);

/// The lines of the input that ask something, one at a time.
pub(super) struct Lines {
    reader: BufReader<File>,
    next: usize,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| failed(path, &error))?;
        Ok(Self { reader: BufReader::with_capacity(1 << 16, file), next: 0 })
    }

    /// The next line that is not blank.
    pub(super) fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let mut line = Vec::new();
            let read = self.reader.by_ref().take(LINE_BYTES as u64).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            let index = self.next;
            self.next += 1;
            if read == LINE_BYTES && line.last() != Some(&b'\n') {
                self.skip_line()?;
                return Ok(Some((index, None)));
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((index, Some(line))));
            }
        }
    }

    fn skip_line(&mut self) -> std::io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let (used, last) = end.map_or((buffer.len(), buffer.is_empty()), |at| (at + 1, true));
            self.reader.consume(used);
            if last {
                return Ok(());
            }
        }
    }
}
