//! What can be wrong with an authority, told to the operator who has to put it right.

use std::{io, path::PathBuf};

/// Why the authority could not be opened. The text ends with a hint, so it holds the cause, which is no `source` for a report
/// to add behind it.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The directory cannot be made or opened.
    #[error("cannot open the CA directory `{}`: {cause}\n\nhint: `ca.dir` must be a directory that this user may read and write", dir.display())]
    Directory {
        /// The directory of the configuration.
        dir: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`: {cause}\n\nhint: the user that runs ota-pacer must be able to read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file cannot be written.
    #[error(
        "cannot write `{}`: {cause}\n\nhint: make `ca.dir` writable: `bundle.pem` is kept current there even when the key and the certificate are your own",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// One of the pair is there, the other is not.
    #[error(
        "`{}` is there but `{}` is not\n\nhint: put both of your own there, or remove the one to have a new pair made",
        present.display(),
        missing.display()
    )]
    HalfAPair {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// Everybody on the machine can use the key.
    #[error(
        "`{}` can be used by every user of this machine (mode {mode:04o})\n\nhint: `chmod 600 {}`; whoever reads it can impersonate any site to every client that trusts this CA (for a mounted Kubernetes secret set `defaultMode: 0400`)",
        path.display(),
        path.display()
    )]
    KeyExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The key file holds no key that can sign.
    #[error("`{}` holds no usable private key\n\nhint: it must be one unencrypted PEM key: ECDSA P-256, P-384, P-521 or RSA", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
    },
    /// The certificate file holds no certificate.
    #[error("`{}` holds no certificate: {reason}\n\nhint: it must be a PEM file, the signing CA first, then any certificates above it", path.display())]
    Certificate {
        /// The certificate file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificate does not belong to the key.
    #[error("`{}` does not belong to `{}`\n\nhint: put the certificate and the key of the same CA there, or remove both to have a new pair made", certificate.display(), key.display())]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The certificate may not sign others.
    #[error("`{}` is not a CA: {reason}\n\nhint: it needs basicConstraints `CA:TRUE` and, where it has a keyUsage, `keyCertSign`", path.display())]
    NotAnAuthority {
        /// The certificate file.
        path: PathBuf,
        /// What it lacks.
        reason: &'static str,
    },
    /// Its subject does not survive being written again as a leaf's issuer.
    #[error("the subject of `{}` cannot be an issuer here\n\nhint: use a CA whose subject names each attribute once", path.display())]
    Subject {
        /// The certificate file.
        path: PathBuf,
    },
    /// Only what was made here is replaced.
    #[error(
        "`{}` was not made by ota-pacer\n\nhint: put the certificate and the key of your new CA in place of the old ones, the old certificate behind the new one until no client needs it, and restart the proxy",
        path.display()
    )]
    NotOurs {
        /// The certificate file.
        path: PathBuf,
    },
    /// Its time is over, or has not come.
    #[error("`{}` is {state}\n\nhint: {hint}", path.display())]
    Validity {
        /// The certificate file.
        path: PathBuf,
        /// `expired` or `not valid yet`, and since or until when.
        state: String,
        /// What to do.
        hint: &'static str,
    },
    /// The library failed to make a key or a certificate.
    #[error("cannot make a certificate: {0}\n\nhint: the system's source of randomness may be missing")]
    Generate(#[from] MintError),
}

/// Why no leaf could be minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The authority ran out while the process was running.
    #[error("the CA certificate has expired")]
    AuthorityExpired,
    /// Encoding or signing failed.
    #[error("certificate generation failed: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refuses the key.
    #[error("TLS refuses the minted key: {0}")]
    Tls(#[from] rustls::Error),
}
