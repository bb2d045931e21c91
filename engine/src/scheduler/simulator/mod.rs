//! The scheduler on a simulated clock: does with a plan what the device does, except that work only takes the time that a
//! table says. Owns the clock and what became of every request; knows no device, and plans nothing itself.
//!
//! Invariants, checked in every round and told as a [`Fault`]: planned work exists, admitted requests get their pages, a
//! request ends once, and the page books balance.

pub mod arrivals;
pub mod report;
mod runs;
mod svg;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::arrivals::{Arrival, SimMedium};
use self::runs::Run;
use super::snapshot::Tower;
use super::{
    Chunk, Claim, CostModel, Decoding, EncodeWork, Kind, Limits, Plan, Prompt, Reason, Room, RunKey, SequenceKey,
    Sharing, Slice, Snapshot, Spend, Waiting, WaitingMedium, Work, plan,
};
use crate::books::{BlockTable, PageBooks};
use crate::device::shared::MediaKey;
use crate::media::MediaId;
use crate::request::Class;

/// A broken invariant.
pub type Fault = String;

/// What a device takes for work.
pub(crate) struct Truth {
    pub(crate) time: Box<dyn Fn(Work) -> Duration>,
    /// Encoder layers of each tower: vision, audio.
    pub(crate) layers: [usize; 2],
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With its whole answer.
    Finished,
    /// Its caller went away.
    Cancelled,
    /// A medium of it has no output.
    Failed,
}

/// A request that arrived.
#[derive(Debug)]
struct Request {
    arrival: Arrival,
    table: Option<BlockTable>,
    done: usize,
    produced: usize,
    stepped: u64,
    last_token: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediumState {
    Waiting { alone: bool },
    InRun,
    Ready,
    Failed,
}

#[derive(Debug)]
struct MediumJob {
    medium: SimMedium,
    state: MediumState,
    since: Duration,
    class: Class,
}

/// What was seen of a request.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Number in the order of arrival.
    pub number: u64,
    /// Class.
    pub class: Class,
    /// Whether it had media.
    pub media: bool,
    /// From arrival to first token.
    pub first_token: Option<Duration>,
    /// From arrival to end.
    pub took: Duration,
    /// Answer tokens.
    pub tokens: usize,
    /// How it ended.
    pub end: End,
}

/// A launch, for the timeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) kind: Kind,
    pub(crate) start: Duration,
    pub(crate) end: Duration,
}

/// Rounds between two audits of the books, which look at every page.
const AUDIT: u64 = 16;
/// Spans kept for the timeline: its first ones.
const SPANS: usize = 4000;

pub(crate) struct Simulation {
    pub(crate) limits: Limits,
    pub(crate) cost: CostModel,
    pub(crate) books: PageBooks,
    pub(crate) now: Duration,
    pub(crate) rounds: u64,
    truth: Truth,
    page_tokens: usize,
    requests: BTreeMap<SequenceKey, Request>,
    media: BTreeMap<u64, MediumJob>,
    /// Those that wait for their encoder.
    waiting: BTreeSet<u64>,
    runs: BTreeMap<RunKey, Run>,
    debt: Duration,
    started: u64,
    first_tokens: BTreeMap<SequenceKey, Duration>,
    pub(crate) outcomes: BTreeMap<SequenceKey, Outcome>,
    /// Inter-token times, one a token, each with that of its step alone.
    pub(crate) gaps: Vec<(Duration, Duration)>,
    lone: Duration,
    pub(crate) spans: Vec<Span>,
    /// Time of work alone on the whole device, by decode, prefill, encoders.
    pub(crate) busy: [Duration; 3],
}

impl Simulation {
    pub(crate) fn new(limits: Limits, cost: CostModel, truth: Truth, (pages, page_tokens): (usize, usize)) -> Self {
        Self {
            limits,
            cost,
            books: PageBooks::new(pages, page_tokens),
            now: Duration::ZERO,
            rounds: 0,
            truth,
            page_tokens,
            requests: BTreeMap::new(),
            media: BTreeMap::new(),
            waiting: BTreeSet::new(),
            runs: BTreeMap::new(),
            debt: Duration::ZERO,
            started: 0,
            first_tokens: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            gaps: Vec::new(),
            lone: Duration::ZERO,
            spans: Vec::new(),
            busy: [Duration::ZERO; 3],
        }
    }

    /// Plays all arrivals to their ends, or until the clock passes `until`. `seen` looks at every plan.
    pub(crate) fn play(
        &mut self,
        arrivals: &[Arrival],
        until: Duration,
        mut seen: impl FnMut(&Self, &Snapshot, &Plan) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut coming = arrivals.iter().enumerate().peekable();
        while self.now < until && (coming.peek().is_some() || !self.requests.is_empty()) {
            while let Some((number, arrival)) = coming.next_if(|(_, arrival)| arrival.at <= self.now) {
                self.arrive(number as u64, arrival.clone());
            }
            let state = self.survey();
            let plan = plan(&state, &self.cost, &self.limits);
            seen(self, &state, &plan)?;
            let idle = plan.reason == Reason::Idle && plan.admit.is_empty();
            self.launch(plan)?;
            if idle {
                // Until something comes or somebody goes.
                let step = Duration::from_millis(1);
                let next = coming.peek().map(|(_, arrival)| arrival.at).filter(|_| self.requests.is_empty());
                self.now = next.unwrap_or(self.now + step).max(self.now);
            }
            self.settle();
            if self.rounds.is_multiple_of(AUDIT) || self.requests.is_empty() {
                let tables = self.requests.values().filter_map(|request| request.table.as_ref());
                self.books.audit(tables)?;
            }
        }
        Ok(())
    }

    /// Requests that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.requests.len()
    }

    fn arrive(&mut self, number: u64, arrival: Arrival) {
        for medium in &arrival.media {
            let job = self.media.entry(medium.id).or_insert_with(|| {
                self.waiting.insert(medium.id);
                let state = MediumState::Waiting { alone: false };
                MediumJob { medium: *medium, state, since: arrival.at, class: arrival.class }
            });
            job.class = job.class.min(arrival.class);
        }
        let last_token = arrival.at;
        let request = Request { arrival, table: None, done: 0, produced: 0, stepped: 0, last_token };
        self.requests.insert(SequenceKey(number), request);
    }

    fn total(request: &Request) -> usize {
        request.arrival.text + request.arrival.media.iter().map(|medium| medium.tokens).sum::<usize>()
    }

    fn ready(&self, request: &Request) -> usize {
        let media = request.arrival.media.iter();
        let encoded = media.take_while(|medium| self.media[&medium.id].state == MediumState::Ready);
        let rows: usize = encoded.map(|medium| medium.tokens).sum();
        (request.arrival.text + rows).saturating_sub(request.done)
    }

    fn pages(&self, request: &Request) -> usize {
        (Self::total(request) + request.arrival.answer).div_ceil(self.page_tokens)
    }

    fn survey(&self) -> Snapshot {
        let running = self.requests.values().filter(|request| request.table.is_some()).count();
        let mut state = Snapshot {
            rooms: vec![Room { free_pages: self.books.free(), running }],
            debt: self.debt,
            ..Snapshot::default()
        };
        for (&key, request) in &self.requests {
            let Arrival { class, at, patience, .. } = request.arrival;
            let claim = Claim { class, since: at, deadline: patience.map(|patience| at + patience) };
            if request.table.is_none() {
                state.waiting.push(Waiting { key, model: 0, claim, pages: self.pages(request) });
            } else if request.produced == 0 {
                state.prompts.push(Prompt { key, model: 0, claim, ready: self.ready(request) });
            } else {
                state.decoding.push(Decoding { key, model: 0, stepped: request.stepped });
            }
        }
        let claim = |job: &MediumJob| Claim { class: job.class, since: job.since, deadline: None };
        for (&id, job) in self.waiting.iter().filter_map(|id| self.media.get_key_value(id)) {
            if let MediumState::Waiting { alone } = job.state {
                let SimMedium { tower, units, .. } = job.medium;
                state.media.push(WaitingMedium { key: media_key(id), tower, claim: claim(job), units, alone });
            }
        }
        for (&key, run) in &self.runs {
            let claims = run.media.iter().map(|medium| claim(&self.media[medium]));
            let claim = claims.reduce(Claim::with).unwrap_or(runs::NOBODY);
            state.runs.push(run.running(key, claim));
        }
        state
    }

    fn launch(&mut self, plan: Plan) -> Result<(), Fault> {
        self.rounds += 1;
        for key in &plan.admit {
            let request = self.requests.get(key).ok_or("a planned request is not there")?;
            let lease = self.books.lease(self.pages(request)).ok_or("admitted without pages")?;
            if let Some(request) = self.requests.get_mut(key) {
                request.table = Some(lease.table);
            }
        }
        let (start, mut rode) = (self.now, Duration::ZERO);
        for step in plan.decode {
            let work = Work { model: 0, kind: Kind::Decode, size: step.sequences.len() };
            self.lone = (self.truth.time)(work);
            self.work(work, 1);
            let rows = step.riders.iter().map(|chunk| chunk.rows).sum();
            if rows > 0 {
                let before = self.now;
                self.work(Work { model: 0, kind: Kind::Ride, size: rows }, 1);
                rode += self.now - before;
            } else if plan.slices.is_empty() {
                self.cost.observe(Work { kind: Kind::LoneDecode, ..work }, (self.truth.time)(work));
            }
            if let Sharing::Split(split) = plan.sharing {
                self.now = start + (self.now - start).mul_f64(split.decode);
            }
            for key in step.sequences {
                self.token(key)?;
            }
            self.prompt_rows(step.riders)?;
        }
        let stepped = self.now;
        for slice in plan.slices {
            self.slice(slice)?;
        }
        let took = self.now - stepped;
        if let Sharing::Split(split) = plan.sharing {
            // Beside the step, at a part of the rate alone; what takes longer than the step ends the round later.
            self.now = stepped.max(start + took.div_f64(split.encode.max(1e-3)));
        }
        // Where slices run beside the steps, rides have a budget of their own.
        let spent = if plan.sharing == Sharing::Turns { took + rode } else { took };
        self.debt = Plan::debt_after(plan.slack, self.debt, spent);
        Ok(())
    }

    /// Spends the time of some work, and learns from it.
    fn work(&mut self, work: Work, count: usize) {
        let took = (self.truth.time)(work);
        let start = self.now;
        self.now += took * u32::try_from(count).unwrap_or(u32::MAX);
        self.cost.observe(work, took);
        let kind = match work.kind {
            Kind::Decode | Kind::LoneDecode => 0,
            Kind::Prefill | Kind::Ride => 1,
            Kind::Begin(_) | Kind::Layer(_) | Kind::Rows(..) => 2,
        };
        self.busy[kind] += self.now - start;
        if self.spans.len() < SPANS {
            self.spans.push(Span { kind: work.kind, start, end: self.now });
        }
    }

    /// One more token of an answer.
    fn token(&mut self, key: SequenceKey) -> Result<(), Fault> {
        let request = self.requests.get_mut(&key).ok_or("a planned request is not there")?;
        request.stepped = self.rounds;
        request.produced += 1;
        if request.produced == 1 {
            self.first_tokens.insert(key, self.now - request.arrival.at);
        } else {
            self.gaps.push((self.now - request.last_token, self.lone));
        }
        request.last_token = self.now;
        if request.produced == request.arrival.answer { self.end(key, End::Finished) } else { Ok(()) }
    }

    /// Prompt rows that went through.
    fn prompt_rows(&mut self, chunks: Vec<Chunk>) -> Result<(), Fault> {
        for chunk in chunks {
            let request = self.requests.get_mut(&chunk.key).ok_or("a planned request is not there")?;
            request.done += chunk.rows;
            match request.done.cmp(&Self::total(request)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => self.token(chunk.key)?,
                std::cmp::Ordering::Greater => return Err("more rows than the prompt has".into()),
            }
        }
        Ok(())
    }

    fn slice(&mut self, slice: Slice) -> Result<(), Fault> {
        match slice {
            Slice::Prefill { chunks, .. } => {
                let rows = chunks.iter().map(|chunk| chunk.rows).sum();
                if rows > self.limits.prefill_chunk {
                    return Err(format!("a prefill slice of {rows} rows"));
                }
                self.work(Work { model: 0, kind: Kind::Prefill, size: rows }, 1);
                self.prompt_rows(chunks)
            }
            Slice::Encode { work: EncodeWork::Begin(media), spend, .. } => {
                let began = self.now;
                let run = self.begin(media.iter().map(|key| medium_id(*key)).collect())?;
                if spend == Spend::Within(Duration::ZERO) { Ok(()) } else { self.advance(run, spend, began) }
            }
            Slice::Encode { work: EncodeWork::Resume(run), spend, .. } => self.advance(run, spend, self.now),
        }
    }

    /// Ends whose time is up or whose medium failed.
    fn settle(&mut self) {
        let over = self.requests.iter().filter_map(|(&key, request)| {
            let gone = request.arrival.patience.is_some_and(|patience| request.arrival.at + patience <= self.now);
            let failed = request.arrival.media.iter().any(|medium| self.media[&medium.id].state == MediumState::Failed);
            if gone {
                Some((key, End::Cancelled))
            } else {
                (failed && request.produced == 0).then_some((key, End::Failed))
            }
        });
        for (key, end) in over.collect::<Vec<_>>() {
            // These are in the map, and so have not ended.
            let _ended_once = self.end(key, end);
        }
    }

    fn end(&mut self, key: SequenceKey, end: End) -> Result<(), Fault> {
        let request = self.requests.remove(&key).ok_or("a request that is not there ended")?;
        let outcome = Outcome {
            number: key.0,
            class: request.arrival.class,
            media: !request.arrival.media.is_empty(),
            first_token: self.first_tokens.remove(&key),
            took: self.now.saturating_sub(request.arrival.at),
            tokens: request.produced,
            end,
        };
        match self.outcomes.insert(key, outcome) {
            None => Ok(()),
            Some(_) => Err("a request ended twice".into()),
        }
    }
}

fn media_key(id: u64) -> MediaKey {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&id.to_be_bytes());
    MediaKey { model: 0, id: MediaId(bytes) }
}

fn medium_id(key: MediaKey) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key.id.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn layers(truth: &Truth, tower: Tower) -> usize {
    truth.layers[usize::from(tower == Tower::Audio)]
}
