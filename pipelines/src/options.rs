//! Options: their ranges, and which of several wins.

use crate::error::{Error, ErrorKind, Result};
use crate::request::Options;

/// Most stop texts, and most bytes of one.
const STOPS: usize = 16;
const STOP_BYTES: usize = 512;

impl Options {
    /// Checks every option's range.
    ///
    /// # Errors
    /// `Malformed`, about the option, naming the range.
    pub fn check(&self) -> Result<()> {
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_p", self.top_p, f32::MIN_POSITIVE, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 10.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if self.max_tokens == Some(0) {
            return Err(wrong("max_tokens", "max_tokens is 0: it must be at least 1"));
        }
        if let Some(many) = self.logprobs.filter(|&many| many > 20) {
            return Err(wrong("logprobs", format!("logprobs is {many}: it must be from 0 to 20")));
        }
        if self.stop.len() > STOPS {
            return Err(wrong("stop", format!("stop has {} texts: at most {STOPS} are taken", self.stop.len())));
        }
        if self.stop.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES) {
            return Err(wrong("stop", format!("each text in stop must have from 1 to {STOP_BYTES} bytes")));
        }
        if self.logit_bias.len() > 1024 {
            return Err(wrong("logit_bias", "logit_bias has more than 1024 entries"));
        }
        if let Some((id, bias)) = self.logit_bias.iter().find(|(_, bias)| !(-100.0..=100.0).contains(bias)) {
            return Err(wrong(
                "logit_bias",
                format!("logit_bias of token {id} is {bias}: it must be from -100 to 100"),
            ));
        }
        Ok(())
    }

    /// These options, with `base` where they are silent.
    #[must_use]
    pub fn over(self, base: &Self) -> Self {
        Self {
            max_tokens: self.max_tokens.or(base.max_tokens),
            temperature: self.temperature.or(base.temperature),
            top_k: self.top_k.or(base.top_k),
            top_p: self.top_p.or(base.top_p),
            min_p: self.min_p.or(base.min_p),
            repetition_penalty: self.repetition_penalty.or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(base.frequency_penalty),
            seed: self.seed.or(base.seed),
            stop: if self.stop.is_empty() { base.stop.clone() } else { self.stop },
            logprobs: self.logprobs.or(base.logprobs),
            logit_bias: if self.logit_bias.is_empty() { base.logit_bias.clone() } else { self.logit_bias },
            format: self.format.or_else(|| base.format.clone()),
            language: self.language.or_else(|| base.language.clone()),
            translate: self.translate || base.translate,
            timestamps: self.timestamps.or(base.timestamps),
        }
    }

    /// Only what concerns a transcript.
    pub(crate) fn of_transcripts_only(&self) -> Self {
        Self {
            language: self.language.clone(),
            translate: self.translate,
            timestamps: self.timestamps,
            ..Self::default()
        }
    }
}

fn within(name: &str, value: Option<f32>, low: f32, high: f32) -> Result<()> {
    match value {
        Some(value) if !(low..=high).contains(&value) => {
            let low = if low == f32::MIN_POSITIVE { "above 0".to_owned() } else { format!("from {low}") };
            Err(wrong(name, format!("{name} is {value}: it must be {low} to {high}")))
        }
        _ => Ok(()),
    }
}

fn wrong(name: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message).about(format!("options.{name}"))
}
