//! The environment that sends a client through the proxy and makes it trust our leaves.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use super::{Authority, settings};

/// Where clients on this machine reach a socket that listens on `listen`: an unspecified address accepts from
/// everywhere but is no destination.
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// The URL of a proxy that listens on `listen`, for clients on this machine.
pub fn proxy_url(listen: SocketAddr) -> String {
    format!("http://{}", reachable(listen))
}

/// Names a gateway that listens on `gateway`, for programs that take a base URL; no client reads it by itself. Where the
/// proxy is reached at a host of `proxy`, so is the gateway.
pub fn gateway(gateway: SocketAddr, proxy: Option<&str>) -> (String, String) {
    let elsewhere = proxy.and_then(|url| url.parse::<http::Uri>().ok()).and_then(|uri| {
        let host = uri.host()?;
        Some(format!("http://{host}:{}", gateway.port()))
    });
    ("OTA_PACER_GATEWAY".to_owned(), elsewhere.unwrap_or_else(|| proxy_url(gateway)))
}

/// Name and value of every variable that some client family reads, for a proxy at the URL `proxy`.
///
/// `ALL_PROXY` is left alone: it would send protocols through the proxy that are not HTTP.
pub fn variables(proxy: &str, authority: &Authority) -> Vec<(String, String)> {
    let ours = authority.certificate_path().to_string_lossy();
    let bundle = authority.bundle_path().to_string_lossy();
    let trust_store = authority.trust_store_path().to_string_lossy();
    let mut variables = render(proxy, &ours, &bundle, &trust_store);
    let dir = authority.bundle_path().parent().expect("the bundle stands in a directory");
    variables.extend(settings::variables(dir));
    variables
}

/// Completes `variables` with what `existing` already says under the same names, so that setting them loses nothing:
/// Java options and PHP's directories are added to, and an exception list known under one letter case is known under both.
/// No exception is ever added: which hosts bypass the proxy is for its user to say. A wgetrc of the user's stays in force,
/// and [`WGETRC`] is then left out.
pub fn merge(variables: &mut Vec<(String, String)>, existing: impl Fn(&str) -> Option<String>) {
    let exceptions = existing("no_proxy").or_else(|| existing("NO_PROXY")).filter(|list| !list.is_empty());
    for (_, value) in variables.iter_mut().filter(|(name, _)| name == JAVA) {
        let options = existing(JAVA).unwrap_or_default();
        let mut words = java_words(&options);
        words.retain(|option| !is_own_java_option(option));
        let hosts = exceptions.as_deref().map(java_exceptions).filter(|_| !options.contains(JAVA_EXCEPTIONS));
        words.extend(hosts.as_deref());
        words.push(value);
        *value = words.join(" ");
    }
    settings::merge(variables, &existing);
    if let Some(list) = exceptions {
        variables.extend(["no_proxy", "NO_PROXY"].map(|name| (name.to_owned(), list.clone())));
    }
}

/// Has a Node that reads no proxy variable, such as 20, load a file that does it for its `fetch`, `http` and `https`.
///
/// Not among [`variables`]: a Node that does not find the file does not start at all, and one that finds it runs code
/// before the program's own.
pub fn preload_node(
    variables: &mut Vec<(String, String)>,
    authority: &Authority,
    existing: impl Fn(&str) -> Option<String>,
) {
    let dir = authority.bundle_path().parent().expect("the bundle stands in a directory");
    variables.push(settings::node_preload(dir, existing));
}

/// Rewrites `variables` for clients that find the directory of `authority` at `seen`.
///
/// [`WGETRC`] is left out, since that file itself names another by its place here.
pub fn relocate(variables: &mut Vec<(String, String)>, authority: &Authority, seen: &Path) {
    let here = authority.bundle_path().parent().expect("the bundle stands in a directory");
    let (here, seen) = (here.to_string_lossy(), seen.to_string_lossy());
    variables.retain(|(name, _)| name != WGETRC);
    for (_, value) in variables {
        *value = value.replace(&format!("{here}/"), &format!("{}/", seen.trim_end_matches('/')));
    }
}

/// Names the settings of GNU wget, whose GnuTLS builds read no other variable.
pub const WGETRC: &str = settings::WGETRC;

fn render(proxy: &str, ours: &str, bundle: &str, trust_store: &str) -> Vec<(String, String)> {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut variables = Vec::new();
    // curl and wget read `http_proxy` in lower case only, Guzzle upper case only, Ruby `http_proxy` even for https.
    variables.extend(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"].map(|name| own((name, proxy))));
    // Without these Node's and Perl's own clients ignore the four above.
    variables.extend([("NODE_USE_ENV_PROXY", "1"), ("PERL_LWP_ENV_PROXY", "1")].map(own));
    if let Some(options) = java_options(proxy, trust_store) {
        variables.push((JAVA.to_owned(), options));
    }
    // These add to the client's own roots.
    variables.extend(["NODE_EXTRA_CA_CERTS", "DENO_CERT"].map(|name| own((name, ours))));
    // These replace them.
    variables.extend(
        [
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "PIP_CERT",
            "AWS_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "CARGO_HTTP_CAINFO",
            "PERL_LWP_SSL_CA_FILE",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
            "HTTPLIB2_CA_CERTS",
        ]
        .map(|name| own((name, bundle))),
    );
    variables
}

/// A JVM takes its proxy and its roots from system properties only. The store takes the place of Java's own, and without a
/// password opens for software that names one, too. `None` when `proxy` is no `http://HOST:PORT`, which the properties
/// cannot say.
fn java_options(proxy: &str, trust_store: &str) -> Option<String> {
    let uri: http::Uri = proxy.parse().ok()?;
    let authority = uri.authority()?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(80);
    let mut options: Vec<String> =
        ["http", "https"].map(|scheme| format!("-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}")).to_vec();
    // Within quotes of one kind nothing escapes them, so a path with both cannot be said at all.
    if !trust_store.contains(char::is_whitespace) && !trust_store.contains(['"', '\'']) {
        options.push(format!("{TRUST_STORE}={trust_store}"));
    } else if let Some(quote) = ['"', '\''].into_iter().find(|quote| !trust_store.contains(*quote)) {
        options.push(format!("{TRUST_STORE}={quote}{trust_store}{quote}"));
    }
    (uri.scheme() == Some(&http::uri::Scheme::HTTP)).then(|| options.join(" "))
}

/// `NO_PROXY`, which no JVM reads, as Java says it: behind the exceptions that it makes by itself, and less what it cannot
/// say, such as networks and ports.
fn java_exceptions(list: &str) -> String {
    let mut hosts = format!("{JAVA_EXCEPTIONS}{JAVA_DEFAULTS}");
    for entry in list.split([',', ' ']).map(str::trim) {
        let domain = entry.trim_start_matches('*').trim_start_matches('.');
        if entry == "*" {
            hosts.push_str("|*");
        } else if domain.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) {
            hosts.push_str(&format!("|{domain}"));
        } else if !domain.is_empty() && domain.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c)) {
            hosts.push_str(&format!("|{domain}|*.{domain}"));
        }
    }
    hosts
}

/// Splits options as a JVM does: at white space, but for that between quotes.
fn java_words(options: &str) -> Vec<&str> {
    let (mut words, mut start, mut quote) = (Vec::new(), None, None);
    for (at, c) in options.char_indices() {
        match quote {
            Some(open) if open == c => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                words.extend(start.take().map(|start| &options[start..at]));
                continue;
            }
            None => {}
        }
        start.get_or_insert(at);
    }
    words.extend(start.map(|start| &options[start..]));
    words
}

/// Whether an option says what ours say. Another trust store would take the place of ours, or be opened in place of it with
/// a type that is not its own.
fn is_own_java_option(option: &str) -> bool {
    let of_proxy = ["http", "https"].iter().any(|scheme| {
        option
            .strip_prefix("-D")
            .and_then(|property| property.strip_prefix(scheme))
            .is_some_and(|rest| rest.starts_with(".proxyHost=") || rest.starts_with(".proxyPort="))
    });
    of_proxy || option.starts_with(TRUST_STORE)
}

const TRUST_STORE: &str = "-Djavax.net.ssl.trustStore";

const JAVA: &str = "JAVA_TOOL_OPTIONS";

/// Holds for https as well.
const JAVA_EXCEPTIONS: &str = "-Dhttp.nonProxyHosts=";

const JAVA_DEFAULTS: &str = "localhost|127.*|[::1]";

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
        variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn fresh() -> Vec<(String, String)> {
        render("http://127.0.0.1:8080", "/ca/ca.pem", "/ca/bundle.pem", "/ca/bundle.p12")
    }

    #[test]
    fn an_unspecified_address_becomes_loopback() {
        for (listen, url) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080"),
            ("[::]:8080", "http://[::1]:8080"),
            ("192.0.2.7:80", "http://192.0.2.7:80"),
        ] {
            assert_eq!(proxy_url(listen.parse().unwrap()), url);
        }
    }

    #[test]
    fn a_gateway_is_where_the_proxy_is() {
        let gateway = |listen: &str, proxy| gateway(listen.parse().unwrap(), proxy).1;
        assert_eq!(gateway("0.0.0.0:8081", None), "http://127.0.0.1:8081");
        assert_eq!(gateway("0.0.0.0:8081", Some("http://pacer:8080")), "http://pacer:8081");
        assert_eq!(gateway("[::]:8081", Some("http://[::1]:8080/")), "http://[::1]:8081");
    }

    #[test]
    fn clients_that_add_get_our_certificate_and_clients_that_replace_get_the_bundle() {
        let variables = fresh();
        assert_eq!(value(&variables, "NODE_EXTRA_CA_CERTS"), Some("/ca/ca.pem"));
        assert_eq!(value(&variables, "REQUESTS_CA_BUNDLE"), Some("/ca/bundle.pem"));
        assert_eq!(value(&variables, "https_proxy"), Some("http://127.0.0.1:8080"));
        assert_eq!(value(&variables, "HTTPS_PROXY"), Some("http://127.0.0.1:8080"));
        assert_eq!(value(&variables, "ALL_PROXY"), None);
        assert_eq!(value(&variables, "NO_PROXY"), None, "exceptions are the user's");
    }

    #[test]
    fn java_gets_host_and_port_without_brackets() {
        assert_eq!(
            java_options("http://[::1]:8080", "/ca/bundle.p12").unwrap(),
            "-Dhttp.proxyHost=::1 -Dhttp.proxyPort=8080 -Dhttps.proxyHost=::1 -Dhttps.proxyPort=8080 \
             -Djavax.net.ssl.trustStore=/ca/bundle.p12"
        );
        assert_eq!(java_options("nonsense", "/ca/bundle.p12"), None);
    }

    #[test]
    fn a_path_with_spaces_is_one_option_and_stays_one() {
        let options = java_options("http://a:1", "/my ca/bundle.p12").unwrap();
        assert!(options.ends_with("-Djavax.net.ssl.trustStore=\"/my ca/bundle.p12\""), "{options}");
        let words = java_words(&options);
        assert_eq!(words.len(), 5, "{words:?}");
        assert!(words.iter().all(|word| is_own_java_option(word)));
        assert_eq!(java_words("  -Xmx1g '-Da=b c'\t-Dd=\"e f\"g "), ["-Xmx1g", "'-Da=b c'", "-Dd=\"e f\"g"]);
        assert_eq!(java_words("-Da='open b"), ["-Da='open b"]);
    }

    #[test]
    fn what_the_user_set_is_kept_and_merging_twice_changes_nothing() {
        let mut once = fresh();
        merge(&mut once, |name| match name {
            "NO_PROXY" => Some("10.0.0.0/8,.internal".to_owned()),
            JAVA => Some("-Xmx1g -Dhttp.proxyHost=old -Djavax.net.ssl.trustStoreType=JKS".to_owned()),
            _ => None,
        });
        assert_eq!(value(&once, "no_proxy"), Some("10.0.0.0/8,.internal"));
        let java = value(&once, JAVA).unwrap();
        let kept = "-Xmx1g -Dhttp.nonProxyHosts=localhost|127.*|[::1]|internal|*.internal -Dhttp.proxyHost=127.0.0.1 ";
        assert!(java.starts_with(kept), "{java}");

        let mut twice = fresh();
        merge(&mut twice, |name| value(&once, name).map(str::to_owned));
        assert_eq!(once, twice);
    }
}
