//! Grammars over a vocabulary of single bytes, a few words and an end token.

use super::*;

const END: u32 = 260;
const WORDS: [&str; 4] = ["true", "\"name\"", "\": ", "ab"];

fn grammars(canonical: bool) -> Grammars {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.extend(WORDS.iter().map(|word| word.as_bytes().to_vec()));
    tokens.push(Vec::new());
    let by_bytes: Tokenise = Box::new(|bytes| bytes.iter().map(|&byte| u32::from(byte)).collect());
    Grammars::new(Vocabulary { tokens, end_tokens: vec![END], tokenise: canonical.then_some(by_bytes) }).expect("valid")
}

fn state(spec: &GrammarSpec) -> GrammarState {
    grammars(false).compile(spec).expect("compiles").begin(261).expect("begins")
}

fn allowed(state: &GrammarState) -> Vec<u32> {
    (0..261).filter(|&token| state.mask()[token as usize / 32] >> (token % 32) & 1 == 1).collect()
}

#[test]
fn only_continuations_and_the_end_are_allowed() {
    let mut state = state(&GrammarSpec::Regex("ab*".into()));
    let (a, b) = (u32::from(b'a'), u32::from(b'b'));
    assert_eq!(allowed(&state), [a, 259], "a, and the word ab");
    state.push(a);
    assert_eq!(allowed(&state), [b, END]);
    state.push(b);
    assert_eq!((allowed(&state), state.complete(), state.fault().is_none()), (vec![b, END], false, true));
    state.push(u32::from(b'c'));
    assert!(state.fault().is_some(), "a forbidden token is a fault, not free text");
}

#[test]
fn a_finished_text_completes_the_answer() {
    let mut state = state(&GrammarSpec::Choice(vec!["yes".into(), "no \"x\"".into()]));
    assert_eq!(allowed(&state), [u32::from(b'n'), u32::from(b'y')]);
    b"yes".iter().for_each(|&byte| state.push(u32::from(byte)));
    assert!(state.complete() && state.fault().is_none());
    assert!(state.forced(8).is_empty());
}

#[test]
fn what_has_no_alternative_is_forced() {
    let spec = GrammarSpec::Choice(vec!["yes".into(), "no".into()]);
    let canonical = grammars(true).compile(&spec).expect("compiles");
    let mut whole = canonical.begin(261).expect("begins");
    assert!(whole.forced(8).is_empty(), "there is a choice");
    whole.push(u32::from(b'y'));
    assert_eq!(whole.forced(8), [u32::from(b'e'), u32::from(b's')]);
    assert_eq!(whole.forced(1), [u32::from(b'e')]);
    let mut single = grammars(false).compile(&spec).expect("compiles").begin(261).expect("begins");
    single.push(u32::from(b'y'));
    assert_eq!(single.forced(8), [u32::from(b'e')], "one token at a time where the tokenizer is not known");
}

#[test]
fn a_schema_is_followed_and_bits_beyond_the_logits_are_clear() {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "boolean" } },
        "required": ["name"], "additionalProperties": false });
    let grammar = grammars(false).compile(&GrammarSpec::JsonSchema(schema)).expect("compiles");
    let mut state = grammar.begin(256).expect("begins");
    b"{\"name\":true}".iter().for_each(|&byte| state.push(u32::from(byte)));
    assert!(state.complete());
    assert!(grammar.begin(40).expect_err("no brace among 40 logits").message.contains("no token may come next"));
}

#[test]
fn grammars_are_compiled_once_and_bad_ones_refused() {
    let grammars = grammars(false);
    let object = grammars.compile(&GrammarSpec::JsonObject).expect("compiles");
    assert!(object == grammars.compile(&GrammarSpec::JsonObject).expect("kept"));
    assert!(object != grammars.compile(&GrammarSpec::Regex("a+".into())).expect("compiles"));
    let refused = |spec| grammars.compile(&spec).map(drop).expect_err("refused").kind;
    assert_eq!(refused(GrammarSpec::Regex("a(".into())), ErrorKind::Malformed);
    assert_eq!(refused(GrammarSpec::Lark("start: nowhere".into())), ErrorKind::Malformed);
    assert_eq!(refused(GrammarSpec::JsonSchema(json!({ "type": "nonsense" }))), ErrorKind::Malformed);
    assert_eq!(refused(GrammarSpec::Choice(Vec::new())), ErrorKind::Malformed);
    assert_eq!(refused(GrammarSpec::Regex("a".repeat(MAX_GRAMMAR_BYTES))), ErrorKind::TooLarge);
    for number in 0..2 * KEPT {
        grammars.compile(&GrammarSpec::Choice(vec![number.to_string()])).expect("compiles");
    }
    assert!(grammars.kept().grammars.len() <= KEPT);
}
