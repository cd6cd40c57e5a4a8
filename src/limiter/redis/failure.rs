//! What goes wrong with Redis, told apart by what an operator can do about it.

use fred::prelude::{Error, ErrorKind};

/// Why Redis did not do as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No answer in time: the command may have been executed.
    Timeout,
    /// There is no connection, or it broke.
    Disconnected,
    /// There is no connection, because TLS cannot be agreed on.
    Tls,
    /// The user, the password or an ACL forbids it: `NOAUTH`, `WRONGPASS`, `NOPERM`.
    Forbidden,
    /// `OOM`.
    OutOfMemory,
    /// It is a replica: `READONLY`, `MASTERDOWN`.
    ReadOnly,
    /// It still reads its data set: `LOADING`.
    Loading,
    /// It runs a script without end: `BUSY`.
    Busy,
    /// A part of the cluster is gone: `CLUSTERDOWN`.
    ClusterDown,
    /// Any other error that Redis answered with.
    Refused,
}

impl Failure {
    /// A word for logs and metrics; what Redis wrote stays out of them, since it may quote keys.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
            Self::Tls => "tls",
            Self::Forbidden => "forbidden",
            Self::OutOfMemory => "out_of_memory",
            Self::ReadOnly => "read_only",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::ClusterDown => "cluster_down",
            Self::Refused => "refused",
        }
    }

    /// What an operator can do about it; empty where only waiting helps.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Timeout | Self::Disconnected => "check that Redis runs and can be reached under `redis.url`",
            Self::Tls => {
                "name the CA that signed Redis's certificate as `redis.ca_file`, and Redis by a name in its certificate"
            }
            Self::Forbidden => PERMISSIONS,
            Self::OutOfMemory => "raise `maxmemory`, or move to Redis what else fills it elsewhere",
            Self::ReadOnly => "name the master as `redis.url`, or let sentinels find it: `redis-sentinel://`",
            Self::Busy => "`SCRIPT KILL` ends somebody's script that does not end",
            Self::ClusterDown => "bring the missing masters of the cluster back, or promote replicas of theirs",
            Self::Loading | Self::Refused => "",
        }
    }

    /// Whether the server or the way to it is at fault, not one key alone.
    pub fn is_of_the_server(self) -> bool {
        self != Self::Refused
    }
}

/// What an error means for the limiter.
pub(super) fn failure(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::Timeout => return Failure::Timeout,
        ErrorKind::Auth => return Failure::Forbidden,
        ErrorKind::Tls => return Failure::Tls,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => return Failure::Disconnected,
        _ => {}
    }
    match code(error.details()) {
        "NOPERM" | "NOAUTH" | "WRONGPASS" => Failure::Forbidden,
        "OOM" => Failure::OutOfMemory,
        "READONLY" | "MASTERDOWN" => Failure::ReadOnly,
        "LOADING" => Failure::Loading,
        "BUSY" => Failure::Busy,
        "CLUSTERDOWN" => Failure::ClusterDown,
        _ => Failure::Refused,
    }
}

/// The first word of what Redis said, which tells the kind of error. Up to Redis 6.2 what went wrong in a script stands behind
/// the place where it did: `ERR Error running script (call to f_5c2a): @user_script:7: @user_script: 7: -OOM command not …`.
pub(super) fn code(said: &str) -> &str {
    let said = match said.strip_prefix("ERR Error running script") {
        Some(said) => {
            said.rsplit("@user_script:").next().and_then(|said| said.split_once(": ")).map_or("", |(_, said)| said)
        }
        None => said,
    };
    said.trim_start_matches('-').split([' ', ':']).next().unwrap_or_default()
}

/// The hint for whatever an ACL forbids.
pub(super) const PERMISSIONS: &str =
    "check user and password; the user needs `~bkt:* &bkt:* +@all -@dangerous`, `bkt` being `redis.prefix`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_is_told_apart_by_its_first_word() {
        let said = |text: &str| failure(&Error::new(ErrorKind::Unknown, text.to_owned()));
        assert_eq!(said("OOM command not allowed when used memory > 'maxmemory'. script: 12"), Failure::OutOfMemory);
        assert_eq!(said("READONLY You can't write against a read only replica. script: 12"), Failure::ReadOnly);
        assert_eq!(said("LOADING Redis is loading the dataset in memory"), Failure::Loading);
        assert_eq!(said("BUSY Redis is busy running a script."), Failure::Busy);
        assert_eq!(said("NOPERM User pacer has no permissions to run the 'evalsha' command"), Failure::Forbidden);
        assert_eq!(said("CLUSTERDOWN The cluster is down"), Failure::ClusterDown);
        assert_eq!(said("WRONGTYPE Operation against a key holding the wrong kind of value"), Failure::Refused);
        assert_eq!(said("PACER claim: bad limit"), Failure::Refused);
    }

    #[test]
    fn what_went_wrong_in_a_script_is_found_behind_its_place() {
        let in_script = |text: &str| format!("ERR Error running script (call to f_80c9): @user_script:412: {text}");
        assert_eq!(code(&in_script("WRONGTYPE Operation against a key holding the wrong kind of value")), "WRONGTYPE");
        assert_eq!(
            code(&in_script("@user_script: 412: -OOM command not allowed when used memory > 'maxmemory'.")),
            "OOM"
        );
        assert_eq!(
            code(&in_script("@user_script: 412: -READONLY You can't write against a read only replica.")),
            "READONLY"
        );
        // Since Redis 7.
        assert_eq!(code("OOM command not allowed. script: 80c9, on @user_script:412."), "OOM");
        assert_eq!(code("NOSCRIPT No matching script. Please use EVAL."), "NOSCRIPT");
    }
}
