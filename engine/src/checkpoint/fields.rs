//! Typed access to a JSON config, with errors that name the file and the field.

use serde_json::Value;

use super::files::malformed;
use crate::error::{EngineError, ErrorKind, Result};

/// Largest size (width, heads, layers, tokens) a config may state. Configs are checked against tensors later; this keeps
/// products of sizes far from overflow until then.
const MAX_SIZE: u64 = 1 << 28;

/// An object of a config and the way to it.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    file: &'a str,
    path: String,
    object: &'a Value,
}

impl<'a> Fields<'a> {
    /// The whole of a file.
    pub fn new(file: &'a str, object: &'a Value) -> Self {
        Self { file, path: String::new(), object }
    }

    fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A field that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// The object itself.
    pub fn value(&self) -> &'a Value {
        self.object
    }

    /// An error about a field.
    pub fn wrong(&self, key: &str, expected: &str) -> EngineError {
        malformed(self.file, &format!("has field {} that is not {expected}", self.name(key)))
    }

    /// An error about something that is understood and not done.
    pub fn unsupported(&self, detail: &str) -> EngineError {
        EngineError::new(ErrorKind::Unsupported, format!("{}: {detail}", self.file))
    }

    fn missing(&self, key: &str) -> EngineError {
        malformed(self.file, &format!("has no field {}; fetch it again", self.name(key)))
    }

    /// An object inside; `None` when absent.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.is_object() => Ok(Some(Self { file: self.file, path: self.name(key), object: value })),
            Some(_) => Err(self.wrong(key, "an object")),
        }
    }

    /// An object inside that must be there.
    pub fn required(&self, key: &str) -> Result<Fields<'a>> {
        self.object(key)?.ok_or_else(|| self.missing(key))
    }

    /// A positive size.
    pub fn size(&self, key: &str) -> Result<usize> {
        self.opt_size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A positive size; `None` when absent.
    pub fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size as usize)),
            _ => Err(self.wrong(key, &format!("a whole number from 1 to {MAX_SIZE}"))),
        }
    }

    /// A whole number, zero allowed; `None` when absent.
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let count = value.as_u64().filter(|&count| count <= MAX_SIZE);
        count.map(|count| Some(count as usize)).ok_or_else(|| self.wrong(key, "a whole number"))
    }

    /// A list of whole numbers; `None` when absent.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, "a list of whole numbers");
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter()
            .map(|item| item.as_u64().filter(|&n| n <= MAX_SIZE).map(|n| n as usize).ok_or_else(wrong))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// A number; `None` when absent.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number"))
    }

    /// A list of numbers; `None` when absent.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, "a list of numbers");
        let list = value.as_array().ok_or_else(wrong)?;
        list.iter().map(|item| item.as_f64().ok_or_else(wrong)).collect::<Result<_>>().map(Some)
    }

    /// A flag; `None` when absent.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// A text; `None` when absent.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a text"))
    }

    /// A token id; `None` when absent.
    pub fn token(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(Some).ok_or_else(|| self.wrong(key, "a token id"))
    }

    /// One token id or a list of them; empty when absent.
    pub fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || self.wrong(key, "a token id or a list of token ids");
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
        match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => Ok(vec![id(one)?]),
        }
    }
}
