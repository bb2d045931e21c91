//! The books of device memory: pages of keys and values, and encoder outputs.
//!
//! Everything counted is a lease that returns on drop, so there is no second place that must remember to give back.
//! The books know numbers only: which page, how many bytes. Tensors lie beside them, in the device.
//!
//! Issue 3 puts the prefix cache here: a page whose tokens are all known gets a key, the hash of the key before it, its
//! token ids and the identities of the media its rows stand for; a lease then starts with shared pages.

mod encoded;
mod pages;

pub(crate) use encoded::EncodedBooks;
pub(crate) use pages::{BlockTable, PageBooks};
