//! `ota-pacer ca`: the certificate authority, seen, handed out and replaced.

use std::{
    fs,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context, bail};
use clap::{ArgAction, Subcommand, ValueEnum};

use crate::ca::{self, Authority, Description};

/// Show, hand out or replace the certificate authority that clients must trust
#[derive(Debug, clap::Args)]
pub struct Ca {
    #[command(subcommand)]
    action: Action,
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE", env = "OTA_PACER_CONFIG", default_value = "config/ota-pacer.yaml")]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print its files, fingerprint, validity and what it may vouch for
    Show,
    /// Write the certificates to trust in another format; never a key
    Export(Export),
    /// Replace it: from now on clients are told to trust the new one and the old one
    Rotate(Rotate),
}

#[derive(Debug, clap::Args)]
struct Export {
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Pem)]
    format: Format,
    /// Where to write it; standard output when left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Guards the store against tampering; `changeit` for jks when left out, for p12 none, which Java reads as well
    #[arg(long, value_name = "PASSWORD", env = "OTA_PACER_STORE_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Add the system's roots, as a Java trust store replaces those that Java brings [default: true for p12 and jks]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    with_system_roots: Option<bool>,
}

#[derive(Debug, clap::Args)]
struct Rotate {
    /// Make no new one; have clients trust the newest alone
    #[arg(long)]
    drop_old: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Pem,
    Der,
    /// PKCS#12, for Java 8 and later and most other software
    P12,
    /// For older Java software
    Jks,
}

impl Ca {
    /// Does it; exit code 2 when the configuration has mistakes.
    ///
    /// # Errors
    /// When the authority cannot be had, or something cannot be written.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        super::config_file::with(&self.config, |config| {
            let ca = &config.ca;
            match self.action {
                Action::Show => print(Description::of(&Authority::open(ca)?).to_string().as_bytes())?,
                Action::Export(export) => export.run(&Authority::open(ca)?)?,
                Action::Rotate(Rotate { drop_old: false }) => {
                    let rotation = ca::rotate(ca, SystemTime::now())?;
                    print(rotated(&rotation).as_bytes())?;
                }
                Action::Rotate(Rotate { drop_old: true }) => {
                    let (authority, dropped) = ca::drop_old(ca, SystemTime::now())?;
                    print(dropped_old(&authority, dropped).as_bytes())?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl Export {
    fn run(self, authority: &Authority) -> anyhow::Result<()> {
        let (format, is_store) = match self.format {
            Format::Pem => (ca::Format::Pem, false),
            Format::Der => (ca::Format::Der, false),
            Format::P12 => (ca::Format::Pkcs12, true),
            Format::Jks => (ca::Format::Jks, true),
        };
        if self.format == Format::Der && self.with_system_roots == Some(true) {
            bail!("`der` holds one certificate\n\nhint: `--format pem` holds any number of them");
        }
        if self.password.as_ref().is_some_and(|password| password.chars().count() < SHORTEST_PASSWORD) && is_store {
            bail!(
                "Java tools take no password of less than {SHORTEST_PASSWORD} characters\n\nhint: it guards nothing secret; `changeit` is what everybody uses"
            );
        }
        let with_system_roots = self.with_system_roots.unwrap_or(is_store);
        let bytes = ca::export(authority, format, with_system_roots, self.password.as_deref());
        match &self.out {
            Some(path) => fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display())),
            None if self.format != Format::Pem && std::io::stdout().is_terminal() => {
                bail!("the terminal cannot show this format\n\nhint: name a file with `--out FILE`")
            }
            None => print(&bytes),
        }
    }
}

fn rotated(rotation: &ca::Rotation) -> String {
    let authority = &rotation.authority;
    let [certificate, key] = rotation.retired.each_ref().map(|path| path.display());
    format!(
        "{}\n\
         The old authority is kept in {certificate} and {key}.\n\
         {bundle}, {store} and {ours} trust both. Now, in this order:\n\
         \n\
         1. Give these files to clients that have copies of them, on other machines, in images and in trust stores\n\
         2. Restart the workers: they read them when they start\n\
         3. Restart the proxies: until then they sign with the old key. One that is restarted before the workers\n   \
            is not trusted by those that still run\n\
         4. When no worker from before is left: `ota-pacer ca rotate --drop-old`\n",
        Description::of(authority),
        bundle = authority.bundle_path().display(),
        store = authority.trust_store_path().display(),
        ours = authority.certificate_path().display(),
    )
}

fn dropped_old(authority: &Authority, dropped: usize) -> String {
    let what = match dropped {
        0 => "There was no older authority.".to_owned(),
        1 => "The older authority is trusted no more.".to_owned(),
        _ => format!("{dropped} older authorities are trusted no more."),
    };
    let next = "Its key in the files `ca-DATE.key` is worth stealing as long as any client trusts it:\n\
                delete them, and remove the old certificate where it was copied to.\n";
    format!("{}\n{what}\n{}", Description::of(authority), if dropped > 0 { next } else { "" })
}

fn print(bytes: &[u8]) -> anyhow::Result<()> {
    std::io::stdout().write_all(bytes).context("cannot write to standard output")
}

/// What `keytool` insists on.
const SHORTEST_PASSWORD: usize = 6;
