//! `ota-pacer env`: what a shell must export so that its clients go through the proxy and trust it.

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use clap::ValueEnum;

use super::{WrongUsage, config_file::ConfigFile};
use crate::{
    ca::{Authority, environment},
    config::Config,
};

/// Print the exports that send every client of a shell through the proxy: `eval "$(ota-pacer env)"`
#[derive(Debug, clap::Args)]
pub struct Env {
    #[command(flatten)]
    config: ConfigFile,
    /// Where clients reach the proxy, when that is not its `listen` address
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
    /// Where clients find the CA's files, when that is not where they are written, such as the mount of a container
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<PathBuf>,
    /// Also send Nodes before 22.21 through the proxy, which read no variable for it: `NODE_OPTIONS` has them load a file
    #[arg(long)]
    node_preload: bool,
    /// How to write it
    #[arg(long, value_enum, default_value_t = Syntax::Sh)]
    shell: Syntax,
}

/// Whose syntax to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Syntax {
    /// bash, zsh, dash and other POSIX shells
    Sh,
    Fish,
    #[value(name = "powershell")]
    PowerShell,
    /// Lines of a `.env` file
    Dotenv,
    /// Lines for `docker run --env-file`, which takes quotes for a part of the value
    Docker,
}

impl Env {
    /// Makes the CA where there is none, brings its bundle up to date, and prints the exports; nothing else goes to
    /// standard output, so that it can be evaluated.
    ///
    /// # Errors
    /// When the CA cannot be had, or `--proxy` is no URL that clients understand.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.config.with(|config| {
            let proxy = proxy_of(&config, self.proxy.clone()).map_err(WrongUsage)?;
            // First the files, then the paths: some clients fail hard on a missing one.
            let authority = Authority::open(&config.ca)?;
            let mut variables = environment::variables(&proxy, &authority);
            // An open port is known to the process that listens on it alone.
            let gateway = config.gateway.filter(|gateway| gateway.port() != 0);
            variables.extend(gateway.map(|gateway| environment::gateway(gateway, self.proxy.as_deref())));
            if self.node_preload {
                let existing = |name: &str| std::env::var(name).ok().filter(|_| self.ca_dir.is_none());
                environment::preload_node(&mut variables, &authority, existing);
            }
            match &self.ca_dir {
                // Other files, other machine: what this one has set does not count there.
                Some(seen) => environment::relocate(&mut variables, &authority, seen),
                None => {
                    environment::merge(&mut variables, |name| std::env::var(name).ok());
                    if !variables.iter().any(|(name, _)| name == environment::WGETRC) {
                        let bundle = authority.bundle_path().display();
                        eprintln!("hint: your wgetrc stays in force; have it say `ca_certificate = {bundle}`");
                    }
                }
            }
            let text = self.shell.exports(&variables)?;
            std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn proxy_of(config: &Config, given: Option<String>) -> anyhow::Result<String> {
    match given {
        Some(url) if is_plain_http(&url) => Ok(url),
        Some(url) if url.contains('@') => {
            bail!("`--proxy` holds credentials, which the proxy does not ask for\n\nhint: say `http://HOST:PORT`")
        }
        Some(url) => bail!(
            "`--proxy {url}` is no URL of the form `http://HOST:PORT`\n\n\
             hint: clients speak plain HTTP to the proxy, even for https:// sites"
        ),
        None if config.listen.port() == 0 => {
            bail!("`listen` leaves the port open\n\nhint: name the port there, or say `--proxy http://HOST:PORT`")
        }
        None => Ok(environment::proxy_url(config.listen)),
    }
}

fn is_plain_http(url: &str) -> bool {
    url.parse::<http::Uri>().is_ok_and(|uri| {
        uri.scheme() == Some(&http::uri::Scheme::HTTP)
            && uri.port().is_some()
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && matches!(uri.path_and_query().map(http::uri::PathAndQuery::as_str), None | Some("/"))
    })
}

impl Syntax {
    fn exports(self, variables: &[(String, String)]) -> anyhow::Result<String> {
        if let Some((name, _)) = variables.iter().find(|(_, value)| self == Self::Docker && value.contains('\n')) {
            bail!("the value of `{name}` has several lines, which an `--env-file` cannot hold");
        }
        Ok(variables.iter().map(|(name, value)| self.export(name, value)).collect())
    }

    /// One line that sets `name`, which needs no quoting, to `value`, whatever that holds.
    fn export(self, name: &str, value: &str) -> String {
        match self {
            Self::Sh => format!("export {name}={}\n", sh_quoted(value)),
            Self::Fish => format!("set -gx {name} '{}'\n", value.replace('\\', r"\\").replace('\'', r"\'")),
            Self::PowerShell => format!("$Env:{name} = '{}'\n", power_shell_quoted(value)),
            Self::Dotenv => format!("{name}={}\n", dotenv_quoted(value)),
            Self::Docker => format!("{name}={value}\n"),
        }
    }
}

/// `value` as one word of a POSIX shell.
pub(super) fn sh_quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', r"'\''"))
}

/// PowerShell ends a string at typographic quotes as well, and any of them doubled stands for itself.
fn power_shell_quoted(value: &str) -> String {
    value.chars().flat_map(|c| std::iter::repeat_n(c, if "'‘’‚‛".contains(c) { 2 } else { 1 })).collect()
}

/// Plain where it can be: not every reader of such files knows quotes.
fn dotenv_quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:,@%+=*".contains(c);
    if value.chars().all(is_plain) {
        return value.to_owned();
    }
    let escaped: String =
        value.chars().flat_map(|c| "\\\"$`".contains(c).then_some('\\').into_iter().chain([c])).collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_its_own_quoting() {
        let value = "/o'brien/a b$HOME`id`\\";
        for (shell, line) in [
            (Syntax::Sh, r"export CA='/o'\''brien/a b$HOME`id`\'"),
            (Syntax::Fish, r"set -gx CA '/o\'brien/a b$HOME`id`\\'"),
            (Syntax::PowerShell, r"$Env:CA = '/o''brien/a b$HOME`id`\'"),
            (Syntax::Dotenv, r#"CA="/o'brien/a b\$HOME\`id\`\\""#),
            (Syntax::Docker, r"CA=/o'brien/a b$HOME`id`\"),
        ] {
            assert_eq!(shell.export("CA", value), format!("{line}\n"), "{shell:?}");
        }
        assert_eq!(Syntax::Dotenv.export("http_proxy", "http://127.0.0.1:8080"), "http_proxy=http://127.0.0.1:8080\n");
        assert_eq!(Syntax::PowerShell.export("A", "‘x"), "$Env:A = '‘‘x'\n");
    }

    #[test]
    fn a_shell_reads_back_what_was_meant() {
        let value = "/o'brien/a b$HOME`id`\\\"*";
        let script = format!("{}printf %s \"$CA\"", Syntax::Sh.export("CA", value));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
    }

    #[test]
    fn a_proxy_is_a_plain_http_url_without_credentials() {
        for good in ["http://127.0.0.1:8080", "http://pacer.internal:8080/", "http://[::1]:8080"] {
            assert!(is_plain_http(good), "{good}");
        }
        for bad in
            ["https://a:1", "a:8080", "http://a", "http://user:secret@a:1", "http://a:1/path", "socks5://a:1", ""]
        {
            assert!(!is_plain_http(bad), "{bad}");
        }
    }
}
