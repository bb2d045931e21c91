//! Bytes to mono samples of the wanted rate, packet by packet: memory grows with the result, not with the file's layout.
//!
//! A damaged packet is skipped and counted; rate and channels are those of the decoded samples, not of the header. Length
//! is limited by what the header says and again by what has been decoded. Channels are averaged before the rate changes.

use std::io::{Cursor, ErrorKind as IoKind};

use bytes::Bytes;
use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatReader, Track, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::packet::Packet;

use super::edits;
use super::opus::{self, Opus};
use super::sink::Sink;
use super::sniff::sniff;
use super::{AudioFacts, AudioFormat, Length};
use crate::cancel::Cancel;
use crate::error::{Result, StageError};
use crate::limits::AudioLimits;

/// Broken packets in a row after which the rest is given up.
const PATIENCE: usize = 1000;
/// Seconds by which a clip may be shorter than its header states before its caller is told.
const MISSING: f64 = 0.1;
/// Bytes a second of thinly coded speech: prices a clip whose headers and packets state no length.
const THIN: f64 = 4000.0;

/// A clip as mono samples at the wanted rate.
pub(super) struct Clip {
    pub(super) samples: Vec<f32>,
    pub(super) facts: AudioFacts,
    pub(super) warnings: Vec<String>,
}

/// A clip whose header has been read.
pub(super) struct Opened {
    reader: Box<dyn FormatReader>,
    track: Track,
    params: AudioCodecParameters,
    format: AudioFormat,
    bytes: usize,
    /// Seconds before the presentation, which the encoder added.
    priming: f64,
}

/// Reads the header.
pub(super) fn open(bytes: Bytes) -> Result<Opened> {
    let (format, size) = (sniff(&bytes)?, bytes.len());
    let mut hint = Hint::new();
    hint.with_extension(match format {
        AudioFormat::Wav => "wav",
        AudioFormat::Mp3 => "mp3",
        AudioFormat::Flac => "flac",
        AudioFormat::Ogg => "ogg",
        AudioFormat::Mp4 => "m4a",
        AudioFormat::Adts => "aac",
        AudioFormat::Aiff => "aiff",
        AudioFormat::Mkv => "webm",
    });
    let priming = if format == AudioFormat::Mp4 { edits::priming(&bytes) } else { 0.0 };
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let reader = symphonia::default::get_probe()
        .probe(&hint, stream, Default::default(), Default::default())
        .map_err(|error| read_error(&error))?;
    let track = reader.default_track(TrackType::Audio).or_else(|| reader.first_track(TrackType::Audio));
    let track = track.ok_or_else(|| StageError::unsupported("file holds no sound that can be decoded"))?.clone();
    let Some(CodecParameters::Audio(params)) = track.codec_params.clone() else {
        return Err(StageError::unsupported("file holds no sound of a known codec"));
    };
    if params.sample_rate == Some(0) || params.channels.as_ref().is_some_and(|channels| channels.count() == 0) {
        return Err(StageError::malformed("audio states no channels or a sample rate of 0"));
    }
    // Opus states its priming in its own header.
    let priming = if params.codec == CODEC_ID_OPUS { 0.0 } else { priming };
    Ok(Opened { reader, track, params, format, bytes: size, priming })
}

impl Opened {
    /// What the header says. Where it says nothing of the length, the first packets are extrapolated.
    pub(super) fn facts(mut self) -> AudioFacts {
        let (rate, channels) = self.layout();
        let length = match self.stated() {
            Some(seconds) if matches!(self.format, AudioFormat::Mp3 | AudioFormat::Adts) => Length::Estimated(seconds),
            Some(seconds) => Length::Stated(seconds),
            None => Length::Estimated(self.extrapolated()),
        };
        AudioFacts { format: self.format, sample_rate: rate, channels, length }
    }

    fn layout(&self) -> (u32, usize) {
        let rate = if self.params.codec == CODEC_ID_OPUS { Some(opus::RATE) } else { self.params.sample_rate };
        (rate.unwrap_or(0), self.params.channels.as_ref().map_or(0, |channels| channels.count()))
    }

    /// Seconds by the header, at most what the file's bytes can hold where samples have a fixed size.
    fn stated(&self) -> Option<f64> {
        let (rate, channels) = self.layout();
        let by_ticks = self.track.duration.zip(self.track.time_base).map(|(ticks, base)| seconds(ticks.get(), base));
        let by_frames = self.track.num_frames.filter(|_| rate > 0).map(|frames| frames as f64 / f64::from(rate));
        let stated = (by_frames.or(by_ticks)? - self.priming).max(0.0);
        let bits = self.params.bits_per_coded_sample.or(self.params.bits_per_sample);
        let plain = matches!(self.format, AudioFormat::Wav | AudioFormat::Aiff);
        Some(match bits.filter(|bits| plain && *bits >= 4 && rate > 0 && channels > 0) {
            Some(bits) => stated.min(self.bytes as f64 * 8.0 / (f64::from(bits) * channels as f64 * f64::from(rate))),
            None => stated,
        })
    }

    fn extrapolated(&mut self) -> f64 {
        let info = self.reader.media_info();
        let whole = info.duration.zip(info.time_base);
        if let Some((ticks, base)) = whole {
            return seconds(ticks.get(), base);
        }
        let Some(base) = self.track.time_base else {
            return self.bytes as f64 / THIN;
        };
        let (mut size, mut length) = (0usize, 0f64);
        for _ in 0..64 {
            match self.reader.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track.id => {
                    size += packet.data.len();
                    length += seconds(packet.dur.get(), base);
                }
                Ok(Some(_)) => {}
                _ => break,
            }
        }
        if size == 0 || length == 0.0 {
            return self.bytes as f64 / THIN;
        }
        length * self.bytes as f64 / size as f64
    }

    /// Decodes all of it to mono at `rate`.
    pub(super) fn decode(mut self, rate: u32, limits: &AudioLimits, cancel: &Cancel) -> Result<Clip> {
        if let Some(seconds) = self.stated() {
            limits.check_seconds(seconds)?;
        }
        let mut decoder = Decoder::new(&self.params)?;
        let mut sink = Sink::new(limits, rate, self.priming);
        let (mut damaged, mut in_a_row, mut cut) = (0usize, 0usize, false);
        loop {
            cancel.check()?;
            let packet = match self.reader.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(Error::ResetRequired) => {
                    // A chained stream begins anew, perhaps with another layout.
                    let Some(track) = self.reader.default_track(TrackType::Audio) else {
                        break;
                    };
                    let Some(CodecParameters::Audio(params)) = &track.codec_params else {
                        break;
                    };
                    (decoder, self.track) = (Decoder::new(params)?, track.clone());
                    continue;
                }
                Err(Error::IoError(error)) => {
                    cut = error.kind() == IoKind::UnexpectedEof;
                    break;
                }
                Err(_) => {
                    damaged += 1;
                    in_a_row += 1;
                    if in_a_row > PATIENCE {
                        break;
                    }
                    continue;
                }
            };
            if packet.track_id != self.track.id {
                continue;
            }
            if decoder.decode(&packet, &mut sink)? {
                in_a_row = 0;
            } else {
                damaged += 1;
                in_a_row += 1;
                if in_a_row > PATIENCE {
                    break;
                }
            }
        }
        let mut warnings = Vec::new();
        if damaged > 0 {
            warnings.push(format!("skipped {damaged} damaged packet{}", if damaged == 1 { "" } else { "s" }));
        }
        let missing = self.stated().map_or(0.0, |stated| stated - sink.seconds());
        if missing > MISSING && !cut {
            warnings.push(format!("{missing:.1} seconds of what the header states could not be decoded"));
        }
        if cut {
            warnings.push("the file ends early: what is there was used".into());
        }
        sink.finish(self.format, warnings)
    }
}

fn seconds(ticks: u64, base: symphonia::core::units::TimeBase) -> f64 {
    ticks as f64 * f64::from(base.numer.get()) / f64::from(base.denom.get())
}

enum Decoder {
    Plain { decoder: Box<dyn AudioDecoder>, interleaved: Vec<f32> },
    Opus(Box<Opus>),
}

impl Decoder {
    fn new(params: &AudioCodecParameters) -> Result<Self> {
        if params.codec == CODEC_ID_OPUS {
            let channels = params.channels.as_ref().map_or(1, |channels| channels.count());
            return Ok(Self::Opus(Box::new(Opus::new(params.extra_data.as_deref(), channels)?)));
        }
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(params, &Default::default())
            .map_err(|error| read_error(&error))?;
        Ok(Self::Plain { decoder, interleaved: Vec::new() })
    }

    /// `false`: the packet is damaged.
    fn decode(&mut self, packet: &Packet, sink: &mut Sink<'_>) -> Result<bool> {
        match self {
            Self::Opus(opus) => {
                let channels = opus.channels();
                let trim = usize::try_from(packet.trim_end.get()).unwrap_or(0);
                match opus.decode(&packet.data, trim) {
                    Some(samples) => sink.take(samples, opus::RATE, channels).map(|()| true),
                    None => Ok(false),
                }
            }
            Self::Plain { decoder, interleaved } => match decoder.decode(packet) {
                Ok(buffer) => {
                    let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
                    buffer.copy_to_vec_interleaved(interleaved);
                    sink.take(interleaved, rate, channels).map(|()| true)
                }
                Err(Error::Unsupported(what)) => {
                    Err(StageError::unsupported(format!("audio uses what is not decoded: {what}")))
                }
                Err(_) => Ok(false),
            },
        }
    }
}

fn read_error(error: &Error) -> StageError {
    match error {
        Error::Unsupported(what) => StageError::unsupported(format!("audio uses what is not decoded: {what}")),
        Error::LimitError(what) => StageError::too_large(format!("audio is over a limit of its reader: {what}")),
        Error::IoError(error) if error.kind() == IoKind::UnexpectedEof => {
            StageError::malformed("audio file is truncated: it ends inside its header")
        }
        error => StageError::malformed(format!("audio cannot be read: {error}")),
    }
}
