//! `upstream.proxy` and `upstream.no_proxy`: the proxy between this one and the origins.

use std::{fmt, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use secrecy::SecretString;

use super::{
    host::Host,
    mistake::{Invalid, Mistake},
    model::{Bypass, HostPattern, ParentProxy},
    pattern::split_port,
    reader::Section,
};

/// The proxy of the section `upstream`, if it names one.
pub(super) fn proxy(section: &Section<'_>) -> Option<ParentProxy> {
    let proxy = section.read("proxy", address);
    let items = section.list("no_proxy", BYPASS_HINT);
    let bypass = items.iter().filter_map(|item| section.context().parse("`no_proxy`", item, bypass)).collect();
    if section.entry("proxy").is_none()
        && let Some(entry) = section.entry("no_proxy")
    {
        let hint = "name the proxy in `proxy`, or leave `no_proxy` out";
        section.context().warning(Mistake::new(&entry.span, "`no_proxy` without `proxy` does nothing", hint));
    }
    Some(ParentProxy { bypass, ..proxy? })
}

impl ParentProxy {
    /// Whether requests to `host:port` go through it.
    pub fn leads_to(&self, host: &Host, port: u16) -> bool {
        !self.bypass.iter().any(|bypass| bypass.matches(host, port))
    }
}

/// As it would be written in the file, without the credentials.
impl fmt::Display for ParentProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.tls { "https" } else { "http" }, self.host, self.port)
    }
}

impl Bypass {
    fn matches(&self, host: &Host, port: u16) -> bool {
        match self {
            Self::Host(pattern) => pattern.covers(host, port),
            Self::Network { address, prefix } => host.ip().is_some_and(|ip| network(ip, *prefix) == Some(*address)),
        }
    }
}

/// As it would be written in the file.
impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(pattern) => pattern.fmt(f),
            Self::Network { address, prefix } => write!(f, "{address}/{prefix}"),
        }
    }
}

/// `http://user:password@host:port`; a port left out is the scheme's own. The password ends at the last `@`, so that one
/// that was put in from the environment works as it is, unless it holds a `%`.
fn address(text: &str) -> Result<ParentProxy, Invalid> {
    let (scheme, rest) =
        text.trim().split_once("://").ok_or_else(|| Invalid::new("not the URL of a proxy", URL_HINT))?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err(Invalid::new("a proxy is spoken to over `http://` or `https://`", URL_HINT)),
    };
    let (login, authority) = match rest.rsplit_once('@') {
        Some((login, authority)) => (Some(login), authority),
        None => (None, rest),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#']) {
        return Err(Invalid::new("the URL of a proxy ends with its port", URL_HINT));
    }
    let (host, port) = split_port(authority)?;
    Ok(ParentProxy {
        tls,
        host: Host::parse(host).map_err(|error| Invalid::new(error.to_string(), URL_HINT))?,
        port: port.unwrap_or(if tls { 443 } else { 80 }),
        credentials: login.map(credentials).transpose()?,
        bypass: Vec::new(),
    })
}

/// What follows `Basic` (RFC 7617 section 2), of a percent-encoded `user:password`.
fn credentials(login: &str) -> Result<SecretString, Invalid> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (user, password) = (percent_decoded(user)?, percent_decoded(password)?);
    if user.contains(&b':') {
        let hint = "Basic authentication, which a proxy is given, cannot carry one: use a user without it";
        return Err(Invalid::new("the user name holds a colon", hint));
    }
    if user.iter().chain(&password).any(u8::is_ascii_control) {
        let hint = "a line end at the end of the variable is the usual reason";
        return Err(Invalid::new("the user name or the password holds a control character", hint));
    }
    Ok(SecretString::from(STANDARD.encode([&*user, b":", &*password].concat())))
}

/// RFC 3986 section 2.1.
fn percent_decoded(text: &str) -> Result<Vec<u8>, Invalid> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                let code = high.zip(low).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
                code.ok_or_else(|| {
                    let hint = "a reserved character is written as `%` and two hexadecimal digits, `%` itself as `%25`";
                    Invalid::new("a `%` of the user name or the password begins no encoded character", hint)
                })?
            }
            byte => byte,
        });
    }
    Ok(decoded)
}

/// A host, `.suffix` or `*.suffix`, an address, each with or without a port, or a network.
fn bypass(text: &str) -> Result<Bypass, Invalid> {
    let text = text.trim();
    if text == "*" {
        return Err(Invalid::new("this would be every host", "to reach all of them directly, leave `proxy` out"));
    }
    if !text.contains("://")
        && let Some((address, prefix)) = text.split_once('/')
    {
        let address: IpAddr = address.parse().map_err(|_| Invalid::new("not a network", NETWORK_HINT))?;
        let prefix = prefix.parse().map_err(|_| Invalid::new("not a network", NETWORK_HINT))?;
        return match network(address, prefix) {
            Some(first) if first == address => Ok(Bypass::Network { address, prefix }),
            Some(_) => Err(Invalid::new("the address has bits behind the prefix", NETWORK_HINT)),
            None => Err(Invalid::new("the prefix is longer than an address", NETWORK_HINT)),
        };
    }
    let pattern = match text.strip_prefix('.') {
        Some(suffix) => HostPattern::parse(&format!("*.{suffix}")),
        None => HostPattern::parse(text),
    };
    pattern.map(Bypass::Host).map_err(|invalid| Invalid { hint: BYPASS_HINT.to_owned(), ..invalid })
}

/// The first address of the network of that size around `ip`; `None` if there is no such size.
fn network(ip: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    match ip.to_canonical() {
        IpAddr::V4(ip) if prefix <= u32::BITS => {
            let mask = u32::MAX.checked_shl(u32::BITS - prefix).unwrap_or(0);
            Some(IpAddr::V4((u32::from(ip) & mask).into()))
        }
        IpAddr::V6(ip) if prefix <= u128::BITS => {
            let mask = u128::MAX.checked_shl(u128::BITS - prefix).unwrap_or(0);
            Some(IpAddr::V6((u128::from(ip) & mask).into()))
        }
        _ => None,
    }
}

const URL_HINT: &str =
    "for example `http://proxy.corp:3128` or, with a login, `http://${PROXY_USER}:${PROXY_PASSWORD}@proxy.corp:3128`";

const BYPASS_HINT: &str = "a list of hosts (`ota.example`), of suffixes (`.corp` or `\"*.corp\"`), of addresses \
                           (`192.0.2.1`, `\"[2001:db8::1]\"`), each with a port if need be (`ota.example:8443`), and of \
                           networks (`10.0.0.0/8`)";

const NETWORK_HINT: &str = "a network is its first address and the length of its prefix: `10.0.0.0/8`, `fd00::/8`";

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn addresses_of_proxies() {
        for (text, shown, login) in [
            ("http://proxy.corp:3128", "http://proxy.corp:3128", None),
            ("HTTPS://Proxy.Corp/", "https://proxy.corp:443", None),
            ("http://[::1]", "http://[::1]:80", None),
            ("http://me:secret@proxy.corp:8080", "http://proxy.corp:8080", Some("me:secret")),
            ("http://me:a@b/c:d@proxy.corp", "http://proxy.corp:80", Some("me:a@b/c:d")),
            ("http://d%6Fmain%5Cme:%25%40@proxy.corp", "http://proxy.corp:80", Some("domain\\me:%@")),
            ("http://me@proxy.corp", "http://proxy.corp:80", Some("me:")),
        ] {
            let proxy = address(text).unwrap();
            assert_eq!(proxy.to_string(), shown);
            let credentials = proxy.credentials.as_ref().map(|credentials| credentials.expose_secret().to_owned());
            assert_eq!(credentials, login.map(|login| STANDARD.encode(login)), "{text}");
            assert!(!format!("{proxy:?} {proxy}").contains(&credentials.unwrap_or("secret".to_owned())));
        }
        for text in [
            "",
            "proxy.corp:3128",
            "socks5://proxy.corp",
            "http://",
            "http://proxy.corp:0",
            "http://proxy.corp:3128/path",
            "http://::1:3128",
            "http://a%3Ab:c@proxy.corp",
            "http://me:50%@proxy.corp",
            "http://me:%+1@proxy.corp",
            "http://me:line%0A@proxy.corp",
        ] {
            let Err(invalid) = address(text) else { panic!("{text}") };
            assert!(!invalid.message.contains("me:") && !invalid.hint.contains("me:"), "{invalid:?}");
        }
    }

    #[test]
    fn hosts_that_are_reached_directly() {
        let matches = |pattern: &str, host: &str, port| {
            bypass(pattern)
                .unwrap_or_else(|error| panic!("{pattern}: {error:?}"))
                .matches(&Host::parse(host).unwrap(), port)
        };
        for (pattern, inside, outside) in [
            ("Ota.Example.", &["ota.example"][..], &["a.ota.example", "xota.example"][..]),
            (".corp", &["a.corp", "a.b.corp"], &["corp", "acorp"]),
            ("*.corp", &["a.corp", "a.b.corp"], &["corp", "acorp"]),
            ("10.0.0.0/8", &["10.1.2.3", "[::ffff:10.1.2.3]"], &["11.0.0.1", "[2001:db8::1]", "ten.example"]),
            ("fd00::/8", &["[fd12::1]"], &["[fe80::1]", "10.0.0.1"]),
            ("0.0.0.0/0", &["192.0.2.1"], &["[::1]"]),
            ("192.0.2.1", &["192.0.2.1"], &["192.0.2.2"]),
            ("[2001:DB8::1]", &["[2001:db8::1]"], &["[2001:db8::2]"]),
        ] {
            assert!(inside.iter().all(|host| matches(pattern, host, 443)), "{pattern}");
            assert!(!outside.iter().any(|host| matches(pattern, host, 443)), "{pattern}");
        }
        assert!(matches("ota.example:8443", "ota.example", 8443) && !matches("ota.example:8443", "ota.example", 443));
        for text in ["", "*", "http://ota.example", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/x", "::1", "a b", "*a.corp"]
        {
            assert!(bypass(text).is_err(), "{text}");
        }
    }
}
