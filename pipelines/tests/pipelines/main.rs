//! Definitions, jobs and running requests, through the crate's public door.

mod batch;
mod definitions;
mod running;
