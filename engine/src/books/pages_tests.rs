//! Tests of the page books.

use proptest::prelude::*;

use super::*;

fn key(number: u8) -> BlockKey {
    BlockKey([number; 32])
}

fn leased(books: &PageBooks, pages: usize) -> BlockTable {
    books.lease(pages).expect("free").table
}

#[test]
fn slots_follow_the_table() {
    let books = PageBooks::new(4, 16);
    let first = leased(&books, 1);
    let second = leased(&books, 2);
    assert_eq!((first.pages(), second.pages()), (&[0][..], &[1, 2][..]));
    assert_eq!((second.slot(0), second.slot(15), second.slot(16)), (16, 31, 32));
    assert!(books.lease(2).is_none(), "a lease is whole or not at all");
    assert_eq!(books.free(), 1);
    drop(first);
    assert_eq!(leased(&books, 2).pages(), &[0, 3]);
}

#[test]
fn a_published_block_is_shared_while_held_and_found_while_idle() {
    let books = PageBooks::new(4, 16);
    let first = leased(&books, 2);
    first.publish(0, key(1));
    first.publish(1, key(2));
    let second = books.lease_after(&[key(1), key(9)], 2).expect("free");
    assert_eq!((second.shared, second.table.pages()), (1, &[0, 2][..]));
    assert_eq!(books.free(), 1);
    drop(first);
    assert_eq!((books.free(), books.idle()), (2, 1), "page 1 is idle, page 0 has a holder left");
    drop(second);
    assert_eq!((books.free(), books.idle()), (4, 2));
    let third = books.lease_after(&[key(1), key(2)], 2).expect("idle");
    assert_eq!((third.shared, third.table.pages()), (2, &[0, 1][..]));
}

#[test]
fn the_least_recently_used_chain_goes_first_and_its_last_block_before_its_first() {
    let books = PageBooks::new(4, 16);
    for chain in [[1, 2], [3, 4]] {
        let table = leased(&books, 2);
        table.publish(0, key(chain[0]));
        table.publish(1, key(chain[1]));
    }
    drop(books.lease_after(&[key(1), key(2)], 2).expect("idle"));
    let evicted = |lease: Option<Lease>| lease.expect("idle").evicted.iter().map(|gone| gone.key).collect::<Vec<_>>();
    assert_eq!(evicted(books.lease(1)), [key(4)]);
    assert!(books.has(&key(3)) && books.has(&key(2)));
    // The found block is not pushed out for the pages behind it.
    assert_eq!(evicted(books.lease_after(&[key(3)], 4)), [key(2), key(1)]);
}

#[test]
fn a_lease_that_does_not_fit_leaves_everything_as_it_was() {
    let books = PageBooks::new(3, 16);
    let table = leased(&books, 1);
    table.publish(0, key(1));
    drop(table);
    let other = leased(&books, 1);
    assert!(books.lease_after(&[key(1)], 3).is_none());
    assert_eq!((books.free(), books.idle()), (2, 1));
    assert_eq!(books.audit([&other].into_iter()), Ok(()));
}

#[test]
fn an_audit_names_a_page_that_went_missing_or_came_twice() {
    let books = PageBooks::new(3, 16);
    let table = leased(&books, 1);
    assert_eq!(books.audit([&table].into_iter()), Ok(()));
    assert!(books.audit(std::iter::empty()).expect_err("page 0 is nowhere").contains("page 0 is held 0 times"));
    assert!(books.audit([&table, &table].into_iter()).expect_err("twice").contains("page 0 is held 2 times"));
    let other = PageBooks::new(9, 16);
    let foreign = leased(&other, 9);
    assert!(books.audit([&foreign].into_iter()).is_err());
}

proptest! {
    #[test]
    fn the_books_balance_whatever_is_leased_shared_and_returned(
        total in 0_usize..24,
        asks in prop::collection::vec((0_usize..8, 0_u8..12, any::<u16>()), 0..80),
    ) {
        let books = PageBooks::new(total, 4);
        let mut held: Vec<BlockTable> = Vec::new();
        for (pages, start, pick) in asks {
            if pick % 3 == 0 && !held.is_empty() {
                held.swap_remove(usize::from(pick) % held.len());
            } else {
                let keys: Vec<BlockKey> = (start..start + 4).map(key).collect();
                let free = books.free();
                match books.lease_after(&keys, pages) {
                    Some(lease) => {
                        prop_assert_eq!(lease.table.pages().len(), pages);
                        (0..pages.min(4)).for_each(|block| lease.table.publish(block, keys[block]));
                        held.push(lease.table);
                    }
                    // Some of its blocks may have been held by others already.
                    None => prop_assert!(pages > free),
                }
            }
            prop_assert_eq!(books.audit(held.iter()), Ok(()));
        }
        drop(held);
        prop_assert_eq!(books.free(), total);
    }
}
