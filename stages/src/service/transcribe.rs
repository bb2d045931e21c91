//! Transcripts: a clip's bytes in, segments out.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bytes::Bytes;
use weft_engine::card::AudioPadding;
pub use weft_engine::transcribe::TranscribeOptions;
use weft_engine::transcribe::{self as engine, TranscribeEvent, Transcript, TranscriptSegment};

use super::Service;
use crate::error::{Result, StageError};
use crate::prepared::{MediaFacts, Prepared};

/// What a transcript stream carries. [`TranscriptEvent::Finished`] or [`TranscriptEvent::Failed`] comes exactly once, last.
#[derive(Debug, Clone)]
pub enum TranscriptEvent {
    /// The clip is prepared.
    Prepared(Box<Prepared<()>>),
    /// The language, given or heard.
    Language(String),
    /// A finished segment.
    Segment(TranscriptSegment),
    /// All of it.
    Finished(Transcript),
    /// It failed.
    Failed(StageError),
}

type Queue = Arc<Mutex<VecDeque<TranscriptEvent>>>;
type Work = Pin<Box<dyn Future<Output = Result<Transcript>> + Send>>;

/// A transcript on its way. It works while it is asked for events; dropping it cancels everything.
pub struct TranscriptStream {
    work: Option<Work>,
    queue: Queue,
}

impl std::fmt::Debug for TranscriptStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TranscriptStream").field("running", &self.work.is_some()).finish_non_exhaustive()
    }
}

impl Service {
    /// Writes down the speech of a clip of any length.
    pub fn transcribe(&self, model: &str, bytes: Bytes, mut options: TranscribeOptions) -> Result<TranscriptStream> {
        let served = self.served(model)?.clone();
        let card = Arc::clone(served.model.card());
        let processor = card.audio.clone().filter(|_| card.transcription.is_some()).ok_or_else(|| {
            let can = self.others(|card| card.transcription.is_some());
            StageError::unsupported(format!("model `{model}` does not transcribe{can}"))
        })?;
        if let (Some(language), Some(rules)) = (&options.language, &card.transcription) {
            let known = rules.languages.iter().any(|(code, _)| code == language);
            let english_only = rules.languages.is_empty() && language == "en";
            if !known && !english_only {
                let text = format!("model `{model}` does not know the language `{language}`");
                return Err(StageError::unsupported(text));
            }
        }
        let stages = self.inner.stages.clone();
        let queue = Queue::default();
        let events = Arc::clone(&queue);
        let work = async move {
            let (rate, hop, padding) = (processor.sample_rate, processor.hop, processor.padding);
            let prepared = stages.audio(bytes, Arc::new(processor)).await?;
            let mel = prepared.value;
            if let (MediaFacts::Audio(facts), AudioPadding::Window(_)) = (&prepared.source, padding) {
                let frames = (facts.length.seconds() * rate as f64 / hop as f64).ceil() as usize;
                options.frames = Some(frames.clamp(1, mel.frames.max(1)));
            }
            let facts = Prepared {
                value: (),
                queued: prepared.queued,
                worked: prepared.worked,
                warnings: prepared.warnings,
                source: prepared.source,
            };
            push(&events, TranscriptEvent::Prepared(Box::new(facts)));
            let tokenizer = Arc::clone(&served.text);
            let text = |ids: &[u32]| tokenizer.tokenizer().decode(ids).unwrap_or_default();
            let mut tell = |event| {
                let event = match event {
                    TranscribeEvent::Language(language) => TranscriptEvent::Language(language),
                    TranscribeEvent::Segment(segment) => TranscriptEvent::Segment(segment),
                };
                push(&events, event);
            };
            Ok(engine::transcribe(&served.model, mel, &options, &text, &mut tell).await?)
        };
        Ok(TranscriptStream { work: Some(Box::pin(work)), queue })
    }
}

fn push(queue: &Queue, event: TranscriptEvent) {
    // Nothing panics under this lock. Bounded by the windows of one poll: the work stands still while events wait.
    queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
}

impl TranscriptStream {
    /// The next event; `None` after the terminal one. Works under any async runtime.
    pub async fn next(&mut self) -> Option<TranscriptEvent> {
        std::future::poll_fn(|context| {
            loop {
                if let Some(event) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                    return Poll::Ready(Some(event));
                }
                let Some(work) = &mut self.work else { return Poll::Ready(None) };
                match work.as_mut().poll(context) {
                    Poll::Ready(outcome) => {
                        self.work = None;
                        let event = outcome.map_or_else(TranscriptEvent::Failed, TranscriptEvent::Finished);
                        push(&self.queue, event);
                    }
                    Poll::Pending if self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty() => {
                        return Poll::Pending;
                    }
                    Poll::Pending => {}
                }
            }
        })
        .await
    }
}
