//! The only place that prints: answers to stdout, notes and progress to stderr.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the command line's own output")]

use std::io::{IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};

/// A line of the answer.
pub(super) fn line(text: &str) {
    println!("{text}");
}

/// A piece of the answer, shown at once.
pub(super) fn piece(text: &str) {
    print!("{text}");
    let _closed_pipe_is_noticed_later = std::io::stdout().flush();
}

/// A line for people, beside the answer.
pub(super) fn note(text: &str) {
    eprintln!("{text}");
}

/// A progress bar on a terminal, nothing elsewhere.
pub(super) fn progress(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg} {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// Something that runs for a while, shown on a terminal.
pub(super) fn spinner(message: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.set_message(message.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

/// Shell completions.
pub(super) fn completions(shell: clap_complete::Shell) {
    let mut command = <super::Cli as clap::CommandFactory>::command();
    clap_complete::generate(shell, &mut command, "weft", &mut std::io::stdout());
}
