//! Files that appear whole or not at all, private from their first instant.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// The owner alone.
    Owner,
    /// Everybody: nothing in it is secret.
    Everyone,
}

/// Writes `path` under a temporary name beside it and renames it into place, so that a reader sees the old file or the
/// new one. The permissions are given at creation: there is no moment at which somebody else could open a private file.
pub(super) fn write(path: &Path, contents: &[u8], readers: Readers) -> io::Result<()> {
    let temporary = temporary_beside(path);
    let written = create(&temporary, readers)
        .and_then(|mut file| {
            file.write_all(contents)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Best effort: the first error is the one worth telling.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Holds the directory for this process until dropped, so that of two that start at once one makes the files and the
/// other finds them made. The kernel lets go of it when a process dies, however it dies.
pub(super) fn lock(dir: &Path) -> io::Result<File> {
    let handle = File::open(dir)?;
    match handle.lock() {
        // Some network file systems have no locks. There the first start should not be raced.
        Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(error),
        _ => Ok(handle),
    }
}

/// The permission bits that let users outside the owner and the group at the file; `None` where there are none.
pub(super) fn exposed_mode(file: &File) -> io::Result<Option<u32>> {
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    Ok((mode & 0o007 != 0).then_some(mode))
}

fn create(path: &Path, readers: Readers) -> io::Result<File> {
    let mode = match readers {
        Readers::Owner => 0o600,
        Readers::Everyone => 0o644,
    };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bundle.pem");
        write(&path, b"one", Readers::Everyone).unwrap();
        write(&path, b"two", Readers::Everyone).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_private_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        write(&path, b"secret", Readers::Owner).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(exposed_mode(&File::open(&path).unwrap()).unwrap(), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(exposed_mode(&File::open(&path).unwrap()).unwrap(), Some(0o644));
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("in-the-way"), b"").unwrap();
        write(&path, b"pem", Readers::Everyone).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
