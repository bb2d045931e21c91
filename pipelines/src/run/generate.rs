//! Generate stages: a conversation with leases in, text out.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use futures_util::future::try_join_all;
use weft_stages::service::{AnswerOptions, Lease, Logprob, TextEvent};
use weft_stages::text::{Content, Speaker, Turn};
use weft_stages::{DeviceTimes, GrammarSpec, Sampling};

use super::graph::{Inputs, Output};
use super::media::{Named, Sense};
use super::{Job, stage_error};
use crate::definition::GenerateStage;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, FinishReason, TokenLogprob, Usage};
use crate::request::{Format, Options, Part, Role};

impl Job {
    pub(super) async fn generate(&self, at: usize, stage: &GenerateStage, inputs: &Inputs) -> Result<(Output, String)> {
        let turns = if stage.conversation && !self.input.messages.is_empty() {
            self.conversation(at).await?
        } else {
            self.single(at, stage, inputs)?
        };
        let options = self.options_of(at, &stage.options);
        let id = &self.bound.definition.stages[at].id;
        let asked = Instant::now();
        let mut stream =
            self.service.answer(self.model(at), turns, self.answer_options(at, options)).await.map_err(stage_error)?;
        let queued = Instant::now();
        self.tally.span(
            self.began,
            format!("{id}/layout"),
            asked,
            queued,
            format!("{} tokens", stream.usage().prompt_tokens),
        );
        let output = at == self.bound.definition.output;
        let (mut text, mut all_logprobs, mut told) = (String::new(), Vec::new(), 0);
        while let Some(event) = stream.next().await {
            match event {
                TextEvent::Started => self.admitted.computed(at),
                TextEvent::Delta { text: delta, logprobs } => {
                    let logprobs: Vec<TokenLogprob> = logprobs.into_iter().map(TokenLogprob::from).collect();
                    text += &delta;
                    let tokens = stream.usage().completion_tokens;
                    self.admitted.decoded(at, tokens - told);
                    told = tokens;
                    if output {
                        all_logprobs.extend(logprobs.iter().cloned());
                        self.tell(Event::Text { delta, logprobs }).await?;
                    }
                }
                TextEvent::Finished { reason, usage, times } => {
                    let usage = Usage {
                        prompt_tokens: usage.prompt_tokens,
                        media_tokens: usage.media_tokens,
                        completion_tokens: usage.completion_tokens,
                    };
                    self.device_spans(id, queued, times);
                    self.admitted.desk.answered(self.model(at), usage.completion_tokens);
                    self.tally.usage(usage);
                    if output {
                        self.tally.finish(reason.into(), all_logprobs);
                    }
                    let note = format!("{} tokens in, {} out", usage.prompt_tokens, usage.completion_tokens);
                    return Ok((Output::Text(text), note));
                }
                TextEvent::Failed(error) => return Err(stage_error(error)),
            }
        }
        Err(Error::new(ErrorKind::Internal, "an answer ended without saying how"))
    }

    /// Media in the order of `media`, then the prompt, as one message.
    fn single(&self, at: usize, stage: &GenerateStage, inputs: &Inputs) -> Result<Vec<Turn<Lease>>> {
        let texts = self.texts(inputs);
        let id = &self.bound.definition.stages[at].id;
        let fill = |template: &crate::definition::Template| {
            template.render(self.input.prompt.as_deref(), &texts).map_err(|error| error.about(id))
        };
        let mut turns = Vec::new();
        if let Some(system) = &stage.system {
            turns.push(Turn::text(Speaker::System, fill(system)?));
        }
        let mut content = Vec::new();
        for used in &stage.media {
            let sight = matches!(self.bound.definition.stages[*used].kind, crate::definition::StageKind::Image);
            let Some(Output::Media(leases)) = inputs.get(used).map(Arc::as_ref) else { continue };
            for lease in leases.get(self.model(at)).into_iter().flatten().cloned() {
                content.push(if sight { Content::Image(lease) } else { Content::Audio(lease) });
            }
        }
        let prompt = fill(&stage.prompt)?;
        if prompt.trim().is_empty() && content.is_empty() {
            return Err(
                Error::new(ErrorKind::Malformed, "there is nothing to answer: no prompt and no media").about("prompt")
            );
        }
        if !prompt.is_empty() {
            content.push(Content::Text(prompt));
        }
        turns.push(Turn { speaker: Speaker::User, content });
        Ok(turns)
    }

    /// The request's messages, their media prepared side by side.
    async fn conversation(&self, at: usize) -> Result<Vec<Turn<Lease>>> {
        let model = self.model(at);
        let turns = self.input.messages.iter().enumerate().map(|(number, message)| async move {
            let content = message.parts.iter().enumerate().map(|(place, part)| async move {
                let param = format!("messages[{number}].content[{place}]");
                let named = Named { span: param.clone(), param };
                Ok::<_, Error>(match part {
                    Part::Text(text) => Content::Text(text.clone()),
                    Part::Image(bytes) => Content::Image(self.medium(Sense::Sight, model, bytes.clone(), named).await?),
                    Part::Audio(bytes) => {
                        Content::Audio(self.medium(Sense::Hearing, model, bytes.clone(), named).await?)
                    }
                })
            });
            let content = try_join_all(content).await?;
            Ok::<_, Error>(Turn { speaker: message.role.into(), content })
        });
        try_join_all(turns).await
    }

    fn answer_options(&self, at: usize, options: Options) -> AnswerOptions {
        let defaults = self.service.card(self.model(at)).map(|card| card.generation.clone()).unwrap_or_default();
        let neutral = Sampling::default();
        // Without a seed, answers differ between requests but not within one.
        let entropy =
            || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let sampling = Sampling {
            temperature: options.temperature.or(defaults.temperature).unwrap_or(neutral.temperature),
            top_k: options.top_k.or(defaults.top_k).unwrap_or(neutral.top_k),
            top_p: options.top_p.or(defaults.top_p).unwrap_or(neutral.top_p),
            min_p: options.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: options
                .repetition_penalty
                .or(defaults.repetition_penalty)
                .unwrap_or(neutral.repetition_penalty),
            presence_penalty: options.presence_penalty.unwrap_or(neutral.presence_penalty),
            frequency_penalty: options.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            logit_bias: options.logit_bias,
            seed: options.seed.unwrap_or_else(|| self.id.0 ^ entropy()),
            logprobs: options.logprobs,
        };
        AnswerOptions {
            id: self.id,
            sampling,
            max_tokens: options.max_tokens,
            stop: options.stop,
            format: options.format.map(GrammarSpec::from),
            class: self.class.into(),
            deadline: self.deadline,
            now: SystemTime::now(),
        }
    }

    fn device_spans(&self, id: &str, queued: Instant, times: DeviceTimes) {
        let steps = [
            ("queue", std::time::Duration::ZERO, times.queued),
            ("prefill", times.queued, times.prefilled),
            ("first_token", times.prefilled, times.first_token),
            ("decode", times.first_token, times.finished),
        ];
        for (step, from, to) in steps {
            self.tally.span(self.began, format!("{id}/{step}"), queued + from, queued + to.max(from), String::new());
        }
        let first = queued + times.first_token;
        metrics::histogram!("weft_time_to_first_token_seconds")
            .record(first.saturating_duration_since(self.began).as_secs_f64());
    }
}

impl From<Logprob> for TokenLogprob {
    fn from(logprob: Logprob) -> Self {
        Self { token: logprob.token, logprob: logprob.logprob, top: logprob.top }
    }
}

impl From<weft_stages::FinishReason> for FinishReason {
    fn from(reason: weft_stages::FinishReason) -> Self {
        match reason {
            weft_stages::FinishReason::Stop => Self::Stop,
            weft_stages::FinishReason::Length => Self::Length,
        }
    }
}

impl From<Format> for GrammarSpec {
    fn from(format: Format) -> Self {
        match format {
            Format::Json => Self::JsonObject,
            Format::JsonSchema(schema) => Self::JsonSchema(schema),
            Format::Regex(regex) => Self::Regex(regex),
            Format::Choice(texts) => Self::Choice(texts),
            Format::Lark(lark) => Self::Lark(lark),
        }
    }
}

impl From<Role> for Speaker {
    fn from(role: Role) -> Self {
        match role {
            Role::System => Self::System,
            Role::User => Self::User,
            Role::Assistant => Self::Assistant,
        }
    }
}

impl From<crate::request::Class> for weft_stages::Class {
    fn from(class: crate::request::Class) -> Self {
        match class {
            crate::request::Class::Interactive => Self::Interactive,
            crate::request::Class::Batch => Self::Batch,
        }
    }
}
