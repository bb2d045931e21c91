//! Structured output: grammars over a model's vocabulary.
//!
//! Owns the compiling of a [`GrammarSpec`] and what follows one answer through it. Compiling is work for the caller's
//! thread, never the device's, and is kept: the second request with the same grammar gets the first one's. Knows no
//! tokenizer: a [`Vocabulary`] is bytes and a function. Invariant: every answer that ends by the grammar is a text of it,
//! whatever the logits say; a grammar that cannot go on is an error, never free text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::{EngineError, ErrorKind, Result};

/// Compiled grammars that are kept.
const KEPT: usize = 64;
/// Longest grammar, in bytes: compiling is bounded by limits of its own, reading is bounded here.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum GrammarSpec {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema accepts.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this Lark grammar, beginning at `start`.
    Lark(String),
}

impl GrammarSpec {
    fn grammar(&self) -> Result<TopLevelGrammar> {
        Ok(match self {
            Self::JsonObject => TopLevelGrammar::from_json_schema(json!({ "type": "object" })),
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            Self::Choice(texts) if texts.iter().all(String::is_empty) => {
                return Err(EngineError::new(ErrorKind::Malformed, "a choice needs at least one text"));
            }
            Self::Choice(texts) => {
                // A Lark string is a JSON string.
                let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        })
    }

    /// Equal for equal grammars.
    fn name(&self) -> String {
        match self {
            Self::JsonObject => "o".into(),
            Self::JsonSchema(schema) => format!("s{schema}"),
            Self::Regex(regex) => format!("r{regex}"),
            Self::Choice(texts) => format!("c{}", json!(texts)),
            Self::Lark(lark) => format!("l{lark}"),
        }
    }
}

/// How a tokenizer cuts bytes into tokens.
pub type Tokenise = Box<dyn Fn(&[u8]) -> Vec<u32> + Send + Sync>;

/// A vocabulary as grammars see it.
pub struct Vocabulary {
    /// Bytes that each token adds to a text; empty for one that a text cannot hold (special and unused tokens).
    pub tokens: Vec<Vec<u8>>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
    /// How the tokenizer itself would cut a text that stands inside another. `None` when that depends on what comes
    /// before; then only single tokens without an alternative are forced.
    pub tokenise: Option<Tokenise>,
}

struct Environment {
    trie: TokTrie,
    tokenise: Option<Tokenise>,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        match &self.tokenise {
            Some(tokenise) => self.trie.tokenize_with_greedy_fallback(bytes, |text| tokenise(text.as_bytes())),
            None => self.trie.greedy_tokenize(bytes),
        }
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.tokenise.is_some()
    }
}

/// Compiles grammars over one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    grammars: HashMap<String, (Grammar, u64)>,
    uses: u64,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Prepares a vocabulary.
    pub fn new(vocabulary: Vocabulary) -> Result<Self> {
        let Vocabulary { tokens, end_tokens, tokenise } = vocabulary;
        let size = tokens.len();
        let inside = |id: &u32| (*id as usize) < size;
        let (Some(&end), true) = (end_tokens.first(), end_tokens.iter().all(inside)) else {
            let detail = format!("end tokens {end_tokens:?} of a vocabulary of {size}: answers of a grammar need one");
            return Err(EngineError::new(ErrorKind::Unsupported, detail));
        };
        let count = u32::try_from(size).map_err(|_| internal("a vocabulary is too large"))?;
        let trie = TokTrie::from(&TokRxInfo::new(count, end), &tokens).with_eos_tokens(&end_tokens);
        let environment: TokEnv = Arc::new(Environment { trie, tokenise });
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| internal(&error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self { factory, kept: Mutex::default() })
    }

    /// Compiles a grammar, or finds it among those compiled before. Takes milliseconds: not for the device's thread.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Grammar> {
        let name = spec.name();
        if name.len() > MAX_GRAMMAR_BYTES {
            let detail = format!("a grammar of {} bytes; at most {MAX_GRAMMAR_BYTES} are taken", name.len());
            return Err(EngineError::new(ErrorKind::TooLarge, detail));
        }
        if let Some(grammar) = self.kept().find(&name) {
            return Ok(grammar);
        }
        let parser = self.factory.create_parser(spec.grammar()?);
        let refused =
            |why: String| EngineError::new(ErrorKind::Malformed, format!("the grammar cannot be used: {why}"));
        let mut matcher = Matcher::new(Ok(parser.map_err(|error| refused(error.to_string()))?));
        // The first mask finds what only shows in use, such as a grammar without any text.
        let first = matcher.compute_mask().map_err(|error| refused(error.to_string()))?;
        if first.is_zero() {
            return Err(refused("no text is allowed by it".into()));
        }
        let grammar = Grammar { template: Arc::new(Mutex::new(matcher)) };
        self.kept().keep(name, &grammar);
        Ok(grammar)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, name: &str) -> Option<Grammar> {
        self.uses += 1;
        let (grammar, used) = self.grammars.get_mut(name)?;
        *used = self.uses;
        Some(grammar.clone())
    }

    fn keep(&mut self, name: String, grammar: &Grammar) {
        self.grammars.insert(name, (grammar.clone(), self.uses));
        if self.grammars.len() > KEPT {
            let oldest = self.grammars.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| self.grammars.remove(&oldest));
        }
    }
}

/// A compiled grammar. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    template: Arc<Mutex<Matcher>>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.template, &other.template)
    }
}

impl Grammar {
    /// The state before an answer's first token, for a model of this many logits.
    pub(crate) fn begin(&self, vocabulary: usize) -> Result<GrammarState> {
        let matcher = self.template.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let mut state = GrammarState { matcher, mask: vec![0; vocabulary.div_ceil(32)], vocabulary };
        state.look();
        match state.fault() {
            None => Ok(state),
            Some(error) => Err(error),
        }
    }
}

/// Where one answer stands in its grammar.
pub(crate) struct GrammarState {
    matcher: Matcher,
    /// Tokens that may come next.
    mask: Vec<u32>,
    vocabulary: usize,
}

impl std::fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarState").finish_non_exhaustive()
    }
}

impl Clone for GrammarState {
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), mask: self.mask.clone(), vocabulary: self.vocabulary }
    }
}

impl GrammarState {
    pub(crate) fn mask(&self) -> &[u32] {
        &self.mask
    }

    pub(crate) fn push(&mut self, token: u32) {
        // A token that the mask forbids leaves the matcher in its error state, which `fault` reports.
        if self.matcher.consume_token(token).is_ok() && !self.matcher.is_stopped() {
            self.look();
        }
    }

    /// Tokens without an alternative. Forced bytes are cut as the tokenizer would; else a lone allowed token is taken.
    pub(crate) fn forced(&mut self, most: usize) -> Vec<u32> {
        if self.matcher.is_stopped() {
            return Vec::new();
        }
        let mut tokens = self.matcher.compute_ff_tokens();
        tokens.truncate(most);
        if tokens.is_empty() && most > 0 {
            tokens.extend(lone(&self.mask));
        }
        tokens
    }

    /// How many of these tokens may follow one another.
    pub(crate) fn allowed(&mut self, tokens: &[u32]) -> usize {
        if tokens.is_empty() || self.matcher.is_stopped() {
            return 0;
        }
        // A model may have logits for more tokens than its tokenizer knows, and a prompt may hold them.
        let size = self.matcher.tok_env().map_or(0, |env| env.tok_trie().vocab_size());
        let known = tokens.iter().take_while(|&&token| (token as usize) < size.min(self.vocabulary)).count();
        self.matcher.validate_tokens(&tokens[..known]).unwrap_or(0)
    }

    pub(crate) fn complete(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }

    pub(crate) fn fault(&self) -> Option<EngineError> {
        let why = self.matcher.get_error().or_else(|| {
            let stuck = !self.matcher.is_stopped() && self.mask.iter().all(|&word| word == 0);
            stuck.then(|| "no token may come next".to_owned())
        })?;
        Some(EngineError::new(ErrorKind::Unsupported, format!("the grammar cannot be followed any further: {why}")))
    }

    fn look(&mut self) {
        let Ok(mask) = self.matcher.compute_mask() else { return };
        let words = mask.as_slice();
        let shared = words.len().min(self.mask.len());
        self.mask[..shared].copy_from_slice(&words[..shared]);
        self.mask[shared..].fill(0);
        // A tokenizer may have more tokens than the model has logits.
        if !self.vocabulary.is_multiple_of(32)
            && let Some(last) = self.mask.last_mut()
        {
            *last &= (1 << (self.vocabulary % 32)) - 1;
        }
    }
}

/// The only token of a mask.
fn lone(mask: &[u32]) -> Option<u32> {
    let mut words = mask.iter().enumerate().filter(|(_, word)| **word != 0);
    let (at, word) = words.next()?;
    let single = word.count_ones() == 1 && words.next().is_none();
    single.then(|| u32::try_from(at * 32).ok().map(|first| first + word.trailing_zeros()))?
}

fn internal(detail: &str) -> EngineError {
    EngineError::new(ErrorKind::Internal, format!("grammars: {detail}"))
}

#[cfg(test)]
mod tests;
