//! Which tokens may come next (interim: closed choices only).

use crate::error::{EngineError, ErrorKind, Result};
use crate::request::TokenRules;

/// The rules of one request, which follow its answer.
#[derive(Debug, Clone)]
pub struct RuleState {
    mask: Vec<u32>,
}

impl RuleState {
    /// State before the first token; `None` when there is nothing to rule.
    pub fn new(rules: &TokenRules, vocabulary: usize) -> Result<Option<Self>> {
        match rules {
            TokenRules::Free => Ok(None),
            TokenRules::OneOf(tokens) => {
                let mut mask = vec![0_u32; vocabulary.div_ceil(32)];
                for &token in tokens {
                    let word = mask.get_mut(token as usize / 32).filter(|_| (token as usize) < vocabulary);
                    let outside = || EngineError::new(ErrorKind::Malformed, format!("token {token} is outside"));
                    *word.ok_or_else(outside)? |= 1 << (token % 32);
                }
                Ok(Some(Self { mask }))
            }
            TokenRules::Transcription { .. } => {
                Err(EngineError::new(ErrorKind::Unsupported, "transcription rules are not built yet"))
            }
        }
    }

    /// Whether the next mask depends on the step's logits.
    pub fn needs_logits(&self) -> bool {
        false
    }

    /// Allowed tokens of the next step.
    pub fn mask(&self, _logits: Option<&[f32]>) -> Vec<u32> {
        self.mask.clone()
    }

    /// Takes note of the token that was chosen.
    pub fn push(&mut self, _token: u32) {}
}
