//! The `weft` binary: parses the command line and hands over to [`weft_api::cli`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weft_api::cli::main()
}
