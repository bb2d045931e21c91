//! Speech of any length to text: the sequential long-form algorithm of Whisper over the public handles of the engine.
//!
//! ```text
//! Windows (where) -> cut (what) -> encode -> decode, again at a higher temperature while it looks wrong -> settle
//! ```
//!
//! Owns the windows, the language question, the fallback and the segments. Knows no device (it holds a [`Model`]), no
//! tokenizer (the caller lends a decoder) and no async runtime. Every window moves on, so the work always ends, and every
//! frame of the clip lies in some window.
//!
//! Sources: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5;
//! openai/whisper `transcribe.py`; transformers' `WhisperGenerationMixin.generate`, whose greedy text this equals.

mod cut;
mod decode;
mod quality;
mod task;
mod windows;

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::handle::{MediaTicket, Model};
use crate::media::{LogMel, Medium};
use crate::request::{Class, RequestId};

use self::cut::Clip;
use self::decode::{Answer, Decoder};
use self::task::Speech;
pub use self::windows::{Mode, Settled, Span, Window, Windows};

/// What to write down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Task {
    /// The words, in the language they are spoken in.
    #[default]
    Transcribe,
    /// An English translation (multilingual models).
    Translate,
}

/// How to transcribe. The defaults are the reference's.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscribeOptions {
    /// Identity of the request.
    pub id: RequestId,
    /// Language code, such as `en`; `None` lets the model listen (English-only models know).
    pub language: Option<String>,
    /// What to write down.
    pub task: Task,
    /// Tried in order while the result looks wrong.
    pub temperatures: Vec<f32>,
    /// A text that compresses better than this repeats itself: try again. `None` never does.
    pub compression_ratio_threshold: Option<f32>,
    /// An average log-probability below this is a bad sign: try again. `None` never does.
    pub logprob_threshold: Option<f32>,
    /// A bad log-probability and a probability of no speech above this: the window is silent. `None` never is.
    pub no_speech_threshold: Option<f32>,
    /// Whether timestamps cut the clip: the seek follows them, segments have times. [`Mode::Plain`] steps window by
    /// window.
    pub mode: Mode,
    /// Tokens of text that came before, such as names to expect; the last 223 count.
    pub prompt: Vec<u32>,
    /// Whether each window sees the text of those before it.
    pub condition_on_previous: bool,
    /// Frames that hold the clip, when the log-mel has been padded behind them; `None` takes all frames.
    pub frames: Option<usize>,
    /// Seed of the attempts above temperature 0.
    pub seed: u64,
    /// Class.
    pub class: Class,
    /// When the transcript is no longer wanted.
    pub deadline: Option<Instant>,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            id: RequestId(0),
            language: None,
            task: Task::default(),
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            mode: Mode::default(),
            prompt: Vec::new(),
            condition_on_previous: false,
            frames: None,
            seed: 0,
            class: Class::default(),
            deadline: None,
        }
    }
}

/// A stretch of the transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptSegment {
    /// Number, from 0.
    pub id: usize,
    /// Seconds.
    pub start: f64,
    /// Seconds.
    pub end: f64,
    /// Tokens, timestamps included.
    pub tokens: Vec<u32>,
    /// Text, with the leading space that the model gives.
    pub text: String,
    /// Average log-probability of its window's tokens, the end included.
    pub avg_logprob: f32,
    /// Probability that its window holds no speech.
    pub no_speech_prob: f32,
    /// How well its window's text compresses.
    pub compression_ratio: f32,
    /// Temperature at which its window was decoded.
    pub temperature: f32,
}

/// A finished transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// Language code.
    pub language: String,
    /// Seconds of the clip.
    pub duration: f64,
    /// Segments in order; silence has none.
    pub segments: Vec<TranscriptSegment>,
    /// The whole text.
    pub text: String,
}

/// What a transcription tells on its way.
#[derive(Debug, Clone, PartialEq)]
pub enum TranscribeEvent {
    /// The language, given or heard; once, first.
    Language(String),
    /// A finished segment.
    Segment(TranscriptSegment),
}

/// Turns token ids into text, special tokens left out by the caller of it.
pub type TextOf<'a> = &'a (dyn Fn(&[u32]) -> String + Sync);

/// Transcribes a clip of any length.
///
/// `mel` holds the clip's log-mel frames: normalised over the whole clip at once, as the reference does. A clip shorter
/// than a window may come padded (samples padded with silence to 30 s, exact) or not (frames of silence are added here);
/// give [`TranscribeOptions::frames`] when it is padded, so that the padding is not searched for speech. Behind the end of
/// a longer clip the last window is filled with zeros, as the reference does.
///
/// # Errors
/// `Malformed` for a clip without frames or temperatures that are none; `Unsupported` for a model that does not
/// transcribe, a language it does not know, and translation by an English-only model; else what encoding or generating
/// reports.
pub async fn transcribe(
    model: &Model,
    mel: LogMel,
    options: &TranscribeOptions,
    text: TextOf<'_>,
    on_event: &mut (dyn FnMut(TranscribeEvent) + Send),
) -> Result<Transcript> {
    let mut speech = Speech::new(model.card(), options)?;
    let clip = Clip::new(model.card(), mel, options.frames)?;
    let mut windows = clip.windows(speech.rules().first_timestamp, options.mode);
    let mut writer = Writer { text, on_event, frame_seconds: clip.frame_seconds(), segments: Vec::new() };
    let mut history = History::new(&options.prompt);
    let mut ahead = None;
    while let Some(window) = windows.next() {
        let ticket = encoded(model, &clip, &mut ahead, window, options.class)?;
        if let Some(next) = windows.certain_next() {
            // Only to overlap; a full inbox is no reason to fail here.
            ahead = encode(model, &clip, next, options.class).ok().map(|ticket| (next, ticket));
        }
        let decoder = Decoder { model, options, text, ticket: &ticket };
        if speech.must_listen() {
            let token = decoder.language(speech.rules()).await?;
            speech.hear(token)?;
        }
        if writer.segments.is_empty() && window.start == 0 {
            (writer.on_event)(TranscribeEvent::Language(speech.language().to_owned()));
        }
        let answer = decoder.decode(&speech, history.context(options), window).await?;
        if answer.silent {
            windows.skip();
            continue;
        }
        let settled = windows.settle(&answer.tokens);
        for span in &settled.spans {
            history.note(&answer.tokens[span.tokens.clone()], speech.rules().first_timestamp);
            writer.write(span, &answer, speech.rules().end);
        }
        history.trusted = answer.temperature < 0.5;
    }
    let Writer { segments, .. } = writer;
    let all: Vec<u32> = segments.iter().flat_map(|segment| spoken(&segment.tokens, speech.rules().end)).collect();
    let language = speech.language().to_owned();
    Ok(Transcript { language, duration: clip.seconds(), text: text(&all), segments })
}

fn encode(model: &Model, clip: &Clip, window: Window, class: Class) -> Result<MediaTicket> {
    model.encode_for(Medium::Audio(clip.cut(window)), class)
}

/// The ticket of a window: the one queued ahead, or a new one.
fn encoded(
    model: &Model,
    clip: &Clip,
    ahead: &mut Option<(Window, MediaTicket)>,
    window: Window,
    class: Class,
) -> Result<MediaTicket> {
    match ahead.take() {
        Some((known, ticket)) if known == window => Ok(ticket),
        _ => encode(model, clip, window, class),
    }
}

/// Tokens of text: everything special (end token, timestamps) lies above the text tokens.
fn spoken(tokens: &[u32], end: u32) -> impl Iterator<Item = u32> {
    tokens.iter().copied().filter(move |&token| token < end)
}

/// Makes segments of spans and hands them out.
struct Writer<'a> {
    text: TextOf<'a>,
    on_event: &'a mut (dyn FnMut(TranscribeEvent) + Send),
    frame_seconds: f64,
    segments: Vec<TranscriptSegment>,
}

impl Writer<'_> {
    /// Writes a span down, unless it holds no words.
    fn write(&mut self, span: &Span, answer: &Answer, end: u32) {
        let tokens = answer.tokens[span.tokens.clone()].to_vec();
        let text = (self.text)(&spoken(&tokens, end).collect::<Vec<_>>());
        if text.trim().is_empty() {
            return;
        }
        let segment = TranscriptSegment {
            id: self.segments.len(),
            start: span.start as f64 * self.frame_seconds,
            end: span.end as f64 * self.frame_seconds,
            tokens,
            text,
            avg_logprob: answer.avg_logprob,
            no_speech_prob: answer.no_speech_prob,
            compression_ratio: answer.compression_ratio,
            temperature: answer.temperature,
        };
        (self.on_event)(TranscribeEvent::Segment(segment.clone()));
        self.segments.push(segment);
    }
}

/// What a window may be told about the text before it.
struct History {
    prompt: Arc<[u32]>,
    /// The prompt and every segment so far.
    all: Vec<u32>,
    /// Whether the last window was decoded at a temperature low enough to build on.
    trusted: bool,
}

impl History {
    fn new(prompt: &[u32]) -> Self {
        Self { prompt: Arc::from(prompt), all: prompt.to_vec(), trusted: true }
    }

    /// Earlier text for the next window.
    fn context(&self, options: &TranscribeOptions) -> &[u32] {
        if options.condition_on_previous && self.trusted { &self.all } else { &self.prompt }
    }

    /// Adds a segment; of a double timestamp at its end only the first is kept.
    fn note(&mut self, tokens: &[u32], first_timestamp: u32) {
        let kept = match tokens {
            [kept @ .., last, _] if *last >= first_timestamp && !kept.is_empty() => &tokens[..tokens.len() - 1],
            _ => tokens,
        };
        self.all.extend_from_slice(kept);
    }
}
