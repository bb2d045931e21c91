//! Bytes made to hurt: whatever comes in, the answer is a value or a typed error, and never an inner fault.

use proptest::prelude::*;
use weft_stages::{ErrorKind, Stages, audio_facts, image_facts};

use crate::fixtures::{NAMES, fixture};
use crate::{audio, image, qwen, whisper};

const HEADS: &[&[u8]] = &[
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"RIFF\0\0\0\0WEBPVP8 ",
    b"RIFF\0\0\0\0WEBPVP8L",
    b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0",
    b"ID3\x04\0\0\0\0\0\x10",
    b"fLaC\0\0\0\x22",
    b"OggS\0\x02",
    b"\0\0\0\x18ftypM4A ",
    b"\xff\xf1\x50\x80",
    b"\xff\xfb\x90\x64",
    b"FORM\0\0\0\x20AIFFCOMM",
    b"\x1a\x45\xdf\xa3",
];

fn check(bytes: &[u8]) -> std::result::Result<(), TestCaseError> {
    for error in
        [image(bytes.to_vec(), qwen(100_000)).err(), audio(bytes.to_vec(), whisper()).err()].into_iter().flatten()
    {
        prop_assert_ne!(error.kind, ErrorKind::Internal, "{}", error);
        prop_assert_ne!(error.kind, ErrorKind::Overloaded, "{}", error);
    }
    // The headers' readers run on the caller's thread: they may fail, not panic.
    let _facts = (image_facts(bytes), audio_facts(bytes));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_behind_known_heads(head in proptest::sample::select(HEADS), tail in proptest::collection::vec(any::<u8>(), 0..2000)) {
        check(&[head, &tail].concat())?;
    }

    #[test]
    fn mutated_files(
        name in proptest::sample::select(NAMES.iter().copied().filter(|name| fixture(name).len() < 60_000).collect::<Vec<_>>()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = fixture(name).to_vec();
        prop_assume!(!bytes.is_empty());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()) + 1);
        }
        check(&bytes)?;
    }
}

#[test]
fn the_handle_crosses_threads() {
    fn crosses<T: Send + Sync + Clone + 'static>() {}
    crosses::<Stages>();
}
