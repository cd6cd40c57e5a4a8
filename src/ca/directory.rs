//! The directory of an authority: which files are in it, held for one process at a time.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustls_pki_types::{CertificateDer, pem::PemObject};

use super::{
    CaError,
    files::{self, Readers},
};

/// The directory, locked until dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes it where it is not there.
    pub(super) fn open(dir: &Path) -> Result<Self, CaError> {
        let unusable = |cause| CaError::Directory { dir: dir.to_owned(), cause };
        fs::create_dir_all(dir).map_err(unusable)?;
        // Clients get these paths in their environment, wherever they run.
        let path = fs::canonicalize(dir).map_err(unusable)?;
        let lock = files::lock(&path).map_err(unusable)?;
        Ok(Self { path, _lock: lock })
    }

    /// Our certificates.
    pub(super) fn certificate(&self) -> PathBuf {
        self.path.join("ca.pem")
    }

    /// The key of the first of them.
    pub(super) fn key(&self) -> PathBuf {
        self.path.join("ca.key")
    }

    /// The system's roots and ours, in PEM.
    pub(super) fn bundle(&self) -> PathBuf {
        self.path.join("bundle.pem")
    }

    /// The same, for Java.
    pub(super) fn trust_store(&self) -> PathBuf {
        self.path.join("bundle.p12")
    }

    /// What `ca.pem` holds.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, CaError> {
        let path = self.certificate();
        let pem = fs::read(&path).map_err(|cause| CaError::Read { path: path.clone(), cause })?;
        CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<_, _>>()
            .map_err(|error| CaError::Certificate { path, reason: error.to_string() })
    }

    /// Copies the pair under names with the date `now`, and says which.
    pub(super) fn set_aside(&self, now: SystemTime) -> Result<[PathBuf; 2], CaError> {
        let stamp = stamp(now);
        let pairs = [(self.certificate(), "pem", Readers::Everyone), (self.key(), "key", Readers::Owner)];
        let mut made = Vec::new();
        for (path, extension, readers) in pairs {
            let aside = self.path.join(format!("{RETIRED}{stamp}.{extension}"));
            let contents = fs::read(&path).map_err(|cause| CaError::Read { path, cause })?;
            self.write(&aside, &contents, readers)?;
            made.push(aside);
        }
        Ok(made.try_into().expect("a pair is two files"))
    }

    /// The certificates of pairs that were set aside, but for those of `trusted`.
    pub(super) fn retired(dir: &Path, trusted: &[CertificateDer<'static>]) -> io::Result<Vec<CertificateDer<'static>>> {
        let mut retired = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let is_retired = name.to_str().is_some_and(|name| name.starts_with(RETIRED) && name.ends_with(".pem"));
            if is_retired {
                let pem = fs::read(dir.join(name))?;
                retired.extend(CertificateDer::pem_slice_iter(&pem).flatten().filter(|one| !trusted.contains(one)));
            }
        }
        Ok(retired)
    }

    /// Writes a file of the directory.
    #[expect(clippy::unused_self, reason = "only who holds the directory may write there")]
    pub(super) fn write(&self, path: &Path, contents: &[u8], readers: Readers) -> Result<(), CaError> {
        files::write(path, contents, readers).map_err(|cause| CaError::Write { path: path.to_owned(), cause })
    }

    /// Writes a public file of the directory, unless it is so already.
    pub(super) fn update(&self, path: &Path, contents: &[u8]) -> Result<(), CaError> {
        match fs::read(path) {
            Ok(current) if current == contents => Ok(()),
            _ => self.write(path, contents, Readers::Everyone),
        }
    }
}

/// `2026-11-29T193000Z`: sorts by age, and is a file name everywhere.
fn stamp(now: SystemTime) -> String {
    humantime::format_rfc3339_seconds(now).to_string().replace(':', "")
}

const RETIRED: &str = "ca-";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_is_a_date_and_a_time() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(stamp(then), "2001-09-09T014640Z");
    }
}
