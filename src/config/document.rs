//! A YAML document with the position of every key and value.
//!
//! `serde_yaml` stops at the first mistake and keeps no positions in its values, so structure and positions come from the
//! events of `saphyr-parser`; what a scalar means (`null`, a number, a boolean) is still `serde_yaml`'s to say.

use std::{collections::HashMap, rc::Rc};

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::mistake::{Mistake, Span};

/// A value in the file.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Debug)]
pub(super) enum Kind {
    /// Its text after unquoting, and whether it stood there without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Rc<Node>>),
    Mapping(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) span: Span,
    pub(super) value: Rc<Node>,
}

impl Node {
    /// `null`, `~` or nothing at all: the same as leaving the key out.
    pub(super) fn is_null(&self) -> bool {
        match &self.kind {
            Kind::Scalar { text, plain: true } => {
                text.is_empty() || matches!(serde_yaml::from_str(text), Ok(serde_yaml::Value::Null))
            }
            _ => false,
        }
    }

    /// What it is, for a message.
    pub(super) fn describe(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar { .. } if self.is_null() => "nothing",
            Kind::Scalar { .. } => "a single value",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) => "a mapping",
        }
    }
}

/// Reads one document. Duplicate keys are reported beside the tree, so that the rest of the file is still checked.
///
/// # Errors
/// When the text is no YAML: one mistake, as nothing after it can be trusted.
pub(super) fn read(text: &str) -> Result<(Rc<Node>, Vec<Mistake>), Mistake> {
    let offsets = Offsets::new(text);
    let mut builder = Builder::default();
    let mut document = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let at = offsets.byte(error.marker().index());
            Mistake::new(&(at..at + 1), format!("not valid YAML: {}", error.info()), hint(text, at))
        })?;
        let span = offsets.byte(span.start.index())..offsets.byte(span.end.index());
        if let Event::Scalar(.., Some(tag)) | Event::SequenceStart(_, Some(tag)) | Event::MappingStart(_, Some(tag)) =
            &event
            && !tag.is_yaml_core_schema()
        {
            return Err(Mistake::new(&span, "tags are not supported", "write the value without its `!`"));
        }
        match event {
            Event::DocumentStart(_) if document.is_some() => {
                return Err(Mistake::new(&span, "a second document begins here", "keep everything in one document"));
            }
            Event::Scalar(text, style, anchor, _) => {
                let kind = Kind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain };
                builder.value(Rc::new(Node { span, kind }), anchor, &mut document)?;
            }
            Event::Alias(anchor) => {
                let Some(node) = builder.anchors.get(&anchor).cloned() else {
                    return Err(Mistake::new(&span, "an alias stands inside its own anchor", "write the value out"));
                };
                builder.value(node, NO_ANCHOR, &mut document)?;
            }
            Event::SequenceStart(anchor, _) => builder.open(span, anchor, Items::Sequence(Vec::new()))?,
            Event::MappingStart(anchor, _) => builder.open(span, anchor, Items::Mapping(Mapping::default()))?,
            Event::SequenceEnd | Event::MappingEnd => {
                // A block collection ends before what follows it, a flow collection with its bracket.
                let bracket = text[span.start..].starts_with([']', '}']);
                builder.close(span.start + usize::from(bracket), &mut document)?;
            }
            _ => {}
        }
    }
    let empty = || Rc::new(Node { span: 0..0, kind: Kind::Scalar { text: String::new(), plain: true } });
    Ok((document.unwrap_or_else(empty), builder.duplicates))
}

/// Collections that are still open, innermost last.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    duplicates: Vec<Mistake>,
}

struct Open {
    span: Span,
    anchor: usize,
    items: Items,
}

enum Items {
    Sequence(Vec<Rc<Node>>),
    Mapping(Mapping),
}

#[derive(Default)]
struct Mapping {
    entries: Vec<Entry>,
    /// Where each key stands, to find the second of its kind.
    keys: HashMap<String, Span>,
    /// A key whose value has not come yet.
    waiting: Option<(String, Span)>,
}

impl Builder {
    fn open(&mut self, span: Span, anchor: usize, items: Items) -> Result<(), Mistake> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Mistake::new(&span, "nested too deep", "no section of the configuration lies this deep"));
        }
        self.open.push(Open { span, anchor, items });
        Ok(())
    }

    fn close(&mut self, end: usize, document: &mut Option<Rc<Node>>) -> Result<(), Mistake> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let kind = match open.items {
            Items::Sequence(items) => Kind::Sequence(items),
            Items::Mapping(mapping) => Kind::Mapping(mapping.entries),
        };
        let span = open.span.start..end.max(open.span.end);
        self.value(Rc::new(Node { span, kind }), open.anchor, document)
    }

    fn value(&mut self, node: Rc<Node>, anchor: usize, document: &mut Option<Rc<Node>>) -> Result<(), Mistake> {
        if anchor != NO_ANCHOR {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => *document = Some(node),
            Some(Items::Sequence(items)) => items.push(node),
            Some(Items::Mapping(mapping)) => self.duplicates.extend(mapping.take(node)?),
        }
        Ok(())
    }
}

impl Mapping {
    /// Takes a key, or the value of the key before. A value under a key that is already there is left out and reported.
    fn take(&mut self, node: Rc<Node>) -> Result<Option<Mistake>, Mistake> {
        let Some((key, span)) = self.waiting.take() else {
            let Kind::Scalar { text, .. } = &node.kind else {
                let hint = "quote a text that starts with `{` or `[`";
                return Err(Mistake::new(&node.span, "a key must be a single word", hint));
            };
            self.waiting = Some((text.clone(), node.span.clone()));
            return Ok(None);
        };
        if let Some(first) = self.keys.get(&key) {
            let hint = "keep one of the two; a later one does not override an earlier one";
            let message = format!("duplicate key `{}`", key.escape_debug());
            return Ok(Some(Mistake::new(&span, message, hint).with(first, "first written here")));
        }
        self.keys.insert(key.clone(), span.clone());
        self.entries.push(Entry { key, span, value: node });
        Ok(None)
    }
}

/// Byte offset of every character: the parser counts characters.
struct Offsets(Vec<usize>);

impl Offsets {
    fn new(text: &str) -> Self {
        Self(text.char_indices().map(|(at, _)| at).chain([text.len()]).collect())
    }

    fn byte(&self, char: usize) -> usize {
        self.0.get(char).or(self.0.last()).copied().unwrap_or_default()
    }
}

/// What usually causes a syntax error on this line.
fn hint(text: &str, at: usize) -> &'static str {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    if line.contains('\t') {
        "YAML indents with spaces, not with tabs"
    } else if line.contains("*.") {
        "quote a wildcard: `\"*.example.com\"`"
    } else if line.contains("${") || line.contains("{") && line.contains("path") {
        "inside `{ }` or `[ ]`, quote a value that holds `{` or `}`: `\"/hotels/{id}\"`, `\"${NAME}\"`"
    } else {
        "look for a missing quote, bracket or `: ` here or on the line before"
    }
}

const NO_ANCHOR: usize = 0;
const MAX_DEPTH: usize = 32;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_yaml::{Mapping, Value};

    use super::*;

    /// The tree as `serde_yaml` would hold it.
    fn value(node: &Node) -> Value {
        match &node.kind {
            Kind::Scalar { text, plain: false } => Value::String(text.clone()),
            Kind::Scalar { text, .. } if text.is_empty() => Value::Null,
            // Not a document of its own: `*.`, `: ` and the like have a meaning only there.
            Kind::Scalar { text, .. } => match serde_yaml::from_str(text) {
                Ok(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => value,
                _ => Value::String(text.clone()),
            },
            Kind::Sequence(items) => Value::Sequence(items.iter().map(|item| value(item)).collect()),
            Kind::Mapping(entries) => {
                let entry = |entry: &Entry| (Value::String(entry.key.clone()), value(&entry.value));
                Value::Mapping(entries.iter().map(entry).collect::<Mapping>())
            }
        }
    }

    /// Two parsers read YAML here; a file must not mean two things.
    #[test]
    fn the_tree_is_what_serde_yaml_reads() {
        let mut compared = 0;
        for folder in ["config", "tests/fixtures/config", "tests/fixtures/config/valid"] {
            for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "yaml") {
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                if let Ok(expected) = serde_yaml::from_str::<Value>(&text) {
                    let (tree, duplicates) = read(&text).unwrap();
                    assert!(duplicates.is_empty(), "{}", path.display());
                    assert_eq!(value(&tree), expected, "{}", path.display());
                    compared += 1;
                } else {
                    assert!(!read(&text).is_ok_and(|(_, duplicates)| duplicates.is_empty()), "{}", path.display());
                }
            }
        }
        assert!(compared > 40, "only {compared} files");
    }

    #[test]
    fn positions_are_bytes_of_the_file() {
        let text = "# é\nkey: { ü: [1, \"zwei\"] }\n";
        let (tree, _) = read(text).unwrap();
        let Kind::Mapping(entries) = &tree.kind else { panic!("{tree:?}") };
        assert_eq!(&text[entries[0].span.clone()], "key");
        assert_eq!(&text[entries[0].value.span.clone()], "{ ü: [1, \"zwei\"] }");
        let Kind::Mapping(entries) = &entries[0].value.kind else { panic!("{entries:?}") };
        assert_eq!(&text[entries[0].value.span.clone()], "[1, \"zwei\"]");
    }

    #[test]
    fn what_would_be_dropped_silently_is_refused() {
        for text in ["a: !include b.yaml", "a: 1\n---\nb: 1", "? [a]\n: 1", "a: &x [*x]", &"[".repeat(40)] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
