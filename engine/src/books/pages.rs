//! Pages of one model's key/value memory, and which of them can be found again by what they hold.
//!
//! ```text
//! pool      | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |        free: 1 4      idle: 7 (found by its key, held by nobody)
//! sequence A  table [2, 0]        position p lies in page table[p / page_tokens], slot p % page_tokens
//! sequence B  table [2, 3, 5]     shares page 2: its first block is A's first block
//! ```
//!
//! A page is free, held by one or more tables, or idle: full, known by the [`BlockKey`] of its content, and kept until its
//! room is needed, least recently used first. A held page with a key is never written again, so sharing needs no copies.
//!
//! Invariant, audited when the device is idle: free + idle + held = total, every holder counted once.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::prefix::BlockKey;

/// The pool of one model. Lives on the device thread; clones are the same pool.
#[derive(Debug, Clone)]
pub(crate) struct PageBooks {
    pool: Rc<RefCell<Pool>>,
    total: usize,
    page_tokens: usize,
}

#[derive(Debug)]
struct Pool {
    free: Vec<u32>,
    pages: Vec<Page>,
    found: HashMap<BlockKey, u32>,
    /// Idle pages by the time of their last use.
    idle: BTreeMap<u64, u32>,
    uses: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    holders: u32,
    key: Option<BlockKey>,
    /// Where it stands in `idle`, while it does.
    used: u64,
}

/// What a lease pushed out: the content of `page` under `key` is lost at the next write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) key: BlockKey,
    pub(crate) page: u32,
}

impl PageBooks {
    /// A pool of `total` free pages.
    pub(crate) fn new(total: usize, page_tokens: usize) -> Self {
        // The lowest number is taken first: a young pool stays compact.
        let free = (0..total).rev().map(|page| u32::try_from(page).expect("page numbers are 32-bit by layout"));
        let pool = Pool {
            free: free.collect(),
            pages: vec![Page::default(); total],
            found: HashMap::new(),
            idle: BTreeMap::new(),
            uses: 0,
        };
        Self { pool: Rc::new(RefCell::new(pool)), total, page_tokens }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Pages that a lease can have: free and idle ones.
    pub(crate) fn free(&self) -> usize {
        let pool = self.pool.borrow();
        pool.free.len() + pool.idle.len()
    }

    /// Pages that nobody holds and that can be found by their content.
    pub(crate) fn idle(&self) -> usize {
        self.pool.borrow().idle.len()
    }

    /// Whether a block can be found.
    #[cfg(test)]
    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.pool.borrow().found.contains_key(key)
    }

    /// A table of this many pages, or `None` when fewer can be had. All or nothing, so two half-admitted sequences can
    /// never wait for each other.
    pub(crate) fn lease(&self, pages: usize) -> Option<Lease> {
        self.lease_after(&[], pages)
    }

    /// Like [`PageBooks::lease`]; the table begins with the pages of as many of these blocks as are found in a row.
    pub(crate) fn lease_after(&self, blocks: &[BlockKey], pages: usize) -> Option<Lease> {
        let mut pool = self.pool.borrow_mut();
        let found: Vec<u32> = blocks.iter().take(pages).map_while(|key| pool.found.get(key).copied()).collect();
        // Holding the found ones first keeps them from being pushed out for the rest.
        found.iter().for_each(|&page| pool.hold(page));
        let mut table = BlockTable { pages: found, books: self.clone() };
        let shared = table.pages.len();
        if pages - shared > pool.free.len() + pool.idle.len() {
            drop(pool);
            return None;
        }
        let mut evicted = Vec::new();
        while table.pages.len() < pages {
            let page = match pool.free.pop() {
                Some(page) => page,
                None => {
                    let gone = pool.evict().expect("free and idle pages were counted above");
                    evicted.push(gone);
                    gone.page
                }
            };
            pool.hold(page);
            table.pages.push(page);
        }
        Some(Lease { table, shared, evicted })
    }

    /// Checks that the tables in use, the idle and the free pages make up the pool, each as often as the books say. Says
    /// what is wrong.
    pub(crate) fn audit<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) -> Result<(), String> {
        let mut places = vec![0_u32; self.total];
        for &page in tables.flat_map(|table| &table.pages) {
            match places.get_mut(page as usize) {
                Some(count) => *count += 1,
                None => return Err(format!("page {page} is not of this pool of {}", self.total)),
            }
        }
        self.pool.borrow().audit(&places)
    }
}

impl Pool {
    fn hold(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        if state.holders == 0 && state.key.is_some() {
            self.idle.remove(&state.used);
        }
        state.holders += 1;
    }

    fn release(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        state.holders -= 1;
        if state.holders > 0 {
            return;
        }
        if state.key.is_some() {
            self.uses += 1;
            state.used = self.uses;
            self.idle.insert(self.uses, page);
        } else {
            self.free.push(page);
        }
    }

    /// Forgets the idle page that was used least recently.
    fn evict(&mut self) -> Option<Evicted> {
        let (_, page) = self.idle.pop_first()?;
        let key = self.pages[page as usize].key.take()?;
        self.found.remove(&key);
        Some(Evicted { key, page })
    }

    fn audit(&self, places: &[u32]) -> Result<(), String> {
        let mut free = vec![0_u32; places.len()];
        self.free.iter().chain(self.idle.values()).for_each(|&page| free[page as usize] += 1);
        for (page, state) in self.pages.iter().enumerate() {
            let (held, free) = (places[page], free[page]);
            if held != state.holders || free != u32::from(held == 0) {
                let holders = state.holders;
                return Err(format!("page {page} is held {held} times, not {holders}, and free or idle {free} times"));
            }
            let found = state.key.map(|key| self.found.get(&key).copied());
            if found.is_some_and(|found| found != u32::try_from(page).ok()) {
                return Err(format!("page {page} is not found by its own key"));
            }
        }
        let keyed = self.pages.iter().filter(|page| page.key.is_some()).count();
        if keyed != self.found.len() {
            return Err(format!("{} blocks can be found in {keyed} pages", self.found.len()));
        }
        Ok(())
    }
}

/// A table with what getting it meant.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) table: BlockTable,
    /// Blocks at its start that hold their content already.
    pub(crate) shared: usize,
    /// Blocks that had to go for it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the host tier takes them"))]
    pub(crate) evicted: Vec<Evicted>,
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

    /// Lets others find a full block by its content. Of two pages with the same content the first one is found.
    pub(crate) fn publish(&self, block: usize, key: BlockKey) {
        let page = self.pages[block];
        let mut pool = self.books.pool.borrow_mut();
        if pool.pages[page as usize].key.is_none() && !pool.found.contains_key(&key) {
            pool.pages[page as usize].key = Some(key);
            pool.found.insert(key, page);
        }
    }
}

impl Drop for BlockTable {
    fn drop(&mut self) {
        let mut pool = self.books.pool.borrow_mut();
        // Last block first: a block without those before it is of no use, so it should go before them.
        self.pages.drain(..).rev().for_each(|page| pool.release(page));
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
