//! Definitions, jobs and running requests, through the crate's public door.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod batch;
mod definitions;
mod running;
