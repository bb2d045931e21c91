//! The text stage: conversations to tokens, tokens to text.
//!
//! ```text
//! turns -> guard -> chat template -> tokenizer -> layout (token runs and media, in order)
//! tokens -> detokeniser -> stop texts -> deltas
//! ```
//!
//! Invariant: only the template makes special tokens. What a person typed is text, whatever it looks like.

mod chat;
mod conversation;
mod detokenise;
mod gguf;
mod guard;
mod jinja;
mod stop;
mod strftime;
mod template;
mod tokenizer;
mod vocabulary;

pub use chat::{Piece, TextModel};
pub use conversation::{Content, Speaker, Turn};
pub use detokenise::Detokeniser;
pub use stop::{Scan, StopTexts};
pub use template::ChatTemplate;
pub use tokenizer::TextTokenizer;
