//! The prefix cache: what is found is not computed again, gives the same tokens, and is never another prompt's.

use weft_engine::handle::Model;
use weft_engine::media::{Grid, MediaId, Medium};
use weft_engine::request::{Sampling, Segment};

use crate::fixtures::{Case, assert_all_returned, case, cases, medium, prompt, read, request, start};

const PAGE: usize = 16;

fn ask(model: &Model, case: &Case) -> Vec<u32> {
    read(model.generate(request(prompt(model, case), case.greedy.len())).expect("admitted")).ids
}

#[test]
fn a_second_identical_request_skips_the_encoder_and_every_full_block() {
    let (engine, model) = start(|_| {});
    for case in cases() {
        let before = engine.stats();
        assert_eq!(ask(&model, &case), case.greedy, "{}", case.name);
        let between = engine.stats();
        assert_eq!(ask(&model, &case), case.greedy, "{} again", case.name);
        let after = engine.stats();
        let full = (case.ids.len() - 1) / PAGE;
        assert_eq!(after.prefix_blocks_hit - between.prefix_blocks_hit, full as u64, "{}", case.name);
        assert_eq!(after.prefix_blocks_missed, between.prefix_blocks_missed, "{}", case.name);
        assert_eq!(after.tokens_in - between.tokens_in, (case.ids.len() - full * PAGE) as u64, "{}", case.name);
        assert_eq!(after.encoder_cache_misses, between.encoder_cache_misses, "{}", case.name);
        let media = (case.images.len() + case.audios.len()) as u64;
        assert_eq!(after.encoder_cache_hits - between.encoder_cache_hits, media, "{}", case.name);
        assert!(between.tokens_in - before.tokens_in >= after.tokens_in - between.tokens_in);
    }
    assert_all_returned(&engine);
    assert!(engine.stats().kv_pages_cached > 0);
}

#[test]
fn an_answer_is_found_by_the_request_that_continues_it() {
    let (engine, model) = start(|_| {});
    let case = case("case00");
    let (_plain, other) = start(|config| config.prefix_cache = false);
    let first = read(model.generate(request(vec![Segment::Text(case.ids.clone())], 40)).expect("admitted")).ids;
    let mut turn = case.ids.clone();
    turn.extend(&first);
    turn.extend([3, 4, 5]);
    let before = engine.stats();
    let found = read(model.generate(request(vec![Segment::Text(turn.clone())], 24)).expect("admitted")).ids;
    // The answer's last token was never fed back, so a block that ends with it is not there.
    let full = (case.ids.len() + first.len() - 1) / PAGE;
    assert_eq!(engine.stats().prefix_blocks_hit - before.prefix_blocks_hit, full as u64);
    let computed = read(other.generate(request(vec![Segment::Text(turn)], 24)).expect("admitted")).ids;
    assert_eq!(found, computed, "keys and values of decode steps are those of prefill");
    assert_all_returned(&engine);
}

#[test]
fn pictures_that_differ_in_identity_or_size_share_nothing() {
    let (engine, model) = start(|_| {});
    let Medium::Image(picture) = medium("scene_28x112.png") else { panic!("an image") };
    let ask = |picture: Medium| {
        let ticket = model.encode(picture).expect("room");
        // Enough text behind the picture that the block after it is full.
        let segments = vec![Segment::Media(ticket), Segment::Text((1..40).collect())];
        read(model.generate(request(segments, 8)).expect("admitted")).ids
    };
    let first = ask(Medium::Image(picture.clone()));
    // One value of one pixel; its identity differs, as the stages make it.
    let mut pixel = picture.clone();
    pixel.values[7] += 0.5;
    pixel.id = MediaId([90; 32]);
    ask(Medium::Image(pixel));
    // The same bytes in another size, even if someone gave them the same identity.
    let mut turned = picture.clone();
    turned.grid = Grid { t: 1, h: picture.grid.w, w: picture.grid.h };
    turned.id = MediaId([91; 32]);
    ask(Medium::Image(turned));
    // The same pixels under other processor settings.
    let mut settings = picture.clone();
    settings.id = MediaId([92; 32]);
    ask(Medium::Image(settings));
    let stats = engine.stats();
    assert_eq!((stats.prefix_blocks_hit, stats.encoder_cache_hits), (0, 0), "{stats:?}");
    assert_eq!(stats.encoder_cache_misses, 4);
    assert_eq!(ask(Medium::Image(picture)), first);
    assert!(engine.stats().prefix_blocks_hit > 0);
    assert_all_returned(&engine);
}

#[test]
fn tokens_are_the_same_with_and_without_the_cache_under_pressure() {
    // 40 pages: every few requests push out what earlier ones left.
    let (engine, cached) = start(|config| {
        config.kv_bytes = 40 * 2 * 4 * 16 * 64;
        config.max_batch = 4;
    });
    let (_plain, plain) = start(|config| config.prefix_cache = false);
    let draws = |seed| Sampling { temperature: 0.9, top_p: 0.95, seed, ..Sampling::default() };
    let cases = cases();
    for round in 0..3_u64 {
        let ask = |model: &Model, case: &Case, seed| {
            let mut request = request(prompt(model, case), 12);
            if seed % 2 == 1 {
                request.sampling = draws(seed);
            }
            model.generate(request)
        };
        let small: Vec<_> = cases.iter().filter(|case| case.ids.len() < 100).collect();
        let streams: Vec<_> = (small.iter().enumerate())
            .map(|(at, case)| ask(&cached, case, round + at as u64).expect("admitted"))
            .collect();
        for ((at, case), stream) in small.iter().enumerate().zip(streams) {
            let expected = read(ask(&plain, case, round + at as u64).expect("admitted")).ids;
            assert_eq!(read(stream).ids, expected, "{} in round {round}", case.name);
        }
    }
    assert!(engine.stats().prefix_blocks_hit > 0);
    assert_all_returned(&engine);
}
