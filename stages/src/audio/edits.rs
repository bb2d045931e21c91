//! How much of an MP4 track comes before its presentation: the first edit of its edit list, which holds the encoder's
//! priming samples (ISO/IEC 14496-12, section 8.6.6). Symphonia decodes those samples as sound.

/// Seconds to drop from the start of the first audio track; 0 when nothing says so.
pub(super) fn priming(file: &[u8]) -> f64 {
    find(file, b"moov")
        .and_then(|moov| boxes(moov).filter(|(kind, _)| kind == b"trak").find_map(|(_, track)| start(track)))
        .unwrap_or(0.0)
}

fn start(track: &[u8]) -> Option<f64> {
    let media = find(track, b"mdia")?;
    if find(media, b"hdlr")?.get(8..12)? != b"soun" {
        return None;
    }
    let header = find(media, b"mdhd")?;
    let scale = number(header, if *header.first()? == 1 { 20 } else { 12 }, 4)?;
    let edits = find(find(track, b"edts")?, b"elst")?;
    let width = if *edits.first()? == 1 { 8 } else { 4 };
    let count = usize::try_from(number(edits, 4, 4)?).ok()?.min(16);
    // Empty edits (media time -1) only delay the presentation.
    let mut times = (0..count).map_while(|i| number(edits, 8 + i * (2 * width + 4) + width, width));
    let empty = if width == 8 { u64::MAX } else { u64::from(u32::MAX) };
    let first = times.find(|time| *time != empty)?;
    (scale > 0).then(|| first as f64 / scale as f64)
}

fn find<'a>(parent: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(parent).find(|(name, _)| name == kind).map(|(_, body)| body)
}

/// Kinds and bodies of the boxes in a row; ends at the first that does not fit.
fn boxes(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let kind: [u8; 4] = rest.get(4..8)?.try_into().ok()?;
        let (size, header) = match number(rest, 0, 4)? {
            0 => (rest.len(), 8),
            1 => (usize::try_from(number(rest, 8, 8)?).ok()?, 16),
            size => (usize::try_from(size).ok()?, 8),
        };
        let body = rest.get(header..size)?;
        rest = &rest[size..];
        Some((kind, body))
    })
}

fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    Some(bytes.get(at..at.checked_add(width)?)?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}
