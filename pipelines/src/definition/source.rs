//! The text of a definition, for finding places in it and for turning YAML errors into diagnostics.

use serde_saphyr::{Error as YamlError, Location};

use super::diagnostic::Diagnostic;

/// Keys that had another name while the format was young, and what they are called now.
const RENAMED: &[(&str, &str)] = &[
    ("steps", "stages"),
    ("nodes", "stages"),
    ("type", "kind"),
    ("pictures", "images"),
    ("clips", "audios"),
    ("audio", "audios"),
    ("image", "images"),
    ("question", "prompt"),
    ("text", "template"),
    ("instructions", "system"),
    ("parameters", "options"),
    ("max_new_tokens", "max_tokens"),
    ("max_length", "max_tokens"),
    ("stop_sequences", "stop"),
    ("model_name", "model"),
    ("input", "from"),
];

/// A definition's text and name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'s> {
    pub(super) file: &'s str,
    pub(super) text: &'s str,
}

/// A place: line and column from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Place {
    pub(super) const START: Self = Self { line: 1, column: 1 };

    /// An unknown location is the start of the file.
    pub(super) fn of(location: Location) -> Self {
        Self { line: (location.line() as usize).max(1), column: (location.column() as usize).max(1) }
    }
}

impl Source<'_> {
    pub(super) fn fault(&self, place: Place, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            file: self.file.to_owned(),
            line: place.line,
            column: place.column,
            message: message.into(),
            remedy: None,
        }
    }

    /// What the YAML reader found wrong.
    pub(super) fn yaml(&self, error: &YamlError) -> Diagnostic {
        let error = error.without_snippet();
        let place = error.location().map_or(Place::START, Place::of);
        match error {
            YamlError::SerdeUnknownField { field, expected, .. } => {
                let fault = self.fault(place, format!("unknown field `{field}`"));
                fault.remedy(name_remedy(field, expected.iter().copied()))
            }
            YamlError::SerdeUnknownVariant { variant, expected, .. } => {
                let fault = self.fault(place, format!("`{variant}` is not one of the words allowed here"));
                fault.remedy(name_remedy(variant, expected.iter().copied()))
            }
            YamlError::SerdeMissingField { field, .. } => self.fault(place, format!("the field `{field}` is missing")),
            YamlError::DuplicateMappingKey { key, .. } => {
                let key = key.as_deref().map(|key| format!(" `{key}`")).unwrap_or_default();
                self.fault(place, format!("the key{key} stands here twice"))
            }
            other => {
                let text = other.to_string();
                let text = text.lines().next().unwrap_or("not valid YAML");
                let end = text.rfind(" at line ").or_else(|| text.rfind(" (line ")).unwrap_or(text.len());
                self.fault(place, text[..end].trim_start_matches("error: "))
            }
        }
    }

    /// Where `word` stands at or after a place, as a whole word; the place itself when it is not found.
    pub(super) fn find(&self, from: Place, word: &str) -> Place {
        let part_of_word = |char: char| char.is_alphanumeric() || char == '_' || char == '-';
        for (number, line) in self.text.lines().enumerate().skip(from.line - 1) {
            let first = if number + 1 == from.line { from.column - 1 } else { 0 };
            let first = line.char_indices().nth(first).map_or(line.len(), |(at, _)| at);
            for (at, _) in line[first..].match_indices(word) {
                let at = first + at;
                let before = line[..at].chars().next_back();
                let after = line[at + word.len()..].chars().next();
                if !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word) {
                    return Place { line: number + 1, column: line[..at].chars().count() + 1 };
                }
            }
        }
        from
    }

    /// The place of a line of a scalar that starts at `from`; block scalars begin on the line after their mark.
    pub(super) fn line_of_scalar(&self, from: Place, line: usize) -> Place {
        let mark = self.text.lines().nth(from.line - 1).and_then(|text| text.chars().nth(from.column - 1));
        match mark {
            Some('|' | '>') => Place { line: from.line + line, column: 1 },
            _ if line <= 1 => from,
            _ => Place { line: from.line + line - 1, column: 1 },
        }
    }
}

/// What the writer probably meant.
pub(super) fn name_remedy<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let known: Vec<&str> = known.collect();
    let renamed = RENAMED.iter().find(|(old, new)| *old == name && known.contains(new));
    if let Some((_, new)) = renamed {
        return Some(format!("it is called `{new}`"));
    }
    let nearest = known.iter().map(|known| (distance(name, known), known)).min();
    match nearest {
        Some((distance, nearest)) if distance <= 2.max(nearest.len() / 3) => Some(format!("did you mean `{nearest}`?")),
        _ if known.is_empty() => None,
        _ => Some(format!("known here: {}", known.join(", "))),
    }
}

/// Edits between two words (Levenshtein), one row at a time; long words are not compared.
fn distance(a: &str, b: &str) -> usize {
    if a.len().max(b.len()) > 64 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_and_the_successor_are_named() {
        let known = || ["stages", "output", "models"].into_iter();
        assert_eq!(name_remedy("stagse", known()).unwrap(), "did you mean `stages`?");
        assert_eq!(name_remedy("steps", known()).unwrap(), "it is called `stages`");
        assert_eq!(name_remedy("zzzzzzzz", known()).unwrap(), "known here: stages, output, models");
    }

    #[test]
    fn words_are_found_whole() {
        let source = Source { file: "f", text: "a: foobar\nb: foo\n" };
        assert_eq!(source.find(Place::START, "foo"), Place { line: 2, column: 4 });
    }
}
