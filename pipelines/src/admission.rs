//! The desk at the door: who comes in, who waits, who is sent away and for how long.
//!
//! Every request in the house is in this ledger with what it holds (bytes, pixels, seconds, tokens) and what it still asks
//! of the device (predicted). Both return on drop. A request is refused when something would be held beyond its cap, or
//! when its first token would be longer in coming than callers are asked to wait; the same numbers say when to come back.
//!
//! ```text
//! enter(bytes)  before the body is read: places, bytes, the queue as it stands
//! admit(load)   once the price is known, before anything is decoded
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::config::Admission;
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::request::Class;

/// So many requests come in whatever the predicted wait: predictions may be wrong, and a few never make a long queue.
const GRACE: usize = 4;
/// Answer tokens that a request is expected to have before answers were seen.
const FIRST_GUESS: f64 = 128.0;
/// Weight of a new answer in the mean length of answers.
const WEIGHT: f64 = 0.1;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// As many requests as there are places.
    Requests,
    /// The predicted wait.
    Wait,
    /// The predicted wait is over the request's own time.
    Deadline,
    /// Bytes in the works.
    Bytes,
    /// Pixels in the works.
    Pixels,
    /// Seconds of sound in the works.
    Seconds,
    /// Tokens in the works.
    Tokens,
}

impl Reason {
    /// Stable name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Wait => "wait",
            Self::Deadline => "deadline",
            Self::Bytes => "bytes",
            Self::Pixels => "pixels",
            Self::Seconds => "seconds",
            Self::Tokens => "tokens",
        }
    }
}

/// What the desk would say to a request now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Its work would begin at once.
    Accept,
    /// It would wait about this long.
    Queue(Duration),
    /// It would be refused.
    Refuse(Refusal),
}

/// What a request holds and asks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Load {
    pub(crate) bytes: usize,
    pub(crate) pixels: u64,
    pub(crate) seconds: f64,
    /// Prompt and answer at most.
    pub(crate) tokens: usize,
    /// Encoders and prompts, alone on the device.
    pub(crate) compute: Duration,
    /// The expected answer's share of full decode steps.
    pub(crate) decode: Duration,
}

/// The ledger.
#[derive(Debug)]
pub(crate) struct Desk {
    caps: Admission,
    wait: Duration,
    /// Sequences that decode at once.
    seats: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the house, those whose body is still read included.
    entered: usize,
    /// Of these, priced and let in.
    admitted: usize,
    held: Load,
    /// Mean answer tokens, by model.
    answers: BTreeMap<String, f64>,
    refused: BTreeMap<Reason, u64>,
}

impl Desk {
    pub(crate) fn new(caps: Admission, wait: Duration, seats: usize) -> Self {
        Self { caps, wait, seats: seats.max(1), state: Mutex::default() }
    }

    /// Lets a request in that will hold this many bytes, as long as there is a place and the queue is not too long.
    pub(crate) fn enter(self: &Arc<Self>, bytes: usize, class: Class) -> Result<Permit> {
        let mut state = self.lock();
        let load = Load { bytes, ..Load::default() };
        if let Some(refusal) = self.objection(&state, &load, Asking { class, deadline: None, places: 1 }) {
            return Err(refused(&mut state, refusal));
        }
        state.entered += 1;
        state.held.bytes += bytes;
        drop(state);
        Ok(Permit { desk: Arc::clone(self), held: Mutex::new(Held { load, admitted: false }) })
    }

    /// What a request of this load would hear now.
    pub(crate) fn verdict(&self, load: &Load, class: Class, deadline: Option<Instant>) -> Verdict {
        let state = self.lock();
        match self.objection(&state, load, Asking { class, deadline, places: 1 }) {
            Some(refusal) => Verdict::Refuse(refusal),
            None => match self.predicted(&state) {
                Duration::ZERO => Verdict::Accept,
                wait => Verdict::Queue(wait),
            },
        }
    }

    /// Answer tokens to expect of a model that may give at most this many.
    pub(crate) fn expected(&self, model: &str, most: usize) -> usize {
        let mean = self.lock().answers.get(model).copied().unwrap_or(FIRST_GUESS);
        most.min(mean.ceil() as usize).max(1)
    }

    /// An answer of this model had this many tokens.
    pub(crate) fn answered(&self, model: &str, tokens: usize) {
        let mut state = self.lock();
        match state.answers.get_mut(model) {
            Some(mean) => *mean += WEIGHT * (tokens as f64 - *mean),
            None => drop(state.answers.insert(model.to_owned(), tokens as f64)),
        }
    }

    /// Refusals so far.
    pub(crate) fn refusals(&self) -> BTreeMap<Reason, u64> {
        self.lock().refused.clone()
    }

    /// Predicted wait of the next request.
    pub(crate) fn wait(&self) -> Duration {
        self.predicted(&self.lock())
    }

    /// Requests in the house, and bytes they hold.
    pub(crate) fn held(&self) -> (usize, usize) {
        let state = self.lock();
        (state.entered, state.held.bytes)
    }

    fn objection(&self, state: &State, load: &Load, asking: Asking) -> Option<Refusal> {
        let held = &state.held;
        let wait = self.predicted(state);
        let soon = Duration::from_secs(1);
        let refusal = |reason, retry_after: Duration| Some(Refusal { reason, retry_after: retry_after.max(soon) });
        if state.entered + asking.places > self.caps.requests {
            return refusal(Reason::Requests, wait);
        }
        // One request that is over a cap alone may still come alone: its own limits were checked.
        let over = [
            (Reason::Bytes, held.bytes > 0 && held.bytes + load.bytes > self.caps.bytes),
            (Reason::Pixels, held.pixels > 0 && held.pixels + load.pixels > self.caps.pixels),
            (Reason::Seconds, held.seconds > 0.0 && held.seconds + load.seconds > self.caps.seconds),
            (Reason::Tokens, held.tokens > 0 && held.tokens + load.tokens > self.caps.tokens),
        ];
        if let Some((reason, _)) = over.into_iter().find(|(_, over)| *over) {
            return refusal(reason, wait);
        }
        if state.admitted < GRACE {
            return None;
        }
        if asking.class == Class::Interactive && wait > self.wait {
            return refusal(Reason::Wait, wait - self.wait);
        }
        let late = |deadline: Instant| Instant::now() + wait > deadline;
        if asking.deadline.is_some_and(late) {
            return refusal(Reason::Deadline, wait);
        }
        None
    }

    /// When the next request's work would begin. Beside running answers, encoders and prompts get a share of the device;
    /// at worst all those answers end first. Once every seat is taken, as many answers must end as are before it.
    fn predicted(&self, state: &State) -> Duration {
        let Load { compute, decode, .. } = state.held;
        let ahead = (state.admitted + 1).saturating_sub(self.seats);
        match ahead {
            0 => compute + decode.min(compute * 2),
            ahead => compute + decode.mul_f64(ahead as f64 / state.admitted.max(1) as f64),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy)]
struct Asking {
    class: Class,
    deadline: Option<Instant>,
    /// Places it does not hold yet.
    places: usize,
}

fn refused(state: &mut State, refusal: Refusal) -> Error {
    *state.refused.entry(refusal.reason).or_default() += 1;
    let text = match refusal.reason {
        Reason::Requests => "all places are taken".to_owned(),
        Reason::Wait => "the queue is longer than callers are asked to wait".to_owned(),
        Reason::Deadline => "the queue is longer than the time that the request gives".to_owned(),
        other => format!("the {} in the works are at their cap", other.name()),
    };
    let seconds = refusal.retry_after.as_secs_f64().ceil();
    let mut error = Error::new(ErrorKind::Overloaded, format!("{text}; try again in {seconds:.0} s"));
    error.refusal = Some(refusal);
    error
}

/// A request's place in the ledger; returned on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    desk: Arc<Desk>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    load: Load,
    admitted: bool,
}

impl Permit {
    /// Lets the request in at its price. The bytes it entered with make room for those of its load.
    pub(crate) fn admit(&self, load: Load, class: Class, deadline: Option<Instant>) -> Result<()> {
        let mut held = self.lock();
        let mut state = self.desk.lock();
        state.held.bytes -= held.load.bytes;
        if let Some(refusal) = self.desk.objection(&state, &load, Asking { class, deadline, places: 0 }) {
            state.held.bytes += held.load.bytes;
            return Err(refused(&mut state, refusal));
        }
        let sum = &mut state.held;
        sum.bytes += load.bytes;
        sum.pixels += load.pixels;
        sum.seconds += load.seconds;
        sum.tokens += load.tokens;
        sum.compute += load.compute;
        sum.decode += load.decode;
        state.admitted += 1;
        *held = Held { load, admitted: true };
        Ok(())
    }

    /// So much of its encoders and prompts is done.
    pub(crate) fn computed(&self, time: Duration) {
        let mut held = self.lock();
        let done = time.min(held.load.compute);
        held.load.compute -= done;
        self.desk.lock().held.compute -= done;
    }

    /// So much of its answer is out.
    pub(crate) fn decoded(&self, time: Duration) {
        let mut held = self.lock();
        let done = time.min(held.load.decode);
        held.load.decode -= done;
        self.desk.lock().held.decode -= done;
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Held { load, admitted } = &*self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.desk.lock();
        state.entered -= 1;
        state.admitted -= usize::from(*admitted);
        let empty = state.admitted == 0;
        let sum = &mut state.held;
        sum.bytes -= load.bytes;
        sum.pixels -= load.pixels;
        sum.tokens -= load.tokens;
        sum.compute -= load.compute;
        sum.decode -= load.decode;
        // Sums of fractions keep a rest; an empty house holds nothing.
        let seconds = sum.seconds - load.seconds;
        sum.seconds = if empty { 0.0 } else { seconds.max(0.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn desk() -> Arc<Desk> {
        let caps = Admission { requests: 20, bytes: 100, pixels: 1000, seconds: 10.0, tokens: 500, wait: None };
        Arc::new(Desk::new(caps, 100 * MS, 8))
    }

    fn load() -> Load {
        Load { bytes: 1, pixels: 1, seconds: 0.1, tokens: 1, compute: 10 * MS, decode: 80 * MS }
    }

    fn admitted(desk: &Arc<Desk>, load: Load) -> Result<Permit> {
        let permit = desk.enter(load.bytes, Class::Interactive)?;
        permit.admit(load, Class::Interactive, None)?;
        Ok(permit)
    }

    fn reason<T>(result: Result<T>) -> Option<Reason> {
        result.err().and_then(|error| error.refusal).map(|refusal| refusal.reason)
    }

    #[test]
    fn what_was_held_comes_back() {
        let desk = desk();
        let permits: Vec<_> = (0..3).map(|_| admitted(&desk, load()).expect("room")).collect();
        assert_eq!(desk.held(), (3, 3));
        assert!(desk.wait() > Duration::ZERO);
        permits[0].computed(Duration::MAX);
        permits[1].decoded(30 * MS);
        drop(permits);
        assert_eq!((desk.held(), desk.wait()), ((0, 0), Duration::ZERO));
        let state = desk.lock();
        assert_eq!((state.held, state.admitted), (Load::default(), 0));
    }

    #[test]
    fn every_cap_refuses_by_its_name_and_one_request_alone_always_fits() {
        let cases = [
            (Reason::Bytes, Load { bytes: 60, ..Load::default() }),
            (Reason::Pixels, Load { pixels: 600, ..Load::default() }),
            (Reason::Seconds, Load { seconds: 6.0, ..Load::default() }),
            (Reason::Tokens, Load { tokens: 300, ..Load::default() }),
        ];
        for (expected, load) in cases {
            let desk = desk();
            let first = admitted(&desk, load).expect("the first fits");
            assert_eq!(reason(admitted(&desk, load)), Some(expected));
            assert_eq!(desk.refusals(), BTreeMap::from([(expected, 1)]));
            drop(first);
            assert!(admitted(&desk, Load { bytes: 9000, pixels: 9000, seconds: 90.0, tokens: 9000, ..load }).is_ok());
        }
    }

    #[test]
    fn a_long_queue_refuses_people_and_says_when_to_come_back() {
        let desk = desk();
        let mut inside = Vec::new();
        let refused = loop {
            match admitted(&desk, Load { compute: 40 * MS, ..load() }) {
                Ok(permit) => inside.push(permit),
                Err(error) => break error,
            }
        };
        // 40 ms of compute each, of which running answers leave a third: two are over 100 ms, four come in anyway.
        assert_eq!(inside.len(), GRACE);
        let refusal = refused.refusal.expect("a refusal");
        assert_eq!((refused.kind, refusal.reason), (ErrorKind::Overloaded, Reason::Wait));
        assert!(refusal.retry_after >= Duration::from_secs(1));
        // The door is shut before a body is read, for people; a batch job waits.
        assert_eq!(reason(desk.enter(1, Class::Interactive)), Some(Reason::Wait));
        assert!(desk.enter(1, Class::Batch).is_ok());
        let soon = Some(Instant::now() + 10 * MS);
        assert!(
            matches!(desk.verdict(&load(), Class::Batch, soon), Verdict::Refuse(r) if r.reason == Reason::Deadline)
        );
        for permit in &inside {
            permit.computed(40 * MS);
        }
        assert_eq!(desk.verdict(&load(), Class::Interactive, None), Verdict::Accept);
    }

    #[test]
    fn with_every_seat_taken_answers_must_end_first() {
        let desk = desk();
        let short = Load { compute: Duration::ZERO, decode: 8 * MS, ..load() };
        let _seated: Vec<_> = (0..7).map(|_| admitted(&desk, short).expect("a seat")).collect();
        assert_eq!(desk.verdict(&short, Class::Interactive, None), Verdict::Accept);
        let _last = admitted(&desk, short).expect("the last seat");
        assert_eq!(desk.verdict(&short, Class::Interactive, None), Verdict::Queue(8 * MS));
    }

    #[test]
    fn places_are_bounded_also_for_bodies_that_are_still_read() {
        let desk = desk();
        let reading: Vec<_> = (0..20).map(|_| desk.enter(1, Class::Batch).expect("a place")).collect();
        assert_eq!(reason(desk.enter(1, Class::Batch)), Some(Reason::Requests));
        drop(reading);
        assert!(desk.enter(1, Class::Batch).is_ok());
    }

    #[test]
    fn answers_are_expected_as_long_as_they_were() {
        let desk = desk();
        assert_eq!(desk.expected("m", 4000), 128);
        assert_eq!(desk.expected("m", 16), 16);
        for _ in 0..50 {
            desk.answered("m", 20);
        }
        assert_eq!((desk.expected("m", 4000), desk.expected("other", 4000)), (20, 128));
    }
}
