//! Hides secrets that were written into the configuration file from the excerpts that messages show.

/// `source` with passwords in addresses, logins of `proxy` and values of `hash_key` replaced by as many bytes of `*`, so
/// that positions in it stay those of the file. Works on the text, not the parsed file: it must also hold for files that do
/// not parse and for misspelt sections, and so rather hides too much.
pub(super) fn masked(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    // Indentation below which a block value of `hash_key: |` ends.
    let mut block = None;
    for line in source.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        match block {
            Some(outer) if line.trim().is_empty() || indent > outer => text.push_str(&stars(line)),
            _ => {
                block = None;
                let shown = line_masked(line);
                if line.contains(HASH_KEY) && !line.trim_start().starts_with('#') {
                    block = Some(indent);
                }
                text.push_str(&shown);
            }
        }
    }
    text
}

fn line_masked(line: &str) -> String {
    let Some(at) = line.find(HASH_KEY) else { return userinfo_masked(&login_masked(line)) };
    let (before, value) = line.split_at(line[at..].find(':').map_or(line.len(), |colon| at + colon + 1));
    userinfo_masked(&login_masked(before)) + &if is_reference(value) { value.to_owned() } else { stars(value) }
}

/// Hides what stands before the last `@` of a `proxy`, even where its scheme was forgotten.
fn login_masked(line: &str) -> String {
    let value = line.find(PROXY).and_then(|at| Some(at + line[at..].find(':')? + 1));
    let login = value.zip(line.rfind('@')).filter(|(start, end)| start < end);
    let Some((start, end)) = login else { return line.to_owned() };
    let start = line[start..end].find("://").map_or(start, |scheme| start + scheme + 3);
    format!("{}{}{}", &line[..start], stars(&line[start..end]), &line[end..])
}

/// Hides what stands between `://` and the last `@` of the same word, and what a `…Password=` in its query names.
fn userinfo_masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        rest = after;
        let word = rest.find(char::is_whitespace).unwrap_or(rest.len());
        if let Some(end) = rest[..word].rfind('@') {
            shown.push_str(&stars(&rest[..end]));
            rest = &rest[end..];
        }
        let word = rest.find(char::is_whitespace).unwrap_or(rest.len());
        if let Some(at) = rest[..word].find(QUERY_PASSWORD) {
            let (before, secret) = rest.split_at(at + QUERY_PASSWORD.len());
            let end = secret.find(|char: char| char.is_whitespace() || matches!(char, '&' | '"' | '\'' | ',' | '}'));
            let end = end.unwrap_or(secret.len());
            shown.push_str(before);
            shown.push_str(&stars(&secret[..end]));
            rest = &secret[end..];
        }
    }
    shown + rest
}

/// Whether `value` is nothing but `${NAME}`, maybe quoted.
fn is_reference(value: &str) -> bool {
    let inner = value.trim().trim_matches(['"', '\'']);
    inner
        .strip_prefix("${")
        .and_then(|inner| inner.strip_suffix('}'))
        .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
}

/// As many bytes, so that spans stay valid; spaces and line ends stay.
fn stars(text: &str) -> String {
    text.chars().map(|char| if char.is_whitespace() { char.to_string() } else { "*".repeat(char.len_utf8()) }).collect()
}

const HASH_KEY: &str = "hash_key";
/// Also in `no_proxy`, which holds no secret.
const PROXY: &str = "proxy";
/// As in `redis-sentinel://…?sentinelPassword=…`.
const QUERY_PASSWORD: &str = "Password=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_hash_keys_are_hidden_and_positions_kept() {
        for (source, expected) in [
            ("url: redis://me:pa@ss@h:1/0 # x\n", "url: redis://********@h:1/0 # x\n"),
            ("{url: \"redis://:p@h\", a: 1}", "{url: \"redis://**@h\", a: 1}"),
            (
                "url: redis-sentinel://u:p@h?sentinelPassword=pw&node=a:1\n",
                "url: redis-sentinel://***@h?sentinelPassword=**&node=a:1\n",
            ),
            (
                "{url: 'redis-sentinel://h?sentinelPassword=pw', a: 1}",
                "{url: 'redis-sentinel://h?sentinelPassword=**', a: 1}",
            ),
            ("  hash_key: so secret\nb: 1\n", "  hash_key: ** ******\nb: 1\n"),
            ("  hash_key: |\n    s1\n\n    s2\nb: 1\n", "  hash_key: *\n    **\n\n    **\nb: 1\n"),
            ("hash_key: ${KEY}\n", "hash_key: ${KEY}\n"),
            ("hash_key: ${KEY:-dev}\n", "hash_key: ***********\n"),
            ("{proxy: \"http://me:a b@p:3128\", idle: 1s}", "{proxy: \"http://**** *@p:3128\", idle: 1s}"),
            ("  proxy: me:pw@p:3128\n", "  proxy: *****@p:3128\n"),
            ("hosts: [a.example]\n", "hosts: [a.example]\n"),
        ] {
            assert_eq!(masked(source), expected);
            assert_eq!(masked(source).len(), source.len());
        }
    }

    #[test]
    fn a_password_before_a_hash_key_on_one_line_is_hidden() {
        assert!(!masked("{url: redis://u:pw@h, hash_key: k2}").contains("pw@"));
    }
}
