//! The configuration of an instance: one YAML file, read whole, every mistake reported at once.

pub mod host;
pub mod model;
pub mod path;
pub mod schema;
pub mod units;

mod channels;
mod conflict;
mod document;
mod expand;
mod gateway;
mod key;
mod limits;
mod mistake;
mod parent;
mod pattern;
mod reader;
mod secrets;
mod settings;

use std::{fs::File, io::Read, path::Path};

use self::reader::{Context, Section};

pub use self::{mistake::Errors, model::Config};

/// Reads and validates the file at `path`, with references to the environment of this process.
///
/// # Errors
/// When the file cannot be read, is larger than 1 MiB, or holds mistakes.
pub fn load(path: &Path) -> Result<Config, Errors> {
    let mut bytes = Vec::new();
    // Bounded before it is read: the path may name a device or a dump.
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Errors::unreadable(path, &error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Errors::of_file(path, "the configuration is larger than 1 MiB", "is this the right file?"));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Errors::of_file(path, "the configuration is not UTF-8", "save the file as UTF-8 text"))?;
    parse(&path.display().to_string(), &text, |name| std::env::var(name).ok())
}

/// Validates the text of a configuration file. `file` names it in messages; `env` looks up the variables it refers to.
///
/// # Errors
/// With every mistake in the text. Syntax that is not YAML is one mistake, as nothing after it can be trusted.
pub fn parse(file: &str, text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Config, Errors> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (document, duplicates) = document::read(text).map_err(|mistake| Errors::new(file, text, vec![mistake]))?;
    let cx = Context::new(&env);
    let root = Section::open::<schema::File>(&cx, "the configuration", &(0..0), Some(&*document), &[]);
    let settings::Addresses { listen, admin, gateway } = settings::addresses(&root);
    let mut config = Config {
        listen,
        gateway,
        admin,
        redis: settings::redis(&root),
        ca: settings::ca(&root),
        upstream: settings::upstream(&root),
        unmatched: settings::unmatched(&root),
        priority: settings::priority(&root),
        annotate: settings::annotate(&root),
        channels: channels::channels(&root, settings::defaults(&root)),
        warnings: Vec::new(),
    };
    config.ca.hosts =
        config.channels.iter().filter(|channel| channel.intercept).flat_map(|channel| channel.hosts.clone()).collect();
    root.finish();
    let (mut mistakes, warnings) = cx.finish();
    mistakes.extend(duplicates);
    if !mistakes.is_empty() {
        return Err(Errors::new(file, text, mistakes));
    }
    config.warnings = warnings.iter().map(|warning| warning.warning(file, text)).collect();
    Ok(config)
}

const MAX_BYTES: u64 = 1 << 20;
