//! What is wrong with a request, found before anything is queued: the caller gets the reason at once.

use std::sync::Arc;

use crate::card::{AudioTokens, ModelCard};
use crate::device::shared::MediaShape;
use crate::error::{EngineError, ErrorKind, Result};
use crate::families::KvLayout;
use crate::media::Medium;
use crate::request::{Generate, Sampling, Segment};
use crate::rules::RuleState;

/// What handles know about a loaded model.
#[derive(Debug, Clone)]
pub(crate) struct ModelFacts {
    pub(crate) card: Arc<ModelCard>,
    pub(crate) kv: KvLayout,
    /// Pages in its pool.
    pub(crate) pages: usize,
    /// Layers of its vision and of its audio tower; 0 where it has none.
    pub(crate) encoder_layers: [usize; 2],
}

/// Pages that a request needs: for the sequence itself, and for the encoded frames it attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PagesNeeded {
    pub(crate) own: usize,
    pub(crate) cross: usize,
}

impl ModelFacts {
    /// What this medium is to this model.
    pub(crate) fn shape(&self, medium: &Medium) -> Result<MediaShape> {
        let name = &self.card.name;
        match medium {
            Medium::Image(patches) => {
                let Some(image) = &self.card.image else {
                    return Err(EngineError::new(ErrorKind::Unsupported, format!("{name} takes no images")));
                };
                let (expected, given) = (patches.grid.patches() * image.patch_values(), patches.values.len());
                if given != expected || given == 0 {
                    let detail = format!("an image of grid {:?} has {given} values, not {expected}", patches.grid);
                    return Err(EngineError::new(ErrorKind::Malformed, detail));
                }
                Ok(MediaShape::Image(patches.grid, patches.grid.patches() / (image.merge * image.merge)))
            }
            Medium::Audio(mel) => {
                let Some(audio) = &self.card.audio else {
                    return Err(EngineError::new(ErrorKind::Unsupported, format!("{name} takes no audio")));
                };
                if mel.bins != audio.bins || mel.frames == 0 || mel.values.len() != mel.frames * mel.bins {
                    let (frames, bins) = (mel.frames, mel.bins);
                    let detail = format!("a clip of {frames} frames and {bins} bands; {name} takes {}", audio.bins);
                    return Err(EngineError::new(ErrorKind::Malformed, detail));
                }
                match audio.tokens {
                    AudioTokens::QwenOmni if audio.tokens(mel.frames) == 0 => {
                        Err(EngineError::new(ErrorKind::Malformed, "the clip is too short for a single token"))
                    }
                    AudioTokens::QwenOmni => Ok(MediaShape::Audio(audio.tokens(mel.frames))),
                    // Whisper's second convolution halves the frames.
                    AudioTokens::CrossAttention => Ok(MediaShape::Cross(mel.frames.div_ceil(2))),
                }
            }
        }
    }

    /// Refuses what can never be answered. Gives the rules' state before the first token.
    pub(crate) fn check(&self, index: usize, request: &Generate) -> Result<Option<RuleState>> {
        let prompt = self.check_prompt(index, &request.prompt)?;
        if request.max_tokens == 0 {
            return Err(EngineError::new(ErrorKind::Malformed, "max_tokens must be at least 1"));
        }
        if prompt >= self.card.context {
            let detail = format!("the prompt has {prompt} tokens; {} takes {}", self.card.name, self.card.context - 1);
            return Err(EngineError::new(ErrorKind::TooLarge, detail));
        }
        self.check_sampling(&request.sampling)?;
        self.check_ids("watch", &request.watch)?;
        let needed = self.pages_needed(request);
        if needed.own + needed.cross > self.pages {
            let detail = format!(
                "the request needs {} pages of memory and there are {}: shorten prompt or max_tokens",
                needed.own + needed.cross,
                self.pages
            );
            return Err(EngineError::new(ErrorKind::TooLarge, detail));
        }
        RuleState::new(&request.rules, self.card.vocabulary)
    }

    /// Answer tokens that a request may have: as asked, up to the end of the context.
    pub(crate) fn answer_tokens(&self, request: &Generate) -> usize {
        request.max_tokens.min(self.card.context.saturating_sub(prompt_tokens(&request.prompt)))
    }

    /// Pages that a checked request needs from start to end.
    pub(crate) fn pages_needed(&self, request: &Generate) -> PagesNeeded {
        // The last answer token is never fed back.
        let tokens = prompt_tokens(&request.prompt) + self.answer_tokens(request) - 1;
        let cross = request.prompt.iter().map(|segment| match segment {
            Segment::Media(ticket) => match ticket.lease.shape {
                MediaShape::Cross(frames) => frames,
                MediaShape::Image(..) | MediaShape::Audio(_) => 0,
            },
            Segment::Text(_) => 0,
        });
        let page = self.kv.pages.page_tokens;
        PagesNeeded { own: tokens.div_ceil(page), cross: cross.sum::<usize>().div_ceil(page) }
    }

    /// Tokens of a well-formed prompt.
    fn check_prompt(&self, index: usize, prompt: &[Segment]) -> Result<usize> {
        let mut cross = 0;
        for segment in prompt {
            match segment {
                Segment::Text(ids) => self.check_ids("prompt", ids)?,
                Segment::Media(ticket) if ticket.lease.key.model != index => {
                    let detail = format!("a medium in the prompt was not encoded by {}", self.card.name);
                    return Err(EngineError::new(ErrorKind::Malformed, detail));
                }
                Segment::Media(ticket) => {
                    cross += usize::from(matches!(ticket.lease.shape, MediaShape::Cross(_)));
                }
            }
        }
        if self.kv.cross != (cross == 1) || cross > 1 {
            let detail = format!("{} takes exactly one clip a prompt", self.card.name);
            return Err(EngineError::new(ErrorKind::Malformed, detail));
        }
        match prompt_tokens(prompt) {
            0 => Err(EngineError::new(ErrorKind::Malformed, "the prompt is empty")),
            tokens => Ok(tokens),
        }
    }

    fn check_ids(&self, what: &str, ids: &[u32]) -> Result<()> {
        match ids.iter().find(|&&id| id as usize >= self.card.vocabulary) {
            Some(id) => {
                let detail = format!("{what}: token {id} is outside the vocabulary of {}", self.card.vocabulary);
                Err(EngineError::new(ErrorKind::Malformed, detail))
            }
            None => Ok(()),
        }
    }

    fn check_sampling(&self, sampling: &Sampling) -> Result<()> {
        let within = |name: &str, value: f32, from: f32, to: f32| match (from..=to).contains(&value) {
            true => Ok(()),
            false => {
                Err(EngineError::new(ErrorKind::Malformed, format!("{name} is {value}; it lies in {from} to {to}")))
            }
        };
        within("temperature", sampling.temperature, 0.0, 100.0)?;
        within("top_p", sampling.top_p, f32::MIN_POSITIVE, 1.0)?;
        within("min_p", sampling.min_p, 0.0, 1.0)?;
        within("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", sampling.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", sampling.frequency_penalty, -100.0, 100.0)?;
        for &(id, bias) in &sampling.logit_bias {
            self.check_ids("logit_bias", &[id])?;
            if bias.is_nan() {
                return Err(EngineError::new(ErrorKind::Malformed, "a logit bias is not a number"));
            }
        }
        Ok(())
    }
}

/// Tokens of a prompt, media included.
pub(crate) fn prompt_tokens(prompt: &[Segment]) -> usize {
    let tokens = prompt.iter().map(|segment| match segment {
        Segment::Text(ids) => ids.len(),
        Segment::Media(ticket) => ticket.lease.shape.tokens(),
    });
    tokens.sum()
}
