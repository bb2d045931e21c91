//! What a file is, by its first bytes and never by its name.

use super::AudioFormat;
use crate::error::{Result, StageError};

/// The container, or an error that names what the file is instead when that is known.
pub(super) fn sniff(bytes: &[u8]) -> Result<AudioFormat> {
    match bytes {
        [b'I', b'D', b'3', _, _, _, sizes @ ..] => match sizes.first_chunk::<4>() {
            // The tag's length in four groups of seven bits; what follows decides.
            Some(size) => {
                let length = size.iter().fold(0usize, |sum, byte| sum << 7 | usize::from(byte & 0x7F));
                match bytes.get(10 + length..) {
                    Some([b'I', b'D', b'3', ..]) | None => Ok(AudioFormat::Mp3),
                    Some(rest) => Ok(plain(rest).unwrap_or(AudioFormat::Mp3)),
                }
            }
            None => Err(StageError::malformed("audio file ends inside its ID3 tag")),
        },
        _ => plain(bytes).ok_or_else(|| foreign(bytes)),
    }
}

fn plain(bytes: &[u8]) -> Option<AudioFormat> {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some(AudioFormat::Wav),
        [b'f', b'L', b'a', b'C', ..] => Some(AudioFormat::Flac),
        [b'O', b'g', b'g', b'S', ..] => Some(AudioFormat::Ogg),
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => Some(AudioFormat::Aiff),
        [0x1A, 0x45, 0xDF, 0xA3, ..] => Some(AudioFormat::Mkv),
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => match brand.first_chunk::<4>() {
            Some(b"heic" | b"heix" | b"mif1" | b"avif") => None,
            _ => Some(AudioFormat::Mp4),
        },
        // Twelve bits of sync; layer 0 is AAC, the others MPEG audio with a valid rate and version.
        [0xFF, second, third, ..] if second & 0xE0 == 0xE0 => {
            let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
            let adts = second & 0xF6 == 0xF0 && third >> 2 & 15 < 13;
            let mpeg = version != 1 && layer != 0 && third >> 4 != 15 && third >> 2 & 3 != 3;
            if adts { Some(AudioFormat::Adts) } else { mpeg.then_some(AudioFormat::Mp3) }
        }
        _ => None,
    }
}

fn foreign(bytes: &[u8]) -> StageError {
    let accepted = "accepted are WAV, MP3, FLAC, Ogg (Vorbis, Opus), M4A, AAC, AIFF and WebM";
    if bytes.len() < 4 {
        return StageError::malformed(format!("audio file has only {} bytes", bytes.len()));
    }
    let head = &bytes[..bytes.len().min(1024)];
    let name = match head {
        [b'R', b'F', b'6', b'4', ..] | [b'B', b'W', b'6', b'4', ..] => "RF64, the WAV form for more than 4 GiB,",
        [b'c', b'a', b'f', b'f', ..] => "CAF",
        [b'#', b'!', b'A', b'M', b'R', ..] => "AMR",
        [0x30, 0x26, 0xB2, 0x75, ..] => "WMA (ASF)",
        [b'M', b'T', b'h', b'd', ..] => "MIDI",
        [b'w', b'v', b'p', b'k', ..] => "WavPack",
        [b'M', b'A', b'C', b' ', ..] => "Monkey's Audio",
        _ => match std::str::from_utf8(head) {
            Ok(_) => "text",
            Err(_) => {
                return StageError::unsupported(format!("file is no audio of a known container; {accepted}"));
            }
        },
    };
    StageError::unsupported(format!("file is {name} which is not decoded; {accepted}"))
}
