//! Stages: actors that turn bytes into engine input, and tokens back into text.

#![forbid(unsafe_code)]

pub use weft_engine::ErrorKind;
