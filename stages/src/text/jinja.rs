//! The Jinja dialect of chat templates: what the reference's sandbox offers, on minijinja.
//!
//! Block trimming, loop controls, Python's string and dict methods, `raise_exception`, `strftime_now`, and `tojson` as
//! `json.dumps(ensure_ascii=False)` writes it. `{% generation %}` blocks, which only mark training targets, are read
//! as blocks that always hold.

use std::time::SystemTime;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::strftime::strftime;

/// Steps that a template may take: far more than any conversation needs, far less than a minute.
const FUEL: u64 = 2_000_000;

/// What a template raised on purpose.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment in which chat templates run as in the reference.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_filter("tojson", to_json);
    environment
}

/// The global that tells the date.
pub(super) fn clock(now: SystemTime) -> Value {
    Value::from_function(move |format: String| strftime(now, &format))
}

/// Replaces the tags that minijinja does not know by ones that do the same.
pub(super) fn adapt(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        text += before;
        let body = tag.trim_start_matches(['-', '+']);
        let (sign, word) = (&tag[..tag.len() - body.len()], body.trim_start());
        let (replacement, skip) = if word.starts_with("generation") {
            (" if true ", "generation")
        } else if word.starts_with("endgeneration") {
            (" endif ", "endgeneration")
        } else {
            rest = tag;
            continue;
        };
        text += sign;
        text += replacement;
        rest = &word[skip.len()..];
    }
    text + rest
}

fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _reference_options: (Option<Value>, Option<Value>, Option<Value>) =
        (options.get("ensure_ascii")?, options.get("separators")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(64));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Python's default separators: `", "` and `": "`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_written_as_python_writes_it() {
        let environment = environment();
        let data = serde_json::json!({ "v": { "a": [1, 2.5, "é<>"], "b": null } });
        let flat = environment.render_str("{{ v | tojson }}", &data).unwrap();
        assert_eq!(flat, r#"{"a": [1, 2.5, "é<>"], "b": null}"#);
        let pretty = environment.render_str("{{ v | tojson(indent=2) }}", &data).unwrap();
        assert_eq!(pretty, "{\n  \"a\": [\n    1,\n    2.5,\n    \"é<>\"\n  ],\n  \"b\": null\n}");
    }

    #[test]
    fn marks_of_training_targets_are_read_over() {
        let source = adapt("a {%- generation -%} b {%- endgeneration %} c {% if x %}d{% endif %}");
        assert_eq!(environment().render_str(&source, ()).unwrap(), "ab c ");
    }
}
