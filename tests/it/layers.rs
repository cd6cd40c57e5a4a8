//! Modules import only from layers below their own, as the table in `lib.rs` lays down.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn modules_import_only_from_layers_below() {
    let layers = layers();
    let mut faults = Vec::new();
    for file in sources() {
        let Some(module) = top_module(&file) else { continue };
        let Some(layer) = layers.get(module.as_str()) else {
            faults.push(format!("module `{module}` has no layer in the table of `lib.rs`"));
            continue;
        };
        for (line, imported) in imports(&file) {
            if imported != module && layers.get(imported.as_str()).is_some_and(|below| below >= layer) {
                faults.push(format!("{}:{line}: `{module}` imports `{imported}`", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "these imports go up or sideways:\n{}", faults.join("\n"));
}

#[test]
fn drivers_are_named_only_where_they_are_wrapped() {
    for (driver, home) in [("fred::", "limiter/redis"), ("rcgen::", "ca")] {
        for file in sources() {
            let inside = relative(&file).to_str().is_some_and(|path| path.starts_with(home));
            let named = code(&file).contains(driver);
            assert!(inside || !named, "{} names `{driver}`, which only `{home}` may", file.display());
        }
    }
}

#[test]
fn imports_are_read_in_every_form() {
    let text = "use crate::config::model;\nuse crate::{a::b, c::{d, e}, f};\nlet x = crate::g::h();\n";
    let names: Vec<_> = crate_paths(text).into_iter().map(|(line, name)| format!("{line}{name}")).collect();
    assert_eq!(names, ["1config", "2a", "2c", "2f", "3g"]);
}

/// Reads `| 4 | `app`, `admin` |` lines of the table.
fn layers() -> BTreeMap<String, u32> {
    let lib = fs::read_to_string(source_root().join("lib.rs")).expect("`lib.rs` is read");
    let mut layers = BTreeMap::new();
    for row in lib.lines().filter_map(|line| line.strip_prefix("//! | ")) {
        let Some((layer, modules)) = row.split_once(" | ") else { continue };
        let Ok(layer) = layer.trim().parse() else { continue };
        layers.extend(modules.split('`').skip(1).step_by(2).map(|module| (module.to_owned(), layer)));
    }
    assert!(layers.len() > 5, "the table of layers is read: {layers:?}");
    layers
}

fn sources() -> Vec<PathBuf> {
    let mut folders = vec![source_root()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a source folder is listed") {
            let path = entry.expect("a folder entry is read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn relative(file: &Path) -> PathBuf {
    file.strip_prefix(source_root()).expect("sources lie in `src`").to_owned()
}

/// `None` for the two crate roots, which stand above all layers.
fn top_module(file: &Path) -> Option<String> {
    let relative = relative(file);
    let first = relative.components().next()?.as_os_str().to_str()?.trim_end_matches(".rs");
    (first != "lib" && first != "main").then(|| first.to_owned())
}

/// The modules that a file reaches from the root, by `crate::` or by enough `super::`, with the line.
fn imports(file: &Path) -> Vec<(usize, String)> {
    let text = code(file);
    let relative = relative(file);
    let depth = relative.components().count() - usize::from(relative.ends_with("mod.rs"));
    let to_root = "super::".repeat(depth);
    let mut found = crate_paths(&text);
    found.extend(paths_after(&text, &to_root));
    found
}

fn crate_paths(text: &str) -> Vec<(usize, String)> {
    paths_after(text, "crate::")
}

fn paths_after(text: &str, root: &str) -> Vec<(usize, String)> {
    text.match_indices(root)
        .flat_map(|(at, _)| {
            let line = text[..at].lines().count().max(1);
            heads(&text[at + root.len()..]).into_iter().map(move |name| (line, name))
        })
        .collect()
}

/// The first names of a path: one, or those of a braced group.
fn heads(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![identifier(rest)] };
    let mut names = Vec::new();
    let (mut depth, mut fresh) = (0, true);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && depth == 0 && !c.is_whitespace() => {
                names.push(identifier(&group[at..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// The file without the text of its comments; lines keep their numbers.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a source file is read");
    text.lines()
        .map(|line| if line.trim_start().starts_with("//") { "\n".to_owned() } else { format!("{line}\n") })
        .collect()
}
