//! Authentication that holds for a connection and not for a request: NTLM, Kerberos, and `Negotiate`, which wraps both
//! (RFC 4559 section 6). Whoever sends on such a connection next speaks in the name of its user.

use http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};

/// Whose requests a connection may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bond {
    /// Anybody's.
    Free,
    /// Those of one client, whose name it may bear.
    Client,
    /// Those of one client, and the next is to answer the origin's challenge, which means nothing elsewhere.
    Handshake,
}

impl Bond {
    /// After an exchange in which a request did or did not [authenticate](authenticates_connection) and was answered so.
    pub(super) fn after(self, authenticates: bool, status: StatusCode, answer: &HeaderMap) -> Self {
        let challenge = challenges(answer).filter(|_| status == StatusCode::UNAUTHORIZED).max();
        match challenge {
            Some(Challenge::Continue) => Self::Handshake,
            Some(Challenge::Begin) => Self::Client,
            None if authenticates || self != Self::Free => Self::Client,
            None => Self::Free,
        }
    }
}

/// Whether a request with these fields authenticates, or goes on to authenticate, the connection it is sent on.
pub fn authenticates_connection(request: &HeaderMap) -> bool {
    let credentials = request.get_all(AUTHORIZATION).iter().filter_map(|value| value.to_str().ok());
    credentials.filter_map(|value| value.split_ascii_whitespace().next()).any(is_of_connection)
}

/// What an origin asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Challenge {
    Begin,
    /// An answer to the token that comes with it.
    Continue,
}

/// Commas separate challenges as well as the parameters of one. A quoted comma may look like either, at no worse price than
/// a connection that is not shared.
fn challenges(answer: &HeaderMap) -> impl Iterator<Item = Challenge> {
    let values = answer.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(|challenge| {
        let mut words = challenge.split_ascii_whitespace();
        words.next().filter(|scheme| is_of_connection(scheme))?;
        Some(if words.next().is_some() { Challenge::Continue } else { Challenge::Begin })
    })
}

fn is_of_connection(scheme: &str) -> bool {
    SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme))
}

const SCHEMES: [&str; 3] = ["Negotiate", "NTLM", "Kerberos"];

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: http::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_request_authenticates_its_connection_by_some_schemes() {
        for (value, expected) in [
            ("NTLM TlRMTVNTUAAB", true),
            ("negotiate YII", true),
            ("Kerberos YII", true),
            ("Basic bnRsbTo=", false),
            ("Bearer NTLM", false),
            ("", false),
        ] {
            assert_eq!(authenticates_connection(&fields(AUTHORIZATION, &[value])), expected, "{value}");
        }
    }

    #[test]
    fn a_connection_is_bound_from_the_first_offer_on() {
        let after = |bond: Bond, authenticates, status, values: &[&str]| {
            let status = StatusCode::from_u16(status).unwrap();
            bond.after(authenticates, status, &fields(WWW_AUTHENTICATE, values))
        };
        for (values, bond) in [
            (&["Basic realm=\"x\""][..], Bond::Free),
            (&[], Bond::Free),
            (&["NTLM"], Bond::Client),
            (&["Basic realm=\"x\", Negotiate, NTLM"], Bond::Client),
            (&["Negotiate", "ntlm TlRMTVNTUAAC"], Bond::Handshake),
        ] {
            assert_eq!(after(Bond::Free, false, 401, values), bond, "{values:?}");
        }
        assert_eq!(after(Bond::Free, false, 200, &["NTLM"]), Bond::Free, "an offer goes with a refusal");
        assert_eq!(after(Bond::Free, true, 200, &[]), Bond::Client);
        assert_eq!(after(Bond::Handshake, true, 200, &["Negotiate oYG"]), Bond::Client);
        assert_eq!(after(Bond::Client, false, 200, &[]), Bond::Client, "for good");
    }
}
