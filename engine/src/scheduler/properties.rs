//! Property tests of [`plan`] and the page books on a simulated clock: random arrivals, cancels and failures.

use std::time::Duration;

use proptest::prelude::*;

use super::simulator::arrivals::{Arrival, SimMedium};
use super::simulator::{End, Fault, Simulation, Truth};
use super::*;
use crate::families::EncoderPart;

const PAGE_TOKENS: usize = 8;
const TRUE_LAYERS: usize = 5;
/// More than any of these simulations lasts.
const END: Duration = Duration::from_secs(3600);

/// What work really takes; the model of costs has to learn it.
fn truth() -> Truth {
    let time = |work: Work| {
        let micros = match work.kind {
            Kind::Decode | Kind::LoneDecode => 900 + 40 * work.size,
            Kind::Prefill => 700 + 90 * work.size,
            Kind::Ride => 90 * work.size,
            Kind::Begin(_) => 20 + work.size / 8,
            Kind::Layer(_) => 40 + 6 * work.size,
            Kind::Rows(_, EncoderPart::Finish) => 30 + 4 * work.size,
            Kind::Rows(..) => 30 + 3 * work.size,
        };
        Duration::from_micros(micros as u64)
    };
    Truth { time: Box::new(time), layers: [TRUE_LAYERS; 2] }
}

fn medium(id: u8, bad: u8) -> SimMedium {
    let units = 16 << (id % 6);
    let of = if id.is_multiple_of(3) { SimMedium::clip } else { SimMedium::picture };
    SimMedium { tokens: 1, broken: id == bad, ..of(u64::from(id), units) }
}

fn simulation(limits: Limits, pages: usize) -> Simulation {
    let mut cost = CostModel::new(vec![Counts { parameters: 500_000, weight_bytes: 2_000_000 }]);
    if matches!(limits.policy, Policy::Partition | Policy::Auto) {
        let split = |units, decode, encode| lanes::Split { units, batch: 4, decode, encode };
        cost.set_splits(vec![split(64, 1.1, 0.31), split(48, 1.29, 0.45)]);
    }
    Simulation::new(limits, cost, truth(), (pages, PAGE_TOKENS))
}

/// What must hold of every plan.
fn check(simulation: &Simulation, state: &Snapshot, plan: &Plan) -> Result<(), Fault> {
    let Simulation { limits, cost, .. } = simulation;
    let must = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}: {plan:?}")) };
    let decoding = plan.decode.iter().map(|step| step.sequences.len()).sum::<usize>();
    must(decoding == state.decoding.len(), "a runnable sequence was left out of the step")?;
    let runnable = !state.media.is_empty() || !state.runs.is_empty() || state.prompts.iter().any(|p| p.ready > 0);
    let step: Duration = plan.decode.iter().map(|step| step.predicted).sum();
    let budget = plan.slack.unwrap_or_default();
    if let (InterToken::TimesLone(times), Some(_), Sharing::Turns) = (limits.inter_token, plan.slack, plan.sharing) {
        let alone = plan.decode.iter().map(|step| cost.predict_lone(step.model, step.sequences.len()));
        let most = alone.sum::<Duration>().mul_f64(times).saturating_sub(step).max(step.mul_f64(LEAST_SLACK));
        must(budget == most, "the budget is not what the target leaves")?;
    }
    let saving = !state.decoding.is_empty() && state.debt >= budget;
    let riders: usize = plan.decode.iter().flat_map(|step| &step.riders).map(|chunk| chunk.rows).sum();
    must(riders <= limits.prefill_chunk, "more rows ride than a chunk has")?;
    must(!runnable || !plan.slices.is_empty() || riders > 0 || saving, "compute-bound work waits and none runs")?;
    if limits.policy == Policy::Inline || state.decoding.is_empty() || limits.slice_layers.is_some() {
        return Ok(());
    }
    // A lone encoder slice is cut into pieces by the time; the simulation checks each of them.
    let lone = matches!(plan.slices.as_slice(), [Slice::Encode { .. }]) && riders == 0;
    let least = plan.slices.is_empty() && riders <= 1;
    let beside = plan.sharing != Sharing::Turns;
    let rides: Duration = plan.decode.iter().map(|step| step.ride).filter(|_| !beside).sum();
    let total: Duration = plan.slices.iter().map(Slice::predicted).sum::<Duration>() + rides;
    let least = least || beside && matches!(plan.slices.as_slice(), [Slice::Encode { .. }]);
    must(lone || least || total <= budget, "slices over the budget")
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
        media: media.into_iter().map(|id| medium(id, u8::MAX)).collect(),
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
    let policy = prop::sample::select(vec![Policy::Inline, Policy::Slice, Policy::Partition, Policy::Auto]);
    let target = prop_oneof![
        (1.05_f64..3.0).prop_map(InterToken::TimesLone),
        (500_u64..5_000).prop_map(|micros| InterToken::Time(Duration::from_micros(micros))),
    ];
    (policy, 1_usize..9, 1_usize..100, layers, target).prop_map(
        |(policy, max_batch, prefill_chunk, slice_layers, inter_token)| Limits {
            policy,
            max_batch,
            prefill_chunk,
            slice_layers,
            inter_token,
            first_token: Duration::from_millis(20),
            ageing: Duration::from_millis(50),
            idle_slice: Duration::from_millis(5),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_240, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_the_books_balance(mut arrivals in arrivals(), limits in limits(), pages in 19_usize..80, bad in 0_u8..48) {
        for medium in arrivals.iter_mut().flat_map(|arrival| &mut arrival.media) {
            medium.broken = medium.id == u64::from(bad);
        }
        let mut simulation = simulation(limits, pages);
        let played = simulation.play(&arrivals, END, |simulation, state, plan| {
            if simulation.rounds > 200_000 {
                return Err("no progress".into());
            }
            check(simulation, state, plan)
        });
        prop_assert_eq!(played, Ok(()));
        prop_assert_eq!(simulation.outcomes.len(), arrivals.len());
        prop_assert_eq!(simulation.books.free(), simulation.books.total());
        for (key, outcome) in &simulation.outcomes {
            let arrival = &arrivals[usize::try_from(key.0).expect("small")];
            let doomed = arrival.media.iter().any(|medium| medium.broken);
            match outcome.end {
                End::Finished => {
                    prop_assert!(!doomed, "finished with a medium that has no output");
                    prop_assert_eq!(outcome.tokens, arrival.answer);
                }
                End::Failed => prop_assert!(doomed, "failed for a medium of another request"),
                End::Cancelled => prop_assert!(arrival.patience.is_some()),
            }
        }
    }
}

/// 99th percentile of inter-token times while encoders always wait, over the lone step.
fn stutter(policy: Policy) -> f64 {
    let limits = Limits {
        policy,
        max_batch: 8,
        prefill_chunk: 64,
        slice_layers: None,
        inter_token: InterToken::TimesLone(1.5),
        first_token: Duration::from_secs(2),
        ageing: Duration::from_secs(20),
        idle_slice: Duration::from_millis(5),
    };
    let mut simulation = Simulation::new(
        limits,
        CostModel::new(vec![Counts { parameters: 500_000, weight_bytes: 2_000_000 }]),
        truth(),
        (256, PAGE_TOKENS),
    );
    let arrival = |media, answer| Arrival {
        at: Duration::ZERO,
        class: Class::Interactive,
        text: 8,
        media,
        answer,
        patience: None,
    };
    // The picture that the prompt begins with is encoded last, so encoders are all that waits.
    let picture = |id| SimMedium { tokens: 1, ..SimMedium::picture(id, 512) };
    let flood = arrival([600_u64].into_iter().chain(0..600).map(picture).collect(), 1);
    let all = [arrival(Vec::new(), 800), flood];
    simulation.play(&all, END, |_, _, _| Ok(())).expect("invariants hold");
    // Of the long answer alone, behind the first tokens in which the model learns.
    let mut gaps: Vec<Duration> = simulation.gaps.iter().skip(100).take(600).map(|(gap, _)| *gap).collect();
    gaps.sort_unstable();
    let lone = (truth().time)(Work { model: 0, kind: Kind::Decode, size: 1 });
    gaps[gaps.len() * 99 / 100].as_secs_f64() / lone.as_secs_f64()
}

#[test]
fn slices_keep_the_target_beside_waiting_encoders() {
    let (auto, inline) = (stutter(Policy::Auto), stutter(Policy::Inline));
    assert!(auto < 1.6, "p99 of inter-token times {auto:.2} times the lone step");
    assert!(inline > 3.0 * auto, "inline {inline:.2}, auto {auto:.2}");
}

#[test]
fn interactive_goes_first_and_batch_does_not_starve() {
    let config = EngineConfig::default();
    let limits = Limits { max_batch: 1, ..Limits::new(&config) };
    let cost = CostModel::new(vec![Counts { parameters: 1, weight_bytes: 1 }]);
    let waiting = |key, class, since| Waiting {
        key: SequenceKey(key),
        model: 0,
        claim: Claim { class, since: Duration::from_secs(since), deadline: None },
        pages: 1,
    };
    let first = |waiting| {
        let rooms = vec![Room { free_pages: 9, running: 0 }];
        plan(&Snapshot { rooms, waiting, ..Snapshot::default() }, &cost, &limits).admit
    };
    let batch = waiting(1, Class::Batch, 0);
    assert_eq!(first(vec![batch, waiting(2, Class::Interactive, 10)]), [SequenceKey(2)]);
    assert_eq!(first(vec![batch, waiting(2, Class::Interactive, 30)]), [SequenceKey(1)]);
    let mut pressing = waiting(2, Class::Interactive, 10);
    pressing.claim.deadline = Some(Duration::from_millis(10_500));
    assert_eq!(first(vec![waiting(1, Class::Interactive, 9), pressing]), [SequenceKey(2)], "the nearer deadline");
}

#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    let limits = Limits::new(&EngineConfig::default());
    let cost = CostModel::new(vec![Counts { parameters: 1, weight_bytes: 1 }]);
    let waiting = |key, pages| Waiting {
        key: SequenceKey(key),
        model: 0,
        claim: Claim { class: Class::Interactive, since: Duration::from_secs(key), deadline: None },
        pages,
    };
    let rooms = vec![Room { free_pages: 5, running: 1 }];
    let state = Snapshot { rooms, waiting: vec![waiting(1, 3), waiting(2, 4), waiting(3, 1)], ..Snapshot::default() };
    assert_eq!(plan(&state, &cost, &limits).admit, [SequenceKey(1)], "the third waits behind the second");
}
