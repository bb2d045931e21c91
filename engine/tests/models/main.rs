//! Models against their references, driven without the device thread: whole checkpoints, one page pool, plain loops.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic, and print their figures")]

mod driver;
mod families;
mod gguf;
mod golden;
mod omni;
mod real;
mod strict;
