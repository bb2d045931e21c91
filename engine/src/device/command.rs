//! What handles ask of the device thread. Answers do not come back here: a ticket's lease and a stream's channel do that.

use std::sync::Weak;
use std::time::Instant;

use crate::device::shared::{MediaLease, WaitingPermit};
use crate::media::Medium;
use crate::request::{Class, Generate, TokenEvent};
use crate::rules::RuleState;

/// A command.
#[derive(Debug)]
pub(crate) enum Command {
    /// Encode a medium.
    Encode(EncodeOrder),
    /// Answer a request, checked by the handle.
    Generate(Box<GenerateOrder>),
}

/// A medium for its encoder.
#[derive(Debug)]
pub(crate) struct EncodeOrder {
    /// Whether anyone still wants it.
    pub(crate) lease: Weak<MediaLease>,
    pub(crate) medium: Medium,
    pub(crate) class: Class,
    pub(crate) arrived: Instant,
}

/// A request with its way back.
#[derive(Debug)]
pub(crate) struct GenerateOrder {
    pub(crate) model: usize,
    pub(crate) request: Generate,
    pub(crate) rules: Option<RuleState>,
    pub(crate) events: flume::Sender<TokenEvent>,
    pub(crate) permit: WaitingPermit,
    pub(crate) arrived: Instant,
}

/// Events that may wait in a stream before its sequence pauses.
pub(crate) const STREAM_EVENTS: usize = 64;
/// Most tokens that are appended after one step because the rules leave no choice.
pub(crate) const MOST_FORCED: usize = 32;
/// Most guesses of a sequence in one step.
pub(crate) const MOST_DRAFTS: usize = 8;
/// Room of a stream's channel: beyond [`STREAM_EVENTS`] one step's events and the terminal one always fit.
pub(crate) const STREAM_ROOM: usize = STREAM_EVENTS + MOST_FORCED + MOST_DRAFTS + 4;
