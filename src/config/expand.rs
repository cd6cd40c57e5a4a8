//! `${NAME}` and `${NAME:-default}` in values, `$$` for a dollar sign.

use std::borrow::Cow;

/// Replaces every reference in `text`; `env` looks a variable up. As in a shell, `:-` also replaces an empty variable.
///
/// # Errors
/// When a variable is unset and has no default, or a `$` starts no reference.
pub(super) fn expand<'a>(text: &'a str, env: &dyn Fn(&str) -> Option<String>) -> Result<Cow<'a, str>, ExpandError> {
    let Some(first) = text.find('$') else { return Ok(Cow::Borrowed(text)) };
    let mut out = text[..first].to_owned();
    let mut rest = &text[first..];
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let body = rest.strip_prefix('{').ok_or(ExpandError::Dollar)?;
        let (inner, after) = body.split_once('}').ok_or(ExpandError::Unclosed)?;
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.bytes().all(is_name_byte) {
            return Err(ExpandError::Name);
        }
        match (env(name), default) {
            (Some(value), None) => out.push_str(&value),
            (Some(value), Some(_)) if !value.is_empty() => out.push_str(&value),
            (_, Some(default)) => out.push_str(default),
            (None, None) => return Err(ExpandError::Unset(name.to_owned())),
        }
        rest = after;
    }
    Ok(Cow::Owned(out + rest))
}

/// Why a reference cannot be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExpandError {
    /// The variable is not set.
    Unset(String),
    /// `${` without `}`.
    Unclosed,
    /// No name a variable may have.
    Name,
    /// A `$` followed by neither `{` nor `$`.
    Dollar,
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, ExpandError> {
        let env = |name: &str| match name {
            "HOST" => Some("redis-1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        expand(text, &env).map(Cow::into_owned)
    }

    #[test]
    fn references_become_values() {
        for (text, value) in [
            ("plain", "plain"),
            ("redis://${HOST}:6379/0", "redis://redis-1:6379/0"),
            ("${NONE:-a b}${HOST}", "a bredis-1"),
            ("${EMPTY:-x}-${EMPTY}", "x-"),
            ("$$5 and $${HOST}", "$5 and ${HOST}"),
            ("${NONE:-}", ""),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(value));
        }
    }

    #[test]
    fn what_cannot_be_replaced_is_said() {
        assert_eq!(expanded("${NONE}"), Err(ExpandError::Unset("NONE".to_owned())));
        assert_eq!(expanded("a ${HOST"), Err(ExpandError::Unclosed));
        assert_eq!(expanded("${1A}"), Err(ExpandError::Name));
        assert_eq!(expanded("${}"), Err(ExpandError::Name));
        assert_eq!(expanded("$HOST"), Err(ExpandError::Dollar));
        assert_eq!(expanded("costs 5$"), Err(ExpandError::Dollar));
    }
}
