//! Files for clients that a variable can only point to one: GNU wget, PHP, and Nodes that read no proxy variable.

use std::{fs, io, path::Path};

use super::files::{self, Readers};

/// Writes the files into the directory of the authority, where they are not there as they should be.
///
/// # Errors
/// When one cannot be written.
pub(super) fn refresh(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir.join(PHP_DIR))?;
    let wgetrc = format!("ca_certificate = {}\n", dir.join("bundle.pem").display());
    for (path, contents) in [
        (dir.join(WGETRC_FILE), wgetrc.as_str()),
        (dir.join(PHP_DIR).join(PHP_FILE), PHP_INI),
        (dir.join(NODE_FILE), NODE_PRELOAD),
    ] {
        if fs::read(&path).is_ok_and(|known| known == contents.as_bytes()) {
            continue;
        }
        files::write(&path, contents.as_bytes(), Readers::Everyone)?;
    }
    Ok(())
}

/// Name and value of the variables that point to the files in `dir`.
pub(super) fn variables(dir: &Path) -> [(String, String); 2] {
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    // Nothing before the colon stands for the directory that PHP scans by itself.
    [(WGETRC.to_owned(), path(WGETRC_FILE)), (PHP_SCAN.to_owned(), format!(":{}", path(PHP_DIR)))]
}

/// Completes `variables` with what `existing` says. PHP reads several directories; wget reads one file, so ours gives way
/// to the user's.
pub(super) fn merge(variables: &mut Vec<(String, String)>, existing: impl Fn(&str) -> Option<String>) {
    for (_, value) in variables.iter_mut().filter(|(name, _)| name == PHP_SCAN) {
        let ours = value.trim_start_matches(':').to_owned();
        if let Some(known) = existing(PHP_SCAN).filter(|known| !known.is_empty()) {
            let others: Vec<&str> = known.split(':').filter(|dir| *dir != ours).collect();
            *value = format!("{}:{ours}", others.join(":"));
        }
    }
    let home = existing("HOME").filter(|home| Path::new(home).join(".wgetrc").exists());
    let named = existing(WGETRC).filter(|file| !file.is_empty());
    variables.retain(|(name, value)| name != WGETRC || named.as_ref().map_or(home.is_none(), |file| file == value));
}

/// Name and value of the variable that has an old Node load our file in `dir`, besides what `existing` has it load.
pub(super) fn node_preload(dir: &Path, existing: impl Fn(&str) -> Option<String>) -> (String, String) {
    let path = dir.join(NODE_FILE).to_string_lossy().replace('\\', r"\\").replace('"', "\\\"");
    let ours = format!("--require \"{path}\"");
    let known = existing(NODE_OPTIONS).filter(|options| !options.trim().is_empty());
    let value = match known {
        Some(options) if options.contains(&ours) => options,
        Some(options) => format!("{options} {ours}"),
        None => ours,
    };
    (NODE_OPTIONS.to_owned(), value)
}

/// The one variable that [`merge`] may leave out.
pub(super) const WGETRC: &str = "WGETRC";

const WGETRC_FILE: &str = "wgetrc";
const PHP_SCAN: &str = "PHP_INI_SCAN_DIR";
const PHP_DIR: &str = "php";
const PHP_FILE: &str = "ota-pacer.ini";

const NODE_OPTIONS: &str = "NODE_OPTIONS";
const NODE_FILE: &str = "node-preload.cjs";
const NODE_PRELOAD: &str = include_str!("node-preload.cjs");

/// PHP replaces the variables as it starts. Where they are not set the values are empty, which is its default.
const PHP_INI: &str = "curl.cainfo = ${CURL_CA_BUNDLE}\nopenssl.cafile = ${SSL_CERT_FILE}\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(existing: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut variables = variables(Path::new("/ca")).to_vec();
        let lookup = |name: &str| existing.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        merge(&mut variables, lookup);
        variables
    }

    fn own(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn php_scans_our_directory_after_those_it_has() {
        for (known, value) in [
            ("", ":/ca/php"),
            ("/etc/mine", "/etc/mine:/ca/php"),
            (":/ca/php", ":/ca/php"),
            ("/a::/b", "/a::/b:/ca/php"),
        ] {
            assert_eq!(merged(&[(PHP_SCAN, known)])[1].1, value, "{known:?}");
        }
    }

    #[test]
    fn the_users_wgetrc_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        assert_eq!(merged(&[("HOME", path)])[0].1, "/ca/wgetrc");
        assert_eq!(merged(&[(WGETRC, "/ca/wgetrc")])[0].1, "/ca/wgetrc", "ours already");
        let without = own(&[(PHP_SCAN, ":/ca/php")]);
        assert_eq!(merged(&[(WGETRC, "/mine")]), without);
        fs::write(home.path().join(".wgetrc"), "").unwrap();
        assert_eq!(merged(&[("HOME", path)]), without);
    }

    #[test]
    fn node_loads_our_file_besides_others() {
        let dir = Path::new("/my ca");
        let (name, value) = node_preload(dir, |_| Some("--max-old-space-size=512".to_owned()));
        assert_eq!(name, NODE_OPTIONS);
        assert_eq!(value, "--max-old-space-size=512 --require \"/my ca/node-preload.cjs\"");
        assert_eq!(node_preload(dir, |_| Some(value.clone())).1, value);
    }

    #[test]
    fn files_are_written_once() {
        let dir = tempfile::tempdir().unwrap();
        refresh(dir.path()).unwrap();
        let wgetrc = dir.path().join(WGETRC_FILE);
        let text = fs::read_to_string(&wgetrc).unwrap();
        assert_eq!(text, format!("ca_certificate = {}\n", dir.path().join("bundle.pem").display()));
        let written = fs::metadata(&wgetrc).unwrap().modified().unwrap();
        refresh(dir.path()).unwrap();
        assert_eq!(fs::metadata(&wgetrc).unwrap().modified().unwrap(), written);
        assert!(fs::read_to_string(dir.path().join(PHP_DIR).join(PHP_FILE)).unwrap().contains("curl.cainfo"));
    }
}
