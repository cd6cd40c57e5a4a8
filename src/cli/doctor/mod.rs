//! `ota-pacer doctor`: whether the clients on this machine come through, and what helps where they do not.

mod clients;
mod examine;
mod witness;

use std::process::ExitCode;

use anyhow::{Context, ensure};

use self::{
    clients::CLIENTS,
    examine::{Finding, Health, Ward},
    witness::Witness,
};
use super::config_file::ConfigFile;
use super::{run::join_or_start, serve::runtime};
use crate::{
    ca::{Authority, Leaves, environment},
    config::{Config, host::Host},
};

/// Try each client on this machine against the proxy: does it come through, does it trust the CA, what to set
#[derive(Debug, clap::Args)]
pub struct Doctor {
    #[command(flatten)]
    config: ConfigFile,
    /// Have the clients get this through the real proxy, instead of an origin that the doctor plays itself
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

impl Doctor {
    /// Examines one client after the other, each for a bounded time, and prints a table. Without `--url` nothing leaves
    /// this machine. Exit code 1 where a client did not come through.
    ///
    /// # Errors
    /// When there is no CA or no proxy to be had.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.config.with(|config| runtime()?.block_on(examine_all(config, self.url)))
    }
}

async fn examine_all(config: Config, url: Option<String>) -> anyhow::Result<ExitCode> {
    let authority = Authority::open(&config.ca)?;
    let no_port = "cannot listen on 127.0.0.1";
    let is_relay = url.is_some();
    let (witness, app, url) = match url {
        None => {
            let host = stand_in(&config);
            let url = format!("https://{}/", host.as_str());
            let witness = Witness::answering(Leaves::new(Authority::open(&config.ca)?)?, host);
            (witness.await.context(no_port)?, None, url)
        }
        Some(url) => {
            ensure!(
                url.parse::<http::Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some()),
                "`--url {url}` is no https:// URL"
            );
            let listen = config.listen;
            let (app, _) = join_or_start(config).await?;
            let proxy = app.as_ref().map_or(listen, crate::app::App::address);
            (Witness::before(environment::reachable(proxy)).await.context(no_port)?, app, url)
        }
    };
    let mut variables = environment::variables(&environment::proxy_url(witness.address()), &authority);
    environment::merge(&mut variables, |name| std::env::var(name).ok());

    let ward = Ward::new(&witness, &variables, &url, is_relay)?;
    println!("{:<8} {:<10} {:<14} {:<10} to do", "client", "version", "came through", "trusts us");
    let (mut absent, mut is_well) = (Vec::new(), true);
    for client in CLIENTS {
        match ward.examine(client).await {
            None => absent.push(client.name),
            Some(finding) => {
                is_well &= finding.health.is_well();
                println!("{}", row(client.name, &finding, &authority));
            }
        }
    }
    if !absent.is_empty() {
        println!("\nnot on this machine: {}", absent.join(", "));
    }
    if let Some(app) = app {
        app.shutdown().await;
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn row(name: &str, finding: &Finding, authority: &Authority) -> String {
    let (came, trusts) = match finding.health {
        Health::Well => ("yes", "yes"),
        Health::Bypasses => ("no", "-"),
        Health::Distrusts => ("yes", "no"),
        Health::Fails => ("yes", "unknown"),
        Health::CannotAsk => ("not tried", "-"),
    };
    let advice = finding
        .advice
        .replace("{bundle}", &authority.bundle_path().to_string_lossy())
        .replace("{ca}", &authority.certificate_path().to_string_lossy());
    format!("{name:<8} {:<10} {came:<14} {trusts:<10} {advice}", finding.version).trim_end().to_owned()
}

/// A name that no resolver knows (RFC 6761 section 6.4), so that a client that goes past the proxy gets nowhere; below that
/// of a channel where the CA may vouch for no other.
fn stand_in(config: &Config) -> Host {
    let hosts = config.channels.iter().flat_map(|channel| &channel.hosts).map(ToString::to_string);
    let domains = hosts.map(|host| host.trim_start_matches("*.").split(':').next().unwrap_or_default().to_owned());
    let below =
        domains.filter_map(|domain| Host::parse(&format!("{STAND_IN}.{domain}")).ok()).find(|host| host.ip().is_none());
    below
        .filter(|_| config.ca.name_constraints)
        .unwrap_or_else(|| Host::parse(&format!("{STAND_IN}.invalid")).expect("it is a name"))
}

const STAND_IN: &str = "ota-pacer-doctor";
