//! Paths as matching compares them, and the patterns that claim them.

use std::{borrow::Cow, fmt};

use super::{mistake::Invalid, model::PathPattern};

/// `path` in the form that patterns are compared with; borrowed when it already is.
///
/// Origins read `/a/%62`, `/a//b`, `/a/./b`, `/a/x/../b` and `/a/b;v=1` as `/a/b`, all of them or some. Matching is for
/// pacing, not for security, and the mistake that hurts is an unpaced request; so all of these count as `/a/b`:
/// - percent-encoded unreserved characters are decoded, other escapes upper-cased (RFC 3986 section 6.2.2),
/// - parameters of a segment (`;…`, RFC 3986 section 3.3) are dropped,
/// - dot segments are removed (RFC 3986 section 5.2.4) and runs of `/` merged.
///
/// A trailing slash, upper and lower case, and escaped reserved characters (`%2F`) stay what they are. What is forwarded is
/// never touched.
pub fn normalize(path: &str) -> Cow<'_, str> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut trailing = false;
    for segment in decoded.split('/').skip(1) {
        let segment = segment.split(';').next().unwrap_or_default();
        trailing = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut out = String::with_capacity(decoded.len());
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if trailing || segments.is_empty() {
        out.push('/');
    }
    Cow::Owned(out)
}

impl PathPattern {
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let invalid = |message: &str, hint: &str| Err(Invalid::new(message, hint));
        if !text.starts_with('/') {
            return invalid("a path starts with `/`", PATH_HINT);
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '?' | '#' | ';' | '\\' | '"')) {
            return match bad {
                '?' => invalid("a path has no query", "the query plays no part in matching; leave it out"),
                ';' => invalid("a path has no `;` parameters", "they play no part in matching; leave them out"),
                bad if !bad.is_ascii() || bad == ' ' => {
                    invalid("a path holds ASCII only", "percent-encode the character, as clients send it")
                }
                _ => invalid("a character that no path holds", PATH_HINT),
            };
        }
        let (body, is_prefix) = match text.strip_suffix("/**") {
            Some(body) => (body, true),
            None => (text, false),
        };
        if body.contains('*') {
            return invalid("`*` stands only at the end, as `/**`", PATH_HINT);
        }
        let segments: Vec<&str> = body.split('/').skip(1).collect();
        let inner = segments.len().saturating_sub(usize::from(!is_prefix));
        if segments[..inner].contains(&"") || segments.iter().any(|segment| matches!(*segment, "." | "..")) {
            return invalid(
                "no request ever has this path",
                "requests are compared with `//` merged and `.` and `..` removed; write the path that way",
            );
        }
        let mut names = Vec::new();
        for segment in segments.iter().filter(|segment| segment.contains(['{', '}'])) {
            let Some(name) = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
                return invalid("`{name}` must be a whole segment", "for example `/hotels/{id}/rates`");
            };
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                return invalid(
                    "no name between `{` and `}`",
                    "a name is letters, digits and `_`: `/hotels/{hotel_id}`",
                );
            }
            if names.contains(&name) {
                return invalid("the same `{name}` twice", "give each segment its own name");
            }
            names.push(name);
        }
        if is_prefix && !names.is_empty() {
            return invalid(
                "`{name}` together with `/**` is not supported in this version",
                "write out the segments before `/**`, or one template for each depth",
            );
        }
        let normal = if body.is_empty() { "/".to_owned() } else { normalize(body).into_owned() };
        Ok(match (is_prefix, names.is_empty()) {
            (true, _) if body.is_empty() => Self::Prefix(normal),
            (true, _) => Self::Prefix(normal + "/"),
            (false, true) => Self::Exact(normal),
            (false, false) => Self::Template(normal),
        })
    }
}

impl PathPattern {
    /// The names of a template and the segments they stand for, counted from 0.
    pub fn captures(&self) -> impl Iterator<Item = (usize, &str)> {
        let template = match self {
            Self::Template(path) => path.as_str(),
            Self::Exact(_) | Self::Prefix(_) => "",
        };
        let segments = template.split('/').skip(1).enumerate();
        segments.filter_map(|(at, segment)| Some((at, segment.strip_prefix('{')?.strip_suffix('}')?)))
    }

    /// What decides between two patterns that match one path: the greater wins. Exact over template over prefix; among
    /// templates more literal segments, among prefixes the longer one.
    pub fn specificity(&self) -> (u8, usize) {
        match self {
            Self::Exact(_) => (2, 0),
            Self::Template(path) => (1, path.split('/').skip(1).filter(|segment| !segment.starts_with('{')).count()),
            Self::Prefix(prefix) => (0, prefix.len()),
        }
    }
}

/// As it would be written in the file.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) | Self::Template(path) => f.write_str(path),
            Self::Prefix(prefix) => write!(f, "{prefix}**"),
        }
    }
}

/// Nothing in it that [`normalize`] would change: the usual case, decided without allocating.
fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first() == Some(&b'/')
        && !bytes.iter().any(|byte| matches!(byte, b'%' | b';'))
        && !bytes.windows(2).any(|pair| pair == b"//" || pair == b"/.")
}

fn decode_unreserved(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let Some(byte) = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()) else {
            out.push('%');
            rest = &rest[at + 1..];
            continue;
        };
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&rest[at..at + 3].to_ascii_uppercase());
        }
        rest = &rest[at + 3..];
    }
    out + rest
}

const PATH_HINT: &str = "for example `/hotels/xml/availability`, `/hotels/{id}/rates` or `/hotels/**`";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_one_path_are_one_path() {
        for path in [
            "/a/b",
            "/a/%62",
            "//a/b",
            "/a//b",
            "/a/./b",
            "/a/x/../b",
            "/../a/b",
            "/a/%2e/b",
            "/a/x/%2E%2e/b",
            "/a/b;v=1",
            "/a;x/b;y=",
            "/x/..;/a/b",
        ] {
            assert_eq!(normalize(path), "/a/b", "{path}");
        }
    }

    #[test]
    fn what_differs_stays_different() {
        for path in ["/a/b/", "/A/b", "/a%2Fb", "/a/%20b", "/.well-known/x", "/a/b.xml", "/", "/a/..b", "/%zz", "/a%"] {
            assert_eq!(normalize(path), path);
        }
        assert_eq!(normalize("/a%2fb"), "/a%2Fb");
        assert_eq!(normalize("/a/b/.."), "/a/");
        assert_eq!(normalize("/.."), "/");
    }

    #[test]
    fn the_usual_path_is_borrowed() {
        assert!(matches!(normalize("/hotels/xml/availability"), Cow::Borrowed(_)));
    }

    #[test]
    fn patterns() {
        let kind = |text: &str| PathPattern::parse(text).unwrap();
        assert_eq!(kind("/a/%62"), PathPattern::Exact("/a/b".to_owned()));
        assert_eq!(kind("/"), PathPattern::Exact("/".to_owned()));
        assert_eq!(kind("/a/"), PathPattern::Exact("/a/".to_owned()));
        assert_eq!(kind("/a/{id}/b"), PathPattern::Template("/a/{id}/b".to_owned()));
        assert_eq!(kind("/a/**"), PathPattern::Prefix("/a/".to_owned()));
        assert_eq!(kind("/**"), PathPattern::Prefix("/".to_owned()));
        for text in [
            "", "a", "/a?b", "/a#b", "/a b", "/ä", "/a;b", "/*", "/a/*/b", "/a**", "/a//b", "/a/../b", "/a/{}",
            "/a/{b", "/a/x{b}", "/{a}/{a}", "/{a}/**", "/a//**",
        ] {
            assert!(PathPattern::parse(text).is_err(), "{text}");
        }
        for text in ["/a", "/", "/{a}/b", "/**", "/a/**"] {
            assert_eq!(kind(text).to_string(), text);
        }
        assert_eq!(kind("/a/{b}/c/{d}").captures().collect::<Vec<_>>(), [(1, "b"), (3, "d")]);
        assert_eq!(kind("/a/**").captures().count(), 0);
    }

    proptest! {
        #[test]
        fn normal_paths_stay_as_they_are(path in "/[a-c%./;0-9]{0,16}") {
            let once = normalize(&path).into_owned();
            prop_assert!(once.starts_with('/'));
            // A `%` that escapes nothing may escape something once its neighbour is decoded: not decoded twice.
            prop_assume!(!once.contains('%'));
            prop_assert_eq!(normalize(&once), once.as_str());
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}", path in "[/{}*a.%;]{0,12}") {
            for text in [&text, &path] {
                let _ = (normalize(text), PathPattern::parse(text));
            }
        }
    }
}
