//! Where the windows of a clip lie: a pure state machine from answers to seeks.
//!
//! ```text
//! frames   0 ........... 3000 ........... 6000 ..
//! window   [  hello. |<last pair>  hal]          the half sentence is thrown away,
//!                    [ half a sentence. ...      the next window starts at the last pair of timestamps
//! ```
//!
//! A timestamp closes a segment and, doubled, opens the next. An answer that ends in a single timestamp says that nothing
//! follows in its window. Invariant: every window starts behind the one before it, so the plan ends.

use std::ops::Range;

/// Frames in one timestamp step (20 ms of 10 ms frames).
const STEP: usize = 2;

/// Whether timestamps guide the seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Segments have times and the next window starts at the last complete one's end.
    #[default]
    Timestamps,
    /// One segment a window, windows side by side.
    Plain,
}

/// A stretch of the clip to decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// First frame.
    pub start: usize,
    /// Frames of the clip in it; the rest of the encoder's window is padding.
    pub frames: usize,
}

/// A segment found in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// First frame of the clip.
    pub start: usize,
    /// Frame behind the last.
    pub end: usize,
    /// Its tokens in the answer.
    pub tokens: Range<usize>,
}

/// What an answer gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Segments in order.
    pub spans: Vec<Span>,
    /// Frames that the seek moved.
    pub moved: usize,
}

/// The plan of a clip's windows.
#[derive(Debug, Clone)]
pub struct Windows {
    /// Frames of the clip.
    frames: usize,
    /// Most frames in a window.
    width: usize,
    first_timestamp: u32,
    mode: Mode,
    seek: usize,
}

impl Windows {
    /// A plan for `frames` frames in windows of `width`; tokens from `first_timestamp` on are timestamps.
    pub fn new(frames: usize, width: usize, first_timestamp: u32, mode: Mode) -> Self {
        Self { frames, width, first_timestamp, mode, seek: 0 }
    }

    /// The window to decode now; `None` when the clip is done. It stays the same until it is settled or skipped.
    pub fn next(&self) -> Option<Window> {
        self.at(self.seek)
    }

    /// The window after this one, when it does not depend on this one's answer.
    pub fn certain_next(&self) -> Option<Window> {
        match self.mode {
            Mode::Plain => self.at(self.seek + self.next()?.frames),
            Mode::Timestamps => None,
        }
    }

    fn at(&self, start: usize) -> Option<Window> {
        let frames = self.frames.checked_sub(start).filter(|&left| left > 0)?.min(self.width);
        Some(Window { start, frames })
    }

    /// Leaves a silent window behind.
    pub fn skip(&mut self) {
        self.seek += self.next().map_or(0, |window| window.frames);
    }

    /// Cuts the current window's answer (without its end token) into segments and moves on.
    pub fn settle(&mut self, tokens: &[u32]) -> Settled {
        let Some(window) = self.next() else { return Settled { spans: Vec::new(), moved: 0 } };
        let (spans, moved) = match self.mode {
            Mode::Plain => {
                (vec![Span { start: window.start, end: window.start + window.frames, tokens: 0..tokens.len() }], 0)
            }
            Mode::Timestamps => self.by_timestamps(window, tokens),
        };
        // An answer that would not move the seek takes the whole window with it.
        let moved = if moved == 0 { window.frames } else { moved };
        self.seek += moved;
        Settled { spans, moved }
    }

    /// Segments, and how far the last pair of timestamps moves the seek (0: the whole window).
    fn by_timestamps(&self, window: Window, tokens: &[u32]) -> (Vec<Span>, usize) {
        let step = |token: u32| token.checked_sub(self.first_timestamp).map(|step| step as usize * STEP);
        let is = |at: usize| step(tokens[at]).is_some();
        let count = tokens.len();
        // Where a segment's first token lies: the second of each pair.
        let mut cuts: Vec<usize> = (1..count).filter(|&at| is(at - 1) && is(at)).collect();
        let Some(&last_pair) = cuts.last() else {
            let last = tokens.iter().rev().find_map(|&token| step(token)).filter(|&frames| frames > 0);
            let end = window.start + last.unwrap_or(window.frames);
            return (vec![Span { start: window.start, end, tokens: 0..count }], 0);
        };
        let nothing_follows = is(count - 1) && count >= 2 && !is(count - 2);
        if nothing_follows {
            cuts.push(count);
        }
        let mut spans = Vec::with_capacity(cuts.len());
        let mut from = 0;
        for (index, &cut) in cuts.iter().enumerate() {
            let time = |at: usize| step(tokens[at]).unwrap_or(0);
            let (start, end) = (window.start + time(from), window.start + time(cut - 1));
            // The last of an unfinished answer keeps both timestamps of its pair.
            let both = index + 1 == cuts.len() && !nothing_follows;
            spans.push(Span { start, end, tokens: from..cut + usize::from(both) });
            from = cut;
        }
        let moved = if nothing_follows { 0 } else { step(tokens[last_pair - 1]).unwrap_or(0) };
        (spans, moved)
    }
}

#[cfg(test)]
mod tests;
