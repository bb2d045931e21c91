//! Identity of a block of keys and values: a hash over everything that its rows depend on.
//!
//! ```text
//! root = H(clip attended to) -> key 0 = H(root, rows 0..16) -> key 1 = H(key 0, rows 16..32) -> ...
//! row  = a token, or (identity and shape of a medium, row of its encoder output)
//! ```
//!
//! A key stands for its block **and all blocks before it**, because keys and values depend on every earlier row. It is
//! 256 bits wide and nothing in it is shortened: two prompts share a block only when all of their rows up to its end are
//! the same, media by content, size and processor settings included. Knows no page and no tensor.

use crate::device::shared::{MediaKey, MediaShape};

/// Identity of a full block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockKey(pub(crate) [u8; 32]);

/// The keys of a sequence's full blocks, grown row by row.
#[derive(Debug, Clone)]
pub(crate) struct BlockChain {
    keys: Vec<BlockKey>,
    open: blake3::Hasher,
    rows: usize,
    page_tokens: usize,
}

impl BlockChain {
    /// The chain of a sequence that attends to this clip, if any. `model` keeps the disk tier's keys apart.
    pub(crate) fn new(page_tokens: usize, model: &[u8; 32], cross: Option<(MediaKey, MediaShape)>) -> Self {
        let mut root = blake3::Hasher::new();
        root.update(model).update(&(page_tokens as u64).to_le_bytes());
        if let Some((key, shape)) = cross {
            root.update(&key.id.0).update(&shape_bytes(shape));
        }
        Self { keys: Vec::new(), open: follow(root.finalize().as_bytes()), rows: 0, page_tokens }
    }

    /// Adds a token.
    pub(crate) fn push(&mut self, token: u32) {
        self.open.update(&[0]).update(&token.to_le_bytes());
        self.close();
    }

    /// Adds the rows of a medium.
    pub(crate) fn push_medium(&mut self, key: MediaKey, shape: MediaShape) {
        for row in 0..shape.tokens() {
            self.open.update(&[1]).update(&key.id.0).update(&shape_bytes(shape)).update(&(row as u64).to_le_bytes());
            self.close();
        }
    }

    /// Keys of the full blocks, first to last.
    pub(crate) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    fn close(&mut self) {
        self.rows += 1;
        if self.rows.is_multiple_of(self.page_tokens) {
            let key = *self.open.finalize().as_bytes();
            self.keys.push(BlockKey(key));
            self.open = follow(&key);
        }
    }
}

/// The hash of a block after this key.
fn follow(key: &[u8; 32]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key);
    hasher
}

/// Every shape has its own bytes, of one length.
fn shape_bytes(shape: MediaShape) -> [u8; 33] {
    let (tag, numbers) = match shape {
        MediaShape::Image(grid, rows) => (0, [grid.t, grid.h, grid.w, rows]),
        MediaShape::Audio(tokens) => (1, [tokens, 0, 0, 0]),
        MediaShape::Cross(frames) => (2, [frames, 0, 0, 0]),
    };
    let mut bytes = [tag; 33];
    for (at, number) in numbers.into_iter().enumerate() {
        bytes[1 + 8 * at..9 + 8 * at].copy_from_slice(&(number as u64).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Grid, MediaId};

    fn chain(text: &[u32], image: Option<(u8, usize)>, cross: Option<u8>) -> Vec<BlockKey> {
        let key = |id| MediaKey { model: 0, id: MediaId([id; 32]) };
        let cross = cross.map(|id| (key(id), MediaShape::Cross(10)));
        let mut chain = BlockChain::new(4, &[7; 32], cross);
        text.iter().for_each(|&token| chain.push(token));
        if let Some((id, width)) = image {
            chain.push_medium(key(id), MediaShape::Image(Grid { t: 1, h: 16 / width, w: width }, 4));
        }
        chain.keys().to_vec()
    }

    #[test]
    fn a_key_covers_every_row_up_to_its_end_and_none_after() {
        let whole = chain(&[1, 2, 3, 4, 5, 6, 7, 8], None, None);
        assert_eq!(whole.len(), 2);
        assert_eq!(chain(&[1, 2, 3, 4, 5, 6, 7], None, None), whole[..1]);
        let other = chain(&[1, 2, 3, 4, 5, 6, 7, 9], None, None);
        assert_eq!((other[0] == whole[0], other[1] == whole[1]), (true, false));
        let other = chain(&[9, 2, 3, 4, 5, 6, 7, 8], None, None);
        assert!(other[0] != whole[0] && other[1] != whole[1], "a block depends on the blocks before it");
    }

    #[test]
    fn media_never_share_a_block_unless_identity_and_shape_agree() {
        let picture = chain(&[1, 2], Some((3, 4)), None);
        assert_eq!(chain(&[1, 2], Some((3, 4)), None), picture);
        assert_ne!(chain(&[1, 2], Some((4, 4)), None), picture, "another picture");
        assert_ne!(chain(&[1, 2], Some((3, 2)), None), picture, "the same bytes in another size");
        assert_ne!(chain(&[1, 2, 0, 0, 0, 0], None, None)[0], picture[0], "tokens of value 0 are no picture");
        assert_ne!(chain(&[1, 2, 3, 4], None, Some(1)), chain(&[1, 2, 3, 4], None, Some(2)));
        assert_ne!(chain(&[1, 2, 3, 4], None, Some(1)), chain(&[1, 2, 3, 4], None, None));
    }
}
