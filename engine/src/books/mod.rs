//! The books of device memory: pages of keys and values, and encoder outputs.
//!
//! Everything counted is a lease that returns on drop, so there is no second place that must remember to give back.
//! The books know numbers only: which page, how many bytes. Tensors lie beside them, in the device.
//!
//! The prefix cache is part of the page books: a full page gets a key, the hash of the key before it and of all that its
//! rows stand for, and a lease then starts with shared pages.

mod encoded;
mod pages;
mod prefix;

pub(crate) use encoded::EncodedBooks;
pub(crate) use pages::{BlockTable, Lease, PageBooks};
pub(crate) use prefix::{BlockChain, BlockKey};
