//! Encoder outputs by medium, budgeted in bytes.
//!
//! An output that a ticket holds stays; one that nobody holds stays while it fits the budget, the least recently used
//! going first. What tickets hold is bounded elsewhere (the byte account of media), so held outputs do not count here:
//! otherwise a burst of large media would push out everything that could be hit again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Weak;

/// Whether anyone still holds an output.
pub(crate) trait Held {
    /// True while a holder lives.
    fn held(&self) -> bool;
}

impl<T> Held for Weak<T> {
    fn held(&self) -> bool {
        self.strong_count() > 0
    }
}

/// The books: outputs `T` under keys `K`, leased by `L`.
#[derive(Debug)]
pub(crate) struct EncodedBooks<K, L, T> {
    entries: HashMap<K, Entry<L, T>>,
    /// Bytes that outputs without a holder may take.
    budget: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry<L, T> {
    lease: L,
    output: T,
    bytes: usize,
    used: u64,
}

impl<K: Copy + Eq + Hash, L: Held, T> EncodedBooks<K, L, T> {
    pub(crate) fn new(budget: usize) -> Self {
        Self { entries: HashMap::new(), budget, uses: 0 }
    }

    /// Enters an output; it replaces one of the same key.
    pub(crate) fn insert(&mut self, key: K, lease: L, (output, bytes): (T, usize)) {
        self.uses += 1;
        self.entries.insert(key, Entry { lease, output, bytes, used: self.uses });
    }

    /// The output of this key. Counts as a use.
    pub(crate) fn get(&mut self, key: &K) -> Option<&T> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        entry.used = self.uses;
        Some(&entry.output)
    }

    /// The output of this key, without counting as a use.
    pub(crate) fn peek(&self, key: &K) -> Option<&T> {
        self.entries.get(key).map(|entry| &entry.output)
    }

    /// Gives an output to a new holder. Its bytes, or `None` when the output is not here.
    pub(crate) fn adopt(&mut self, key: &K, lease: L) -> Option<usize> {
        self.uses += 1;
        let entry = self.entries.get_mut(key)?;
        entry.lease = lease;
        entry.used = self.uses;
        Some(entry.bytes)
    }

    /// Drops outputs that nobody holds, least recently used first, until the rest fits the budget.
    pub(crate) fn evict(&mut self) {
        let idle = self.entries.iter().filter(|(_, entry)| !entry.lease.held());
        let mut idle: Vec<(u64, K, usize)> = idle.map(|(key, entry)| (entry.used, *key, entry.bytes)).collect();
        let mut bytes: usize = idle.iter().map(|(_, _, bytes)| bytes).sum();
        if bytes <= self.budget {
            return;
        }
        idle.sort_unstable_by_key(|&(used, ..)| used);
        for (_, key, freed) in idle {
            if bytes <= self.budget {
                break;
            }
            self.entries.remove(&key);
            bytes -= freed;
        }
    }

    /// Bytes of all outputs, held or not.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.values().map(|entry| entry.bytes).sum()
    }

    /// Bytes of the outputs that nobody holds.
    #[cfg(test)]
    fn idle_bytes(&self) -> usize {
        self.entries.values().filter(|entry| !entry.lease.held()).map(|entry| entry.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn held_outputs_stay_and_the_least_used_idle_one_goes_first() {
        let mut books: EncodedBooks<u8, Weak<()>, &str> = EncodedBooks::new(20);
        let holder = Arc::new(());
        books.insert(1, Arc::downgrade(&holder), ("one", 15));
        books.insert(2, Weak::new(), ("two", 10));
        books.insert(3, Weak::new(), ("three", 10));
        books.evict();
        assert_eq!(books.bytes(), 35, "two idle outputs fit the budget, the held one is not in it");
        books.get(&2);
        books.insert(4, Weak::new(), ("four", 10));
        books.evict();
        assert_eq!((books.peek(&3), books.peek(&2)), (None, Some(&"two")));
        drop(holder);
        books.evict();
        assert_eq!((books.peek(&1), books.bytes()), (None, 20));
    }

    #[test]
    fn a_new_holder_keeps_an_idle_output() {
        let mut books: EncodedBooks<u8, Weak<()>, ()> = EncodedBooks::new(0);
        let holder = Arc::new(());
        assert_eq!(books.adopt(&1, Arc::downgrade(&holder)), None);
        books.insert(1, Weak::new(), ((), 7));
        assert_eq!(books.adopt(&1, Arc::downgrade(&holder)), Some(7));
        books.evict();
        assert!(books.peek(&1).is_some());
    }

    proptest! {
        #[test]
        fn idle_bytes_never_exceed_the_budget(budget in 0_usize..100, steps in prop::collection::vec((0_u8..8, 0_usize..40, any::<bool>()), 0..50)) {
            let mut books: EncodedBooks<u8, Weak<()>, ()> = EncodedBooks::new(budget);
            let mut holders = Vec::new();
            for (key, bytes, hold) in steps {
                let lease = if hold {
                    holders.push(Arc::new(()));
                    holders.last().map_or_else(Weak::new, Arc::downgrade)
                } else {
                    holders.clear();
                    Weak::new()
                };
                books.insert(key, lease, ((), bytes));
                books.evict();
                prop_assert!(books.idle_bytes() <= budget);
            }
        }
    }
}
