//! Reads sections of a document and collects what is wrong with them.

use std::{borrow::Cow, cell::RefCell, collections::BTreeSet, rc::Rc, str::FromStr};

use schemars::JsonSchema;

use super::{
    document::{Entry, Kind, Node},
    expand::{ExpandError, expand},
    mistake::{Invalid, Mistake, Span, listed, nearest},
    schema,
};

/// What all sections of one file share.
pub(super) struct Context<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    mistakes: RefCell<Vec<Mistake>>,
    warnings: RefCell<Vec<Mistake>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { env, mistakes: RefCell::default(), warnings: RefCell::default() }
    }

    pub(super) fn mistake(&self, mistake: Mistake) {
        self.mistakes.borrow_mut().push(mistake);
    }

    pub(super) fn warning(&self, warning: Mistake) {
        self.warnings.borrow_mut().push(warning);
    }

    /// The mistakes and the warnings.
    pub(super) fn finish(self) -> (Vec<Mistake>, Vec<Mistake>) {
        (self.mistakes.into_inner(), self.warnings.into_inner())
    }

    /// The text of a single value, with references replaced; `what` names it in a mistake.
    fn text<'n>(&self, what: &str, node: &'n Node) -> Option<Cow<'n, str>> {
        let Kind::Scalar { text, .. } = &node.kind else {
            let message = format!("{what} is {}, not a single value", node.describe());
            self.mistake(Mistake::new(
                &node.span,
                message,
                "write one value; quote a text that starts with `{` or `[`",
            ));
            return None;
        };
        let (message, hint) = match expand(text, self.env) {
            Ok(text) => return Some(text),
            Err(ExpandError::Unset(name)) => (
                format!("the environment variable `{name}` is not set"),
                format!("set it, or give a default: `${{{name}:-default}}`"),
            ),
            Err(ExpandError::Unclosed) => (
                "`${` without its `}`".to_owned(),
                "a reference is `${NAME}` or `${NAME:-default}`; `$$` is a dollar sign".to_owned(),
            ),
            Err(ExpandError::Name) => (
                "no name of an environment variable".to_owned(),
                "a name is letters, digits and `_`: `${REDIS_URL}`".to_owned(),
            ),
            Err(ExpandError::Dollar) => (
                "`$` starts no reference".to_owned(),
                "a reference is `${NAME}`; write `$$` for a dollar sign".to_owned(),
            ),
        };
        self.mistake(Mistake::new(&node.span, message, hint));
        None
    }

    /// Parses a single value.
    pub(super) fn parse<T>(
        &self,
        what: &str,
        node: &Node,
        parse: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Option<T> {
        let text = self.text(what, node)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(Invalid { message, hint }) => {
                // What the environment put in may be a secret, so the message shows only what stands in the file.
                let expanded = if matches!(text, Cow::Owned(_)) { " (after replacing `${…}`)" } else { "" };
                self.mistake(Mistake::new(&node.span, format!("{what}: {message}{expanded}"), hint));
                None
            }
        }
    }
}

/// A mapping whose keys are those of one type of [`schema`].
pub(super) struct Section<'a> {
    cx: &'a Context<'a>,
    /// Where a missing key is reported.
    span: Span,
    entries: &'a [Entry],
    allowed: Vec<String>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Section<'a> {
    /// Opens `node` and reports unknown keys at once. Absent, null or not a mapping: a section without keys. `later` are
    /// keys of features to come, refused by name.
    pub(super) fn open<T: JsonSchema>(
        cx: &'a Context<'a>,
        what: &str,
        span: &Span,
        node: Option<&'a Node>,
        later: &[&str],
    ) -> Self {
        let allowed = schema::keys::<T>();
        let entries: &[Entry] = match node.map(|node| &node.kind) {
            Some(Kind::Mapping(entries)) => entries,
            _ => &[],
        };
        if let Some(node) = node.filter(|node| !matches!(node.kind, Kind::Mapping(_)) && !node.is_null()) {
            let keys = listed(allowed.iter().map(String::as_str), "and");
            let message = format!("{what} is {}, not a mapping", node.describe());
            cx.mistake(Mistake::new(&node.span, message, format!("its keys are {keys}")));
        }
        for entry in entries.iter().filter(|entry| !allowed.contains(&entry.key)) {
            cx.mistake(unknown_key(entry, what, &allowed, later));
        }
        Self { cx, span: span.clone(), entries, allowed, asked: RefCell::default() }
    }

    /// The context that collects mistakes.
    pub(super) fn context(&self) -> &'a Context<'a> {
        self.cx
    }

    /// The entry of `key`, unless absent or null.
    pub(super) fn entry(&self, key: &'static str) -> Option<&'a Entry> {
        debug_assert!(self.allowed.iter().any(|allowed| allowed == key), "`{key}` is missing in the schema");
        self.asked.borrow_mut().insert(key);
        self.entries.iter().find(|entry| entry.key == key && !entry.value.is_null())
    }

    /// The position of the value of `key`, or else of the section.
    pub(super) fn span(&self, key: &'static str) -> Span {
        self.entry(key).map_or_else(|| self.span.clone(), |entry| entry.value.span.clone())
    }

    /// Parses the value of `key`; `None` when absent or wrong.
    pub(super) fn read<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Result<T, Invalid>) -> Option<T> {
        let entry = self.entry(key)?;
        self.cx.parse(&format!("`{key}`"), &entry.value, parse)
    }

    /// The section under `key`, empty when absent.
    pub(super) fn section<T: JsonSchema>(&self, key: &'static str, later: &[&str]) -> Section<'a> {
        let entry = self.entry(key);
        let span = entry.map_or_else(|| self.span.clone(), |entry| entry.span.clone());
        Section::open::<T>(self.cx, &format!("`{key}`"), &span, entry.map(|entry| &*entry.value), later)
    }

    /// The items of the list under `key`.
    pub(super) fn list(&self, key: &'static str, hint: &str) -> &'a [Rc<Node>] {
        match self.entry(key).map(|entry| &*entry.value) {
            None => &[],
            Some(Node { kind: Kind::Sequence(items), .. }) => items,
            Some(node) => {
                let message = format!("`{key}` is {}, not a list", node.describe());
                self.cx.mistake(Mistake::new(&node.span, message, hint));
                &[]
            }
        }
    }

    /// The entries under `key`, whose keys are names that the operator chose.
    pub(super) fn named(&self, key: &'static str, hint: &str) -> impl Iterator<Item = &'a Entry> {
        let entries: &[Entry] = match self.entry(key).map(|entry| &*entry.value) {
            None => &[],
            Some(Node { kind: Kind::Mapping(entries), .. }) => entries,
            Some(node) => {
                let message = format!("`{key}` is {}, not a mapping", node.describe());
                self.cx.mistake(Mistake::new(&node.span, message, hint));
                &[]
            }
        };
        entries.iter().inspect(|entry| {
            let legal = entry.key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
            if !legal || entry.key.is_empty() || entry.key.len() > MAX_NAME {
                let hint = "a name is 1 to 64 letters, digits, `_` and `-`; logs and metrics use it";
                self.cx.mistake(Mistake::new(
                    &entry.span,
                    format!("`{}` is not a name", entry.key.escape_debug()),
                    hint,
                ));
            }
        })
    }

    /// Reports that `key` is missing, unless it is there, right or wrong.
    pub(super) fn require(&self, key: &'static str, what: &str, hint: &str) {
        if self.entry(key).is_none() {
            self.cx.mistake(Mistake::new(&self.span, format!("{what} has no `{key}`"), hint));
        }
    }

    /// Ends the section: a key of the schema that nothing asked for would be ignored silently.
    pub(super) fn finish(self) {
        let asked = self.asked.into_inner();
        debug_assert!(
            self.allowed.iter().all(|allowed| asked.contains(allowed.as_str())),
            "only {asked:?} of {:?} are read",
            self.allowed
        );
    }
}

/// A text that is not empty.
pub(super) fn text(text: &str) -> Result<String, Invalid> {
    if text.trim().is_empty() {
        return Err(Invalid::new("must not be empty", "leave the key out if it is not needed"));
    }
    Ok(text.to_owned())
}

/// `true` or `false`, as YAML 1.2 spells them.
pub(super) fn flag(text: &str) -> Result<bool, Invalid> {
    serde_yaml::from_str(text).map_err(|_| Invalid::new("neither true nor false", "write `true` or `false`"))
}

/// A whole number of at least 1.
pub(super) fn count<T: FromStr>(text: &str) -> Result<T, Invalid> {
    text.trim().parse().map_err(|_| Invalid::new("not a whole number of at least 1", "for example `4`"))
}

/// One of a few words.
pub(super) fn word<T: Copy>(words: &[(&str, T)]) -> impl Fn(&str) -> Result<T, Invalid> {
    move |text| {
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let known = || words.iter().map(|(word, _)| *word);
        let guess = nearest(text, known()).map(|word| format!("did you mean `{word}`? ")).unwrap_or_default();
        Err(Invalid::new("unknown word", format!("{guess}write {}", listed(known(), "or"))))
    }
}

fn unknown_key(entry: &Entry, what: &str, allowed: &[String], later: &[&str]) -> Mistake {
    let key = entry.key.escape_debug();
    let known = || allowed.iter().map(String::as_str);
    if later.contains(&entry.key.as_str()) {
        let hint = format!("{what} takes {}", listed(known(), "and"));
        return Mistake::new(&entry.span, format!("`{key}` is not supported in this version"), hint);
    }
    if entry.key == "<<" {
        return Mistake::new(
            &entry.span,
            "merge keys are not supported",
            "repeat the keys, or set them under `defaults`",
        );
    }
    let guess = nearest(&entry.key, known()).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let hint = format!("{guess}the keys of {what} are {}", listed(known(), "and"));
    Mistake::new(&entry.span, format!("unknown key `{key}` in {what}"), hint)
}

const MAX_NAME: usize = 64;
