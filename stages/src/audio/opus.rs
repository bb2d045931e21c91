//! Opus packets to samples, for any container.
//!
//! Decoder: `opus-decoder`, pure Rust without unsafe code, which passes the twelve test vectors of RFC 8251. Identification
//! headers are read here (RFC 7845, section 5.1): Ogg and WebM carry `OpusHead`, MP4 a `dOps` box without the magic.

use opus_decoder::OpusMultistreamDecoder;

use crate::error::{Result, StageError};

/// Opus always decodes to this rate.
pub(super) const RATE: u32 = 48_000;
/// Longest packet: 120 ms.
const LONGEST: usize = RATE as usize * 120 / 1000;

/// One stream's decoder.
pub(super) struct Opus {
    decoder: OpusMultistreamDecoder,
    channels: usize,
    gain: f32,
    /// Samples of a channel that the encoder asks to drop before the first audible one.
    skip: usize,
    buffer: Vec<f32>,
}

impl Opus {
    /// From the container's identification header; without one, `channels` of a plain stream are assumed.
    pub(super) fn new(header: Option<&[u8]>, channels: usize) -> Result<Self> {
        let head = header.map_or(Some(Head::plain(channels)), Head::parse);
        let head = head.ok_or_else(|| StageError::malformed("audio has a broken Opus header"))?;
        let decoder = OpusMultistreamDecoder::new(RATE, head.mapping.len(), head.streams, head.coupled, &head.mapping)
            .map_err(|error| StageError::malformed(format!("audio has a broken Opus header: {error}")))?;
        Ok(Self {
            decoder,
            channels: head.mapping.len(),
            gain: 10f32.powf(f32::from(head.gain) / (20.0 * 256.0)),
            skip: head.skip,
            buffer: vec![0.0; LONGEST * head.mapping.len()],
        })
    }

    /// Channels of the decoded samples.
    pub(super) const fn channels(&self) -> usize {
        self.channels
    }

    /// Interleaved samples of one packet; `None` when it is damaged. `trim` are samples of a channel past the true end.
    pub(super) fn decode(&mut self, packet: &[u8], trim: usize) -> Option<&[f32]> {
        let frames = self.decoder.decode_float(packet, &mut self.buffer, false).ok()?;
        let skipped = self.skip.min(frames);
        self.skip -= skipped;
        let end = frames.saturating_sub(trim).max(skipped);
        let samples = &mut self.buffer[skipped * self.channels..end * self.channels];
        if self.gain != 1.0 {
            samples.iter_mut().for_each(|sample| *sample *= self.gain);
        }
        Some(samples)
    }
}

struct Head {
    skip: usize,
    /// In 1/256 decibel.
    gain: i16,
    streams: usize,
    coupled: usize,
    mapping: Vec<u8>,
}

impl Head {
    fn plain(channels: usize) -> Self {
        let channels = channels.clamp(1, 2);
        Self { skip: 0, gain: 0, streams: 1, coupled: channels - 1, mapping: (0..channels as u8).collect() }
    }

    fn parse(header: &[u8]) -> Option<Self> {
        // Ogg and WebM store numbers with the low byte first, MP4 with the high byte first.
        let (body, little) = match header.strip_prefix(b"OpusHead") {
            Some(body) => (body, true),
            None => (header, false),
        };
        let pair = |at: usize| {
            let bytes: [u8; 2] = body.get(at..at + 2)?.try_into().ok()?;
            Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
        };
        let channels = usize::from(*body.get(1)?);
        let (skip, gain, family) = (usize::from(pair(2)?), pair(8)?.cast_signed(), *body.get(10)?);
        if family == 0 {
            return (1..=2).contains(&channels).then(|| Self { skip, gain, ..Self::plain(channels) });
        }
        let (streams, coupled) = (usize::from(*body.get(11)?), usize::from(*body.get(12)?));
        let mapping = body.get(13..13 + channels)?.to_vec();
        Some(Self { skip, gain, streams, coupled, mapping })
    }
}
