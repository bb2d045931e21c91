//! Hand-made answers, on timestamps from token 100; a window is 3000 frames, a step two of them.

use super::*;

const T: u32 = 100;

fn windows(frames: usize) -> Windows {
    Windows::new(frames, 3000, T, Mode::Timestamps)
}

fn spans(settled: &Settled) -> Vec<(usize, usize, Range<usize>)> {
    settled.spans.iter().map(|span| (span.start, span.end, span.tokens.clone())).collect()
}

#[test]
fn a_clip_without_frames_has_no_window() {
    assert_eq!(windows(0).next(), None);
}

#[test]
fn the_last_pair_moves_the_seek_and_the_rest_is_heard_again() {
    let mut plan = windows(7000);
    assert_eq!(plan.next(), Some(Window { start: 0, frames: 3000 }));
    // <0> 1 2 <50><50> 3 <90><90> 4
    let settled = plan.settle(&[T, 1, 2, T + 50, T + 50, 3, T + 90, T + 90, 4]);
    assert_eq!(spans(&settled), [(0, 100, 0..4), (100, 180, 4..8)], "the last segment keeps both its timestamps");
    assert_eq!(settled.moved, 180);
    assert_eq!(plan.next(), Some(Window { start: 180, frames: 3000 }));
}

#[test]
fn a_single_timestamp_at_the_end_means_that_nothing_follows() {
    let mut plan = windows(7000);
    let settled = plan.settle(&[T, 1, T + 50, T + 60, 2, T + 80]);
    assert_eq!(spans(&settled), [(0, 100, 0..3), (120, 160, 3..6)]);
    assert_eq!(settled.moved, 3000);
}

#[test]
fn without_a_pair_the_window_is_one_segment() {
    for (tokens, end) in [(vec![T, 1, 2], 3000), (vec![T, 1, T + 40], 80), (vec![1, 2], 3000), (vec![T], 3000)] {
        let mut plan = windows(7000);
        let settled = plan.settle(&tokens);
        assert_eq!(spans(&settled), [(0, end, 0..tokens.len())]);
        assert_eq!(settled.moved, 3000);
    }
}

#[test]
fn times_are_those_of_the_clip() {
    let mut plan = windows(7000);
    plan.skip();
    let settled = plan.settle(&[T + 5, 1, T + 50, T + 50, 2, T + 80]);
    assert_eq!(spans(&settled), [(3010, 3100, 0..3), (3100, 3160, 3..6)]);
}

#[test]
fn the_tail_is_a_window_of_its_own() {
    let mut plan = windows(3007);
    plan.skip();
    assert_eq!(plan.next(), Some(Window { start: 3000, frames: 7 }));
    assert_eq!(plan.settle(&[T, 1]).spans[0].end, 3007);
    assert_eq!(plan.next(), None);
}

#[test]
fn an_answer_that_stands_still_takes_its_window_with_it() {
    let mut plan = windows(7000);
    assert_eq!(plan.settle(&[T, T, 1]).moved, 3000);
    assert_eq!(plan.settle(&[]).moved, 3000);
}

#[test]
fn plain_windows_lie_side_by_side_and_are_known_ahead() {
    let mut plan = Windows::new(7000, 3000, T, Mode::Plain);
    assert_eq!(plan.certain_next(), Some(Window { start: 3000, frames: 3000 }));
    assert_eq!(spans(&plan.settle(&[1, T + 7, T + 7])), [(0, 3000, 0..3)]);
    assert_eq!(plan.certain_next(), Some(Window { start: 6000, frames: 1000 }));
    plan.skip();
    assert_eq!(plan.certain_next(), None);
    assert_eq!(windows(7000).certain_next(), None, "timestamps decide");
}

#[test]
fn any_answers_lead_to_the_end_and_leave_no_frame_out() {
    let mut seed = 11_u64;
    let mut random = move |limit: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % limit
    };
    for _ in 0..200 {
        let frames = random(9000) as usize;
        let mut plan = windows(frames);
        let (mut reached, mut rounds) = (0, 0);
        while let Some(window) = plan.next() {
            assert!(window.start <= reached, "frames {reached}..{} are in no window", window.start);
            reached = reached.max(window.start + window.frames);
            let tokens: Vec<u32> = (0..random(12)).map(|_| 90 + random(200) as u32).collect();
            let settled = plan.settle(&tokens);
            assert!(settled.moved > 0);
            for span in &settled.spans {
                assert!(span.tokens.end <= tokens.len() && span.start <= window.start + 3000);
            }
            rounds += 1;
            assert!(rounds <= frames, "no end");
        }
        assert_eq!(reached.min(frames), frames);
    }
}
