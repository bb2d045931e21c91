//! House rules that the compiler does not check: file length, the address of unsafe code, actix in one file.

use std::fs;
use std::path::{Path, PathBuf};

const ROOMS: [&str; 6] = ["kernels", "engine", "stages", "pipelines", "api", "tests"];
const LONGEST: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Source files of a room with these endings, build output and caches left out.
fn sources(room: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut waiting = vec![root().join(room)];
    let mut found = Vec::new();
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !["target", "node_modules", "__pycache__"].contains(&name.as_str()) {
                    waiting.push(path);
                }
            } else if path.extension().is_some_and(|e| endings.iter().any(|want| e == *want)) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no source under {room}: the test looks in the wrong place");
    found
}

#[test]
fn no_file_is_longer_than_500_lines() {
    let mut long = Vec::new();
    for room in ROOMS {
        for path in sources(room, &["rs", "cu", "py", "js", "css", "html"]) {
            let lines = fs::read_to_string(&path).expect("text").lines().count();
            if lines > LONGEST {
                long.push(format!("{} has {lines} lines", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "split by the second idea in them:\n{}", long.join("\n"));
}

#[test]
fn unsafe_code_has_one_address() {
    for room in ROOMS.into_iter().filter(|room| *room != "kernels") {
        for path in sources(room, &["rs"]).into_iter().filter(|p| !p.ends_with("suite/house.rs")) {
            let text = fs::read_to_string(&path).expect("text");
            let uses = text.lines().any(|line| {
                let code = line.split("//").next().unwrap_or_default();
                code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
            });
            assert!(!uses, "{} holds unsafe code; it belongs to kernels", path.display());
        }
        if room != "tests" {
            let lib = fs::read_to_string(root().join(room).join("src/lib.rs")).expect("lib.rs");
            assert!(lib.contains("#![forbid(unsafe_code)]"), "{room}/src/lib.rs must forbid unsafe code");
        }
    }
}

#[test]
fn actix_lives_in_one_file() {
    let users: Vec<_> = sources("stages", &["rs"])
        .into_iter()
        .filter(|path| {
            fs::read_to_string(path).expect("text").lines().any(|l| l.contains("actix::") || l.contains("use actix"))
        })
        .collect();
    assert!(users.len() <= 1, "actix is named in {users:?}; it belongs to the actors file alone");
}

#[test]
fn the_repository_speaks_of_itself_alone() {
    // Paths of a developer's machine must not travel in sources or docs.
    let marks = [concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("../sha", "red")];
    let mut files: Vec<PathBuf> =
        ROOMS.iter().flat_map(|room| sources(room, &["rs", "py", "md", "yaml", "js", "toml"])).collect();
    files.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for mark in marks {
            assert!(!text.contains(mark), "{} mentions {mark}", path.display());
        }
    }
}
