//! Pages of one model's key/value memory.
//!
//! ```text
//! pool      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |        free: 1 4 7        held: all others
//! sequence A  table [2, 0]        position p lies in page table[p / page_tokens], slot p % page_tokens
//! sequence B  table [6, 3, 5]
//! ```
//!
//! Invariant, audited when the device is idle: free + held = total, and no page is in two places.

use std::cell::RefCell;
use std::rc::Rc;

/// The pool of one model. Lives on the device thread; clones are the same pool.
#[derive(Debug, Clone)]
pub(crate) struct PageBooks {
    free: Rc<RefCell<Vec<u32>>>,
    total: usize,
    page_tokens: usize,
}

impl PageBooks {
    /// A pool of `total` free pages.
    pub(crate) fn new(total: usize, page_tokens: usize) -> Self {
        // The lowest number is taken first: a young pool stays compact.
        let pages = (0..total).rev().map(|page| u32::try_from(page).expect("page numbers are 32-bit by layout"));
        Self { free: Rc::new(RefCell::new(pages.collect())), total, page_tokens }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn free(&self) -> usize {
        self.free.borrow().len()
    }

    /// A table of this many pages, or `None` when fewer are free. All or nothing, so two half-admitted sequences can
    /// never wait for each other.
    pub(crate) fn lease(&self, pages: usize) -> Option<BlockTable> {
        let mut free = self.free.borrow_mut();
        let from = free.len().checked_sub(pages)?;
        let taken = free.drain(from..).rev().collect();
        Some(BlockTable { pages: taken, books: self.clone() })
    }

    /// Checks that the tables in use and the free pages make up the pool, each page once. Says what is wrong.
    pub(crate) fn audit<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) -> Result<(), String> {
        let mut places = vec![0_u32; self.total];
        let held: Vec<u32> = tables.flat_map(|table| table.pages.iter().copied()).collect();
        let free = self.free.borrow();
        for &page in free.iter().chain(&held) {
            match places.get_mut(page as usize) {
                Some(count) => *count += 1,
                None => return Err(format!("page {page} is not of this pool of {}", self.total)),
            }
        }
        match places.iter().position(|&count| count != 1) {
            None => Ok(()),
            Some(page) => Err(format!(
                "page {page} is in {} places; {} free + {} held, {} in all",
                places[page],
                free.len(),
                held.len(),
                self.total
            )),
        }
    }
}

/// A sequence's pages in order of position: a lease on them.
#[derive(Debug)]
pub(crate) struct BlockTable {
    pages: Vec<u32>,
    books: PageBooks,
}

impl BlockTable {
    /// Page numbers in order of position.
    pub(crate) fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The slot of a position: `page * page_tokens + offset`.
    ///
    /// # Panics
    /// When the position is beyond the table's pages.
    pub(crate) fn slot(&self, position: usize) -> u32 {
        let tokens = self.books.page_tokens;
        let offset = u32::try_from(position % tokens).expect("an offset is smaller than a page");
        self.pages[position / tokens] * u32::try_from(tokens).expect("pages hold few tokens") + offset
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        self.books.free.borrow_mut().extend(self.pages.drain(..).rev());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_follow_the_table() {
        let books = PageBooks::new(4, 16);
        let first = books.lease(1).expect("free");
        let second = books.lease(2).expect("free");
        assert_eq!((first.pages(), second.pages()), (&[0][..], &[1, 2][..]));
        assert_eq!((second.slot(0), second.slot(15), second.slot(16)), (16, 31, 32));
        assert!(books.lease(2).is_none(), "a lease is whole or not at all");
        assert_eq!(books.free(), 1);
        drop(first);
        assert_eq!(books.lease(2).expect("free again").pages(), &[0, 3]);
    }

    #[test]
    fn an_audit_names_a_page_that_went_missing_or_came_twice() {
        let books = PageBooks::new(3, 16);
        let table = books.lease(1).expect("free");
        assert_eq!(books.audit([&table].into_iter()), Ok(()));
        assert!(books.audit(std::iter::empty()).expect_err("page 0 is nowhere").contains("page 0 is in 0 places"));
        assert!(books.audit([&table, &table].into_iter()).expect_err("twice").contains("page 0 is in 2 places"));
        let other = PageBooks::new(9, 16);
        let foreign = other.lease(9).expect("free");
        assert!(books.audit([&foreign].into_iter()).is_err());
    }

    proptest! {
        #[test]
        fn free_and_held_always_make_up_the_pool(total in 0_usize..40, asks in prop::collection::vec((0_usize..12, any::<u16>()), 0..60)) {
            let books = PageBooks::new(total, 4);
            let mut held: Vec<BlockTable> = Vec::new();
            for (pages, pick) in asks {
                if pick % 3 == 0 && !held.is_empty() {
                    held.swap_remove(usize::from(pick) % held.len());
                } else {
                    let free = books.free();
                    match books.lease(pages) {
                        Some(table) => held.push(table),
                        None => prop_assert!(pages > free),
                    }
                }
                prop_assert_eq!(books.audit(held.iter()), Ok(()));
            }
            drop(held);
            prop_assert_eq!(books.free(), total);
        }
    }
}
