//! The order in which the vision tower sees patches: window by window.
//!
//! Patches arrive merge block by merge block (2x2 patches that become one token lie together). Windowed layers attend
//! within squares of merged patches, so the tower works in window order and puts its tokens back at the end.
//!
//! ```text
//! tokens of a 3x5 grid, windows of 2:     order in the tower
//!   0  1 |  2  3 |  4                     0 1 5 6 | 2 3 7 8 | 4 9 | 10 11 | 12 13 | 14
//!   5  6 |  7  8 |  9
//!  ------+-------+---
//!  10 11 | 12 13 | 14
//! ```

use std::ops::Range;

use crate::media::Grid;

/// Order and windows of one picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WindowOrder {
    /// Token at every place of the tower's order.
    pub(super) tokens: Vec<u32>,
    /// Places of each window.
    pub(super) windows: Vec<Range<usize>>,
}

impl WindowOrder {
    /// Windows of `window` tokens on a side over a grid of patches merged by `merge`.
    pub(super) fn new(grid: Grid, merge: usize, window: usize) -> Self {
        let (height, width) = (grid.h / merge, grid.w / merge);
        let mut order = Self { tokens: Vec::with_capacity(grid.t * height * width), windows: Vec::new() };
        for frame in 0..grid.t {
            for top in (0..height).step_by(window) {
                for left in (0..width).step_by(window) {
                    let start = order.tokens.len();
                    for row in top..top.saturating_add(window).min(height) {
                        let columns = left..left.saturating_add(window).min(width);
                        order.tokens.extend(columns.map(|column| ((frame * height + row) * width + column) as u32));
                    }
                    order.windows.push(start..order.tokens.len());
                }
            }
        }
        order
    }

    /// Place of every token: the way back.
    pub(super) fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.tokens.len()];
        for (place, &token) in self.tokens.iter().enumerate() {
            places[token as usize] = place as u32;
        }
        places
    }
}

/// Row and column of every patch, in the order in which patches arrive.
pub(super) fn patch_positions(grid: Grid, merge: usize) -> Vec<[u32; 2]> {
    let mut positions = Vec::with_capacity(grid.patches());
    for _ in 0..grid.t {
        for top in (0..grid.h).step_by(merge) {
            for left in (0..grid.w).step_by(merge) {
                for row in top..top + merge {
                    positions.extend((left..left + merge).map(|column| [row as u32, column as u32]));
                }
            }
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_the_drawing() {
        let order = WindowOrder::new(Grid { t: 1, h: 6, w: 10 }, 2, 2);
        assert_eq!(order.tokens, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(order.windows, [0..4, 4..8, 8..10, 10..12, 12..14, 14..15]);
        let places = order.places();
        for (token, &place) in places.iter().enumerate() {
            assert_eq!(order.tokens[place as usize] as usize, token);
        }
    }

    #[test]
    fn patches_arrive_merge_block_by_merge_block() {
        let positions = patch_positions(Grid { t: 1, h: 2, w: 4 }, 2);
        assert_eq!(positions, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]);
    }
}
