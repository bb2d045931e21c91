//! Three-component positions of a prompt (the reference's `get_rope_index`, for pictures and clips).
//!
//! ```text
//! text, text, picture of 1x2x2 tokens, clip of 2, text
//! time    0 1 | 2 2 2 2 | 4 5 | 6        each part starts after the largest position so far
//! height  0 1 | 2 2 3 3 | 4 5 | 6
//! width   0 1 | 2 3 2 3 | 4 5 | 6
//! ```

use crate::families::{Positions, PromptPart};

/// Positions of a prompt's rows. `merge` patches on a side make a token; frames of a picture sequence, one a second, are
/// `per_second` apart.
pub(crate) fn positions(parts: &[PromptPart], merge: usize, per_second: u32) -> Positions {
    let mut positions = Positions { rows: Vec::new(), next: 0 };
    for part in parts {
        let start = positions.next;
        match *part {
            PromptPart::Text(tokens) | PromptPart::Audio(tokens) => {
                positions.rows.extend((start..start + tokens as u32).map(|position| [position; 3]));
                positions.next += tokens as u32;
            }
            PromptPart::Image(grid) => {
                let (t, h, w) = (grid.t as u32, (grid.h / merge) as u32, (grid.w / merge) as u32);
                for frame in 0..t {
                    for row in 0..h {
                        positions
                            .rows
                            .extend((0..w).map(|column| [start + frame * per_second, start + row, start + column]));
                    }
                }
                if t * h * w > 0 {
                    positions.next += ((t - 1) * per_second).max(h - 1).max(w - 1) + 1;
                }
            }
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Grid;

    #[test]
    fn the_drawing() {
        let grid = Grid { t: 1, h: 4, w: 4 };
        let parts = [PromptPart::Text(2), PromptPart::Image(grid), PromptPart::Audio(2), PromptPart::Text(1)];
        let got = positions(&parts, 2, 25);
        let axis = |i: usize| got.rows.iter().map(|row| row[i]).collect::<Vec<_>>();
        assert_eq!(axis(0), [0, 1, 2, 2, 2, 2, 4, 5, 6]);
        assert_eq!(axis(1), [0, 1, 2, 2, 3, 3, 4, 5, 6]);
        assert_eq!(axis(2), [0, 1, 2, 3, 2, 3, 4, 5, 6]);
        assert_eq!(got.next, 7);
    }
}
