//! Signs that a decoded window is wrong, and what to do then.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::TranscribeOptions;

/// Bytes of a text over bytes of its zlib form: a text that repeats itself has a high ratio. As openai/whisper measures
/// it, on the text (transformers measures token bytes, for which its usual threshold is 1.35).
pub(super) fn compression_ratio(text: &str) -> f32 {
    let bytes = text.trim().as_bytes();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed = encoder.write_all(bytes).and_then(|()| encoder.finish());
    let packed = packed.expect("writing to memory does not fail");
    bytes.len() as f32 / packed.len() as f32
}

/// Measures of one attempt at a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measures {
    pub(super) avg_logprob: f32,
    pub(super) no_speech_prob: f32,
    pub(super) compression_ratio: f32,
}

/// What an attempt's measures call for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Take it.
    Good,
    /// Try a higher temperature.
    Again,
    /// Nobody speaks.
    Silent,
}

impl Measures {
    pub(super) fn verdict(&self, options: &TranscribeOptions) -> Verdict {
        let unsure = options.logprob_threshold.is_some_and(|least| self.avg_logprob < least);
        let repeats = options.compression_ratio_threshold.is_some_and(|most| self.compression_ratio > most);
        let quiet = options.no_speech_threshold.is_some_and(|most| self.no_speech_prob > most);
        match (unsure, repeats, quiet) {
            (true, _, true) => Verdict::Silent,
            (true, _, false) | (false, true, _) => Verdict::Again,
            (false, false, _) => Verdict::Good,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(avg_logprob: f32, no_speech_prob: f32, compression_ratio: f32) -> Verdict {
        Measures { avg_logprob, no_speech_prob, compression_ratio }.verdict(&TranscribeOptions::default())
    }

    #[test]
    fn repetition_compresses_and_plain_speech_does_not() {
        assert!(compression_ratio(&"no, no, no, ".repeat(30)) > 2.4);
        let speech = " The ferry to the island leaves every morning, and it comes back before sunset.";
        assert!((0.8..1.5).contains(&compression_ratio(speech)), "{}", compression_ratio(speech));
        assert_eq!(compression_ratio(""), 0.0);
    }

    #[test]
    fn verdicts_follow_the_thresholds() {
        assert_eq!(verdict(-0.3, 0.1, 1.2), Verdict::Good);
        assert_eq!(verdict(-0.3, 0.9, 1.2), Verdict::Good, "sure words outweigh the no-speech token");
        assert_eq!(verdict(-1.1, 0.1, 1.2), Verdict::Again);
        assert_eq!(verdict(-0.3, 0.1, 2.5), Verdict::Again);
        assert_eq!(verdict(-0.3, 0.9, 2.5), Verdict::Again);
        assert_eq!(verdict(-1.1, 0.7, 2.5), Verdict::Silent);
        let none = TranscribeOptions {
            logprob_threshold: None,
            compression_ratio_threshold: None,
            no_speech_threshold: None,
            ..TranscribeOptions::default()
        };
        let worst = Measures { avg_logprob: -9.0, no_speech_prob: 1.0, compression_ratio: 99.0 };
        assert_eq!(worst.verdict(&none), Verdict::Good);
    }
}
