//! Whisper, from weights to transcript: a random checkpoint against transformers (`reference.py` made `reference.json`),
//! invariance under batching and slicing, and, when asked, real weights on real speech.

#![expect(clippy::print_stdout, reason = "tests print their figures")]

mod checkpoint;
mod real;
mod speech;
mod towers;
mod transcripts;
