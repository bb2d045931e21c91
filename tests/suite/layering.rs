//! The rooms and the arrows between them, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Exactly these edges: api -> pipelines -> stages -> engine -> kernels.
const EDGES: [(&str, &[&str]); 5] = [
    ("weft-kernels", &[]),
    ("weft-engine", &["weft-kernels"]),
    ("weft-stages", &["weft-engine"]),
    ("weft-pipelines", &["weft-stages"]),
    ("weft-api", &["weft-pipelines"]),
];

/// External crates that may appear only in these rooms.
const QUARANTINE: [(&str, &[&str]); 10] = [
    ("candle-core", &["weft-kernels", "weft-engine"]),
    ("cudarc", &["weft-kernels"]),
    ("axum", &["weft-api"]),
    ("tower-http", &["weft-api"]),
    ("tokio", &["weft-pipelines", "weft-api"]),
    ("serde-saphyr", &["weft-pipelines", "weft-api"]),
    ("actix", &["weft-stages"]),
    ("symphonia", &["weft-stages"]),
    ("image", &["weft-stages"]),
    ("tokenizers", &["weft-stages"]),
];

/// Normal dependencies of every room.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata");
    let rooms = metadata.packages.iter().filter(|p| p.name.as_str() != "weft-tests");
    rooms
        .map(|package| {
            let normal = package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal);
            (package.name.to_string(), normal.map(|d| d.name.clone()).collect())
        })
        .collect()
}

#[test]
fn the_arrows_are_exactly_these() {
    let found = dependencies();
    assert_eq!(found.len(), EDGES.len(), "a room was added or lost: {:?}", found.keys());
    for (room, expected) in EDGES {
        let own: BTreeSet<_> = found[room].iter().filter(|d| d.starts_with("weft-")).map(String::as_str).collect();
        assert_eq!(own, expected.iter().copied().collect(), "{room} may depend on {expected:?} only");
    }
}

#[test]
fn quarantined_crates_stay_in_their_rooms() {
    let found = dependencies();
    for (krate, rooms) in QUARANTINE {
        for (room, dependencies) in &found {
            assert!(
                rooms.contains(&room.as_str()) || !dependencies.contains(krate),
                "{room} depends on {krate}, which belongs to {rooms:?}"
            );
        }
    }
}
