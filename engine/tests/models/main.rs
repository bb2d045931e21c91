//! Models against their references, driven without the device thread: whole checkpoints, one page pool, plain loops.

mod driver;
mod gguf;
mod golden;
mod omni;
mod real;
mod strict;
