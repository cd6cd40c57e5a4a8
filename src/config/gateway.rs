//! `gateway_origin`: what the name of a channel stands for at the gateway.

use std::{fmt, net::IpAddr};

use super::{
    document::Entry,
    host::Host,
    mistake::{Invalid, Mistake},
    model::{GatewayOrigin, HostPattern},
    reader::Section,
};

/// The origin that a channel with these `hosts` names, or else the only one that it can mean: its single exact host, over TLS.
pub(super) fn origin(section: &Section<'_>, what: &str, hosts: &[HostPattern]) -> Option<GatewayOrigin> {
    let Some(origin) = section.read("gateway_origin", parse) else {
        return section.entry("gateway_origin").is_none().then(|| only(hosts)).flatten();
    };
    // Where `hosts` are wrong themselves, that is what to say.
    if !hosts.is_empty() && !hosts.iter().any(|pattern| pattern.covers(&origin.host, origin.port)) {
        let message = format!("`gateway_origin` is none of the hosts of {what}");
        let hint = "what is asked for under the channel's name must be paced as the channel; add the host to `hosts`";
        section.context().mistake(Mistake::new(&section.span("gateway_origin"), message, hint));
    }
    Some(origin)
}

/// Refuses a name that stands for a scheme in the gateway's paths. `has_gateway`: there are such paths.
pub(super) fn refuse_scheme(section: &Section<'_>, channel: &Entry, has_gateway: bool) {
    if has_gateway && ["http", "https"].iter().any(|scheme| channel.key.eq_ignore_ascii_case(scheme)) {
        let message = format!("a channel cannot be called `{}` beside a gateway", channel.key);
        let hint = "at the gateway `/https/HOST/path` names a host and `/CHANNEL/path` a channel; choose another name";
        section.context().mistake(Mistake::new(&channel.span, message, hint));
    }
}

/// As it would be written in the file.
impl fmt::Display for GatewayOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, port) = if self.is_tls { ("https", 443) } else { ("http", 80) };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == port { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

fn only(hosts: &[HostPattern]) -> Option<GatewayOrigin> {
    let mut exact = hosts.iter().filter(|pattern| !pattern.wildcard);
    let (pattern, None) = (exact.next()?, exact.next()) else { return None };
    let host = match pattern.host.parse::<IpAddr>() {
        Ok(ip) => Host::from(ip),
        Err(_) => Host::parse(&pattern.host).ok()?,
    };
    Some(GatewayOrigin { is_tls: true, host, port: pattern.port.unwrap_or(443) })
}

/// `https://host`, `http://host:port`.
fn parse(text: &str) -> Result<GatewayOrigin, Invalid> {
    let wrong = |message: &str| Invalid::new(message, "for example `https://supply-xml.booking.com`");
    let (scheme, rest) = text.trim().split_once("://").ok_or_else(|| wrong("not an origin"))?;
    let (is_tls, default_port) = match scheme.to_ascii_lowercase().as_str() {
        "https" => (true, 443),
        "http" => (false, 80),
        _ => return Err(wrong("the scheme is neither http nor https")),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains(['/', '?', '#', '@']) {
        return Err(wrong("an origin is a scheme, a host and maybe a port"));
    }
    let pattern = HostPattern::parse(authority)?;
    if pattern.wildcard {
        return Err(wrong("an origin is one host"));
    }
    let port = pattern.port.unwrap_or(default_port);
    let origin = only(&[HostPattern { port: Some(port), ..pattern }]).ok_or_else(|| wrong("not a host"))?;
    Ok(GatewayOrigin { is_tls, ..origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(origin: Option<GatewayOrigin>) -> String {
        origin.map_or_else(|| "-".to_owned(), |origin| origin.to_string())
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_maybe_a_port() {
        for (text, wanted) in [
            ("https://OTA.example", "https://ota.example"),
            ("HTTP://ota.example/", "http://ota.example"),
            ("https://[::1]:8443", "https://[::1]:8443"),
        ] {
            assert_eq!(shown(Some(parse(text).unwrap())), wanted, "{text}");
        }
        for text in ["ota.example", "ftp://a", "https://", "https://a/b", "https://u@a", "https://*.a", "https://a:0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn without_one_the_only_exact_host_is_meant() {
        let only = |hosts: &[&str]| {
            shown(only(&hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect::<Vec<_>>()))
        };
        assert_eq!(only(&["*.ota.example", "ota.example:8443"]), "https://ota.example:8443");
        assert_eq!(only(&["[2001:db8::1]"]), "https://[2001:db8::1]");
        assert_eq!(only(&["a.example", "b.example"]), "-");
        assert_eq!(only(&["*.ota.example"]), "-");
    }
}
