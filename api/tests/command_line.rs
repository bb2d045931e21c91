//! The binary as a shell sees it: what it writes where, and its exit status. Being here also has `cargo test` build the
//! binary, which the client tests and the batch test run.

use std::path::Path;
use std::process::{Command, Output};

fn weft(words: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository");
    Command::new(env!("CARGO_BIN_EXE_weft")).args(words).current_dir(root).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wrong_words_end_with_status_2_and_say_so_on_standard_error() {
    for (words, named) in [
        (&["nonsense"][..], "nonsense"),
        (&["serve", "--no-such-flag"], "--no-such-flag"),
        (&["bench", "media"], "<FILES>"),
        (&["models", "show", "no/such/folder"], "no/such/folder"),
        (&["run", "no-such-pipeline", "--prompt", "hello"], "no-such-pipeline"),
    ] {
        let output = weft(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(text(&output.stderr).contains(named), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn failed_work_ends_with_status_1_and_names_the_part() {
    let output = weft(&["pipelines", "check", "no/such/file.yaml"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("no/such/file.yaml:1:1"), "{}", text(&output.stderr));
}

#[test]
fn samples_check_and_the_embedded_model_answers_without_a_server() {
    let output = weft(&["pipelines", "check", "samples/pipelines"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = weft(&["run", "samples/pipelines/describe.yaml", "--prompt", "Count to ten.", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let last = text(&output.stdout).lines().last().map(str::to_owned).expect("a line of JSON");
    assert!(last.starts_with('{') && last.ends_with('}'), "{last}");
}
