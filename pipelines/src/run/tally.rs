//! What a request collects on its way: spans, costs, outputs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::event::{FinishReason, Outcome, Span, TokenLogprob, TranscriptSegment, Usage};

/// See the module. Stages run side by side, so the parts are put in order at the end.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    outcome: Outcome,
    outputs: Vec<(usize, String, String)>,
}

impl Tally {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn span(&self, began: Instant, name: String, from: Instant, to: Instant, note: String) {
        let ms = |at: Instant| at.saturating_duration_since(began).as_secs_f64() * 1e3;
        self.parts().outcome.spans.push(Span { name, start_ms: ms(from), end_ms: ms(to), note });
    }

    pub(super) fn warn(&self, owner: &str, warnings: &[String]) {
        self.parts().outcome.warnings.extend(warnings.iter().map(|warning| format!("{owner}: {warning}")));
    }

    pub(super) fn usage(&self, usage: Usage) {
        let total = &mut self.parts().outcome.usage;
        total.prompt_tokens += usage.prompt_tokens;
        total.media_tokens += usage.media_tokens;
        total.completion_tokens += usage.completion_tokens;
    }

    pub(super) fn output(&self, at: usize, id: &str, text: &str) {
        self.parts().outputs.push((at, id.to_owned(), text.to_owned()));
    }

    pub(super) fn finish(&self, reason: FinishReason, logprobs: Vec<TokenLogprob>) {
        let mut parts = self.parts();
        parts.outcome.finish_reason = Some(reason);
        parts.outcome.logprobs = logprobs;
    }

    pub(super) fn transcript(&self, language: Option<String>, duration: f64, segments: Vec<TranscriptSegment>) {
        let mut parts = self.parts();
        parts.outcome.language = language;
        parts.outcome.duration = Some(duration);
        parts.outcome.segments = segments;
    }

    /// The outcome, with the output stage's text.
    pub(super) fn outcome(&self, output: usize) -> Outcome {
        let mut parts = std::mem::take(&mut *self.parts());
        parts.outputs.sort_by_key(|(at, ..)| *at);
        let mut outcome = parts.outcome;
        outcome.spans.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
        for (at, id, text) in parts.outputs {
            if at == output {
                outcome.text.clone_from(&text);
            }
            outcome.outputs.push((id, text));
        }
        outcome
    }
}
