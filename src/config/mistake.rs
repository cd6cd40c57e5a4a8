//! Mistakes in a configuration file and how they are shown.

use std::{error::Error, fmt, ops::Range, path::Path};

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::secrets;

/// Everything that is wrong with a configuration file.
///
/// [`Display`](fmt::Display) renders each mistake with file, line, column, the underlined excerpt and a `hint:`. Secrets
/// written into the file are masked, and nothing that came from the environment is shown.
#[derive(Clone)]
pub struct Errors {
    count: usize,
    text: String,
}

impl Errors {
    /// How many mistakes there are; at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The file could not be read at all.
    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "name the file with `--config FILE` or `OTA_PACER_CONFIG`; `config/ota-pacer.yaml` is a commented example"
            }
            std::io::ErrorKind::PermissionDenied => "the user that runs `ota-pacer` must be allowed to read it",
            _ => "the configuration is one YAML file in UTF-8",
        };
        Self::of_file(path, &format!("cannot read the configuration: {error}"), hint)
    }

    /// A mistake of the file as a whole.
    pub(super) fn of_file(path: &Path, message: &str, hint: &str) -> Self {
        Self { count: 1, text: format!("error: {message}\n --> {}\n\nhint: {hint}", path.display()) }
    }

    /// Renders `mistakes`, which must not be empty, in the order of the file.
    pub(super) fn new(file: &str, source: &str, mut mistakes: Vec<Mistake>) -> Self {
        let source = secrets::masked(source);
        mistakes.sort_by_key(|mistake| (mistake.span.start, mistake.span.end));
        let mut text = String::new();
        for mistake in &mistakes {
            text.push_str(&mistake.render(Level::ERROR, file, &source));
            text.push_str("\n\n");
        }
        let count = mistakes.len();
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        text.push_str(&format!("{count} {noun} in `{file}`"));
        Self { count, text }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// As displayed: an `unwrap` in a test should be readable.
impl fmt::Debug for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

impl Error for Errors {}

/// Bytes of the source.
pub(super) type Span = Range<usize>;

/// One thing that is wrong, where, and what to do about it.
#[derive(Debug, Clone)]
pub(super) struct Mistake {
    span: Span,
    message: String,
    hint: String,
    related: Option<(Span, &'static str)>,
}

impl Mistake {
    pub(super) fn new(span: &Span, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { span: span.clone(), message: message.into(), hint: hint.into(), related: None }
    }

    /// Shows a second place with it.
    pub(super) fn with(mut self, span: &Span, label: &'static str) -> Self {
        self.related = Some((span.clone(), label));
        self
    }

    /// The text of a warning.
    pub(super) fn warning(&self, file: &str, source: &str) -> String {
        self.render(Level::WARNING, file, &secrets::masked(source))
    }

    fn render(&self, level: Level<'_>, file: &str, source: &str) -> String {
        let primary = AnnotationKind::Primary.span(shown(&self.span, source));
        let mut snippet = Snippet::source(source).path(file).annotation(primary);
        if let Some((span, label)) = &self.related {
            snippet = snippet.annotation(AnnotationKind::Context.span(shown(span, source)).label(*label));
        }
        let report = [level.primary_title(self.message.as_str()).element(snippet)];
        format!("{}\n\nhint: {}", Renderer::plain().render(&report), self.hint)
    }
}

/// Why a value is wrong. Both texts leave the value out: it may have come from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Invalid {
    pub(super) message: String,
    pub(super) hint: String,
}

impl Invalid {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// `` `a`, `b` and `c` `` with `last` before the last one.
pub(super) fn listed<'a>(words: impl IntoIterator<Item = &'a str>, last: &str) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match words.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
    }
}

/// The word that was probably meant: within a third of the length, so that `host` is no guess for `rate`.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()).div_ceil(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The part of `span` worth underlining: its first line, without trailing space.
fn shown(span: &Span, source: &str) -> Span {
    let start = span.start.min(source.len());
    let text = source.get(start..span.end.min(source.len())).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().trim_end();
    start..start + first.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_near() {
        let known = ["hosts", "rate", "capacity"];
        assert_eq!(nearest("host", known), Some("hosts"));
        assert_eq!(nearest("capactiy", known), Some("capacity"));
        assert_eq!(nearest("burst", known), None);
    }

    #[test]
    fn words_are_listed() {
        assert_eq!(listed(["a"], "or"), "`a`");
        assert_eq!(listed(["a", "b", "c"], "or"), "`a`, `b` or `c`");
    }
}
