//! Property tests of [`plan`] and the page books on a simulated clock: random arrivals, cancels and failures.
//!
//! The simulation does with a plan what the device does, except that work only takes simulated time.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::books::{BlockTable, PageBooks};
use crate::media::MediaId;

const PAGE_TOKENS: usize = 8;
const TRUE_LAYERS: usize = 5;

/// A request as it will arrive.
#[derive(Debug, Clone)]
struct Arrival {
    at: Duration,
    class: Class,
    text: usize,
    media: Vec<u8>,
    answer: usize,
    /// Goes away this long after its arrival.
    patience: Option<Duration>,
}

#[derive(Debug)]
struct Request {
    arrival: Arrival,
    table: Option<BlockTable>,
    done: usize,
    produced: usize,
    stepped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Cancelled,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediumState {
    Waiting { alone: bool },
    InRun,
    Ready,
    Failed,
}

struct Run {
    media: Vec<u8>,
    left: usize,
}

struct Simulation {
    limits: Limits,
    cost: CostModel,
    books: PageBooks,
    now: Duration,
    rounds: u64,
    requests: BTreeMap<SequenceKey, Request>,
    media: BTreeMap<u8, (MediumState, Duration, Class)>,
    runs: BTreeMap<RunKey, Run>,
    debt: Duration,
    started: u64,
    ends: BTreeMap<SequenceKey, End>,
    /// Media whose encoder always fails.
    bad: u8,
}

/// Patches of a medium; a few are large.
fn units(medium: u8) -> usize {
    16 << (medium % 6)
}

fn tower(medium: u8) -> Tower {
    if medium.is_multiple_of(3) { Tower::Audio } else { Tower::Vision }
}

fn key(medium: u8) -> MediaKey {
    MediaKey { model: 0, id: MediaId([medium; 32]) }
}

/// What work really takes; the cost model has to learn it.
fn truth(work: Work) -> Duration {
    let micros = match work.kind {
        Kind::Decode => 900 + 40 * work.size,
        Kind::Prefill => 700 + 90 * work.size,
        Kind::Begin(_) => 50 + work.size,
        Kind::Layer(_) => 40 + 6 * work.size,
    };
    Duration::from_micros(micros as u64)
}

impl Simulation {
    fn new(limits: Limits, pages: usize, bad: u8) -> Self {
        Self {
            limits,
            cost: CostModel::new(vec![Counts { parameters: 500_000, weight_bytes: 2_000_000 }]),
            books: PageBooks::new(pages, PAGE_TOKENS),
            now: Duration::ZERO,
            rounds: 0,
            requests: BTreeMap::new(),
            media: BTreeMap::new(),
            runs: BTreeMap::new(),
            debt: Duration::ZERO,
            started: 0,
            ends: BTreeMap::new(),
            bad,
        }
    }

    fn arrive(&mut self, number: u64, arrival: Arrival) {
        for &medium in &arrival.media {
            let entry = self.media.entry(medium);
            let entry = entry.or_insert((MediumState::Waiting { alone: false }, arrival.at, arrival.class));
            entry.2 = entry.2.min(arrival.class);
        }
        let request = Request { arrival, table: None, done: 0, produced: 0, stepped: 0 };
        self.requests.insert(SequenceKey(number), request);
    }

    /// Rows: the text, then one a medium.
    fn total(request: &Request) -> usize {
        request.arrival.text + request.arrival.media.len()
    }

    fn ready(&self, request: &Request) -> usize {
        let media = request.arrival.media.iter();
        let encoded = media.take_while(|medium| self.media[medium].0 == MediumState::Ready).count();
        (request.arrival.text + encoded).saturating_sub(request.done)
    }

    fn pages(request: &Request) -> usize {
        (Self::total(request) + request.arrival.answer).div_ceil(PAGE_TOKENS)
    }

    fn survey(&self) -> Snapshot {
        let running = self.requests.values().filter(|request| request.table.is_some()).count();
        let mut state = Snapshot {
            rooms: vec![Room { free_pages: self.books.free(), running }],
            debt: self.debt,
            ..Snapshot::default()
        };
        for (&key, request) in &self.requests {
            let claim = Claim { class: request.arrival.class, since: request.arrival.at };
            if request.table.is_none() {
                state.waiting.push(Waiting { key, model: 0, claim, pages: Self::pages(request) });
            } else if request.produced == 0 {
                state.prompts.push(Prompt { key, model: 0, claim, ready: self.ready(request) });
            } else {
                state.decoding.push(Decoding { key, model: 0, stepped: request.stepped });
            }
        }
        for (&medium, &(stage, since, class)) in &self.media {
            if let MediumState::Waiting { alone } = stage {
                let claim = Claim { class, since };
                let (tower, units) = (tower(medium), units(medium));
                state.media.push(WaitingMedium { key: key(medium), tower, claim, units, alone });
            }
        }
        for (&key, run) in &self.runs {
            let claims = run.media.iter().map(|medium| self.media[medium]);
            let since = claims.clone().map(|(_, since, _)| since).min().unwrap_or_default();
            let class = claims.map(|(.., class)| class).min().unwrap_or_default();
            let units = run.media.iter().copied().map(units).sum();
            let tower = tower(run.media[0]);
            let claim = Claim { class, since };
            state.runs.push(Running { key, model: 0, tower, claim, units, left: run.left });
        }
        state
    }

    fn work(&mut self, work: Work, pieces: usize) {
        let took = truth(work);
        self.now += took * u32::try_from(pieces).expect("few layers");
        self.cost.observe(work, took);
    }

    /// One round; checks what must hold in every round.
    fn round(&mut self) -> Result<(), TestCaseError> {
        self.rounds += 1;
        let state = self.survey();
        let plan = plan(&state, &self.cost, &self.limits);
        self.check(&state, &plan)?;
        for key in &plan.admit {
            let request = self.requests.get_mut(key).expect("planned requests exist");
            let table = self.books.lease(Self::pages(request)).map(|lease| lease.table);
            prop_assert!(table.is_some(), "admitted without pages");
            request.table = table;
        }
        for step in plan.decode {
            self.work(Work { model: 0, kind: Kind::Decode, size: step.sequences.len() }, 1);
            for key in step.sequences {
                let (rounds, request) = (self.rounds, self.requests.get_mut(&key).expect("planned requests exist"));
                request.stepped = rounds;
                request.produced += 1;
                if request.produced == request.arrival.answer {
                    self.end(key, End::Finished);
                }
            }
        }
        let began = self.now;
        for slice in plan.slices {
            self.slice(slice)?;
        }
        self.debt = Plan::debt_after(plan.slack, self.debt, self.now - began);
        if plan.reason == Reason::Idle && plan.admit.is_empty() {
            self.now += Duration::from_millis(1);
        }
        self.settle();
        let tables = self.requests.values().filter_map(|request| request.table.as_ref());
        prop_assert_eq!(self.books.audit(tables), Ok(()));
        Ok(())
    }

    fn check(&self, state: &Snapshot, plan: &Plan) -> Result<(), TestCaseError> {
        let decoding = plan.decode.iter().map(|step| step.sequences.len()).sum::<usize>();
        prop_assert_eq!(decoding, state.decoding.len(), "a runnable sequence was left out of the step");
        let runnable = !state.media.is_empty() || !state.runs.is_empty() || state.prompts.iter().any(|p| p.ready > 0);
        let step: Duration = plan.decode.iter().map(|step| step.predicted).sum();
        let budget = step.mul_f64(self.limits.inter_token_target - 1.0);
        let saving = !state.decoding.is_empty() && state.debt >= budget;
        prop_assert!(!runnable || !plan.slices.is_empty() || saving, "compute-bound work waits and none runs");
        if self.limits.policy != Policy::Slice || state.decoding.is_empty() || self.limits.slice_layers.is_some() {
            return Ok(());
        }
        let total: Duration = plan.slices.iter().map(Slice::predicted).sum();
        let indivisible = matches!(
            plan.slices.as_slice(),
            [Slice::Encode { work: EncodeWork::Resume(_), layers: 1, .. }]
                | [Slice::Encode { work: EncodeWork::Begin(_), layers: 0, .. }]
        ) || matches!(plan.slices.as_slice(), [Slice::Prefill { chunks, .. }]
            if chunks.iter().map(|chunk| chunk.rows).sum::<usize>() <= 16);
        prop_assert!(indivisible || total <= budget, "{:?} of slices in a budget of {:?}", total, budget);
        Ok(())
    }

    fn slice(&mut self, slice: Slice) -> Result<(), TestCaseError> {
        match slice {
            Slice::Prefill { chunks, .. } => {
                let rows = chunks.iter().map(|chunk| chunk.rows).sum();
                prop_assert!(rows <= self.limits.prefill_chunk);
                self.work(Work { model: 0, kind: Kind::Prefill, size: rows }, 1);
                for chunk in chunks {
                    let request = self.requests.get_mut(&chunk.key).expect("planned requests exist");
                    request.done += chunk.rows;
                    prop_assert!(request.done <= Self::total(request));
                    if request.done == Self::total(request) {
                        request.produced = 1;
                        if request.arrival.answer == 1 {
                            self.end(chunk.key, End::Finished);
                        }
                    }
                }
            }
            Slice::Encode { work: EncodeWork::Begin(media), layers, .. } => {
                let media: Vec<u8> = media.iter().map(|key| key.id.0[0]).collect();
                prop_assert!(media.iter().all(|&medium| tower(medium) == tower(media[0])));
                let size = media.iter().copied().map(units).sum();
                self.work(Work { model: 0, kind: Kind::Begin(tower(media[0])), size }, 1);
                for medium in &media {
                    self.media.get_mut(medium).expect("planned media exist").0 = MediumState::InRun;
                }
                self.started += 1;
                self.runs.insert(RunKey(self.started), Run { media, left: TRUE_LAYERS });
                if layers > 0 {
                    self.advance(RunKey(self.started), layers);
                }
            }
            Slice::Encode { work: EncodeWork::Resume(run), layers, .. } => {
                prop_assert!(layers > 0, "an empty slice");
                self.advance(run, layers);
            }
        }
        Ok(())
    }

    fn advance(&mut self, key: RunKey, layers: usize) {
        let run = self.runs.get_mut(&key).expect("planned runs exist");
        let layers = layers.min(run.left);
        run.left -= layers;
        let (left, media) = (run.left, run.media.clone());
        let size = media.iter().copied().map(units).sum();
        self.work(Work { model: 0, kind: Kind::Layer(tower(media[0])), size }, layers);
        if left > 0 {
            return;
        }
        self.runs.remove(&key);
        let fails = media.contains(&self.bad);
        for medium in &media {
            self.media.get_mut(medium).expect("media of runs exist").0 = match (fails, media.len()) {
                (false, _) => MediumState::Ready,
                (true, 1) => MediumState::Failed,
                (true, _) => MediumState::Waiting { alone: true },
            };
        }
    }

    fn settle(&mut self) {
        let over = self.requests.iter().filter_map(|(&key, request)| {
            let gone = request.arrival.patience.is_some_and(|patience| request.arrival.at + patience <= self.now);
            let failed = request.arrival.media.iter().any(|medium| self.media[medium].0 == MediumState::Failed);
            if gone {
                Some((key, End::Cancelled))
            } else {
                (failed && request.produced == 0).then_some((key, End::Failed))
            }
        });
        for (key, end) in over.collect::<Vec<_>>() {
            self.end(key, end);
        }
    }

    fn end(&mut self, key: SequenceKey, end: End) {
        self.requests.remove(&key).expect("a request ends once");
        assert!(self.ends.insert(key, end).is_none(), "a request ends once");
    }
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let request = (
        0_u64..4_000,
        any::<bool>(),
        1_usize..120,
        prop::collection::vec(0_u8..24, 0..4),
        1_usize..24,
        prop::option::weighted(0.2, 0_u64..60_000),
    );
    let request = request.prop_map(|(gap, batch, text, media, answer, patience)| Arrival {
        at: Duration::from_micros(gap),
        class: if batch { Class::Batch } else { Class::Interactive },
        text,
        media,
        answer,
        patience: patience.map(Duration::from_micros),
    });
    prop::collection::vec(request, 1..30).prop_map(|mut requests| {
        let mut at = Duration::ZERO;
        for request in &mut requests {
            at += request.at;
            request.at = at;
        }
        requests
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let layers = prop::option::weighted(0.2, 1_usize..4);
    (any::<bool>(), 1_usize..9, 1_usize..100, layers, 1.05_f64..3.0).prop_map(
        |(inline, max_batch, prefill_chunk, slice_layers, inter_token_target)| Limits {
            policy: if inline { Policy::Inline } else { Policy::Slice },
            max_batch,
            prefill_chunk,
            slice_layers,
            inter_token_target,
            ageing: Duration::from_millis(50),
            idle_slice: Duration::from_millis(5),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_the_books_balance(arrivals in arrivals(), limits in limits(), pages in 19_usize..80, bad in any::<u8>()) {
        let mut simulation = Simulation::new(limits, pages, bad % 48);
        let mut coming = arrivals.iter().cloned().enumerate().peekable();
        while coming.peek().is_some() || !simulation.requests.is_empty() {
            while let Some((number, arrival)) = coming.next_if(|(_, arrival)| arrival.at <= simulation.now) {
                simulation.arrive(number as u64, arrival);
            }
            simulation.round()?;
            prop_assert!(simulation.rounds < 200_000, "no progress");
        }
        prop_assert_eq!(simulation.ends.len(), arrivals.len());
        prop_assert_eq!(simulation.books.free(), simulation.books.total());
        for (key, end) in &simulation.ends {
            let arrival = &arrivals[usize::try_from(key.0).expect("small")];
            let doomed = arrival.media.contains(&simulation.bad);
            match end {
                End::Finished => prop_assert!(!doomed, "finished with a medium that has no output"),
                End::Failed => prop_assert!(doomed, "failed for a medium of another request"),
                End::Cancelled => prop_assert!(arrival.patience.is_some()),
            }
        }
    }
}

/// Mean gap between decode steps while encoders always wait, over the lone step.
fn stutter(policy: Policy) -> (f64, usize) {
    let limits = Limits {
        policy,
        max_batch: 8,
        prefill_chunk: 64,
        slice_layers: None,
        inter_token_target: 1.5,
        ageing: Duration::from_secs(20),
        idle_slice: Duration::from_millis(5),
    };
    let mut simulation = Simulation::new(limits, 64, u8::MAX);
    let arrival = |media, answer| Arrival {
        at: Duration::ZERO,
        class: Class::Interactive,
        text: 8,
        media,
        answer,
        patience: None,
    };
    simulation.arrive(0, arrival(Vec::new(), 400));
    (0..240).for_each(|medium| {
        simulation.media.insert(medium, (MediumState::Waiting { alone: false }, Duration::ZERO, Class::Interactive));
    });
    let mut began = None;
    while simulation.ends.is_empty() {
        simulation.round().expect("invariants hold");
        if began.is_none() && simulation.requests.values().any(|request| request.produced > 0) {
            began = Some(simulation.now);
        }
    }
    let lone = truth(Work { model: 0, kind: Kind::Decode, size: 1 }).as_secs_f64() * 399.0;
    let encoded = simulation.media.values().filter(|(stage, ..)| *stage == MediumState::Ready).count();
    ((simulation.now - began.expect("it decoded")).as_secs_f64() / lone, encoded)
}

#[test]
fn slices_keep_the_target_beside_waiting_encoders() {
    let (sliced, encoded) = stutter(Policy::Slice);
    let (inline, _) = stutter(Policy::Inline);
    assert!(sliced < 1.6, "mean inter-token time {sliced:.2} times the lone step");
    assert!(encoded > 10, "encoders starve: {encoded} media");
    assert!(inline > sliced, "inline {inline:.2}, sliced {sliced:.2}");
}

#[test]
fn interactive_goes_first_and_batch_does_not_starve() {
    let config = EngineConfig::default();
    let limits = Limits { max_batch: 1, ..Limits::new(&config) };
    let cost = CostModel::new(vec![Counts { parameters: 1, weight_bytes: 1 }]);
    let waiting = |key, class, since| Waiting {
        key: SequenceKey(key),
        model: 0,
        claim: Claim { class, since: Duration::from_secs(since) },
        pages: 1,
    };
    let first = |waiting| {
        let rooms = vec![Room { free_pages: 9, running: 0 }];
        plan(&Snapshot { rooms, waiting, ..Snapshot::default() }, &cost, &limits).admit
    };
    let batch = waiting(1, Class::Batch, 0);
    assert_eq!(first(vec![batch, waiting(2, Class::Interactive, 10)]), [SequenceKey(2)]);
    assert_eq!(first(vec![batch, waiting(2, Class::Interactive, 30)]), [SequenceKey(1)]);
}

#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    let limits = Limits::new(&EngineConfig::default());
    let cost = CostModel::new(vec![Counts { parameters: 1, weight_bytes: 1 }]);
    let waiting = |key, pages| Waiting {
        key: SequenceKey(key),
        model: 0,
        claim: Claim { class: Class::Interactive, since: Duration::from_secs(key) },
        pages,
    };
    let rooms = vec![Room { free_pages: 5, running: 1 }];
    let state = Snapshot { rooms, waiting: vec![waiting(1, 3), waiting(2, 4), waiting(3, 1)], ..Snapshot::default() };
    assert_eq!(plan(&state, &cost, &limits).admit, [SequenceKey(1)], "the third waits behind the second");
}
