//! A stand-in for an OTA: true limits, 429 with `Retry-After` on excess, scripted answers, and a record of every arrival.
//!
//! ```text
//! mock_ota --ca-file ca.pem --limit '/hotels/xml/availability=bucket:20/s:40'
//! ```
//!
//! Prints one JSON line with its addresses once it listens, then serves until it is stopped. The ports of `--https` and
//! `--http` are the OTA; `--control` is for whoever watches it (see `control.rs` for what it answers).
//!
//! It shares no code with the proxy, so that it can judge it.

mod body;
mod control;
mod judge;
mod ledger;
mod limit;
mod origin;
mod ota;
mod pki;
mod script;

use std::{io::Read, net::SocketAddr, path::PathBuf, sync::Arc};

use clap::Parser;
use http::HeaderName;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{limit::Rule, ota::Ota, script::RetryAfterForm};

/// An OTA to test pacing against.
#[derive(Parser)]
struct Args {
    /// Where the OTA answers https
    #[arg(long, default_value = "127.0.0.1:0")]
    https: SocketAddr,
    /// Where the OTA answers plain http
    #[arg(long, default_value = "127.0.0.1:0")]
    http: SocketAddr,
    /// Where scripts are taken and reports given
    #[arg(long, default_value = "127.0.0.1:0")]
    control: SocketAddr,
    /// Where the certificate of the OTA's own CA is written, for clients to trust
    #[arg(long)]
    ca_file: PathBuf,
    /// A name or address the OTA's certificate is valid for; may be given several times
    #[arg(long = "host", default_values = ["localhost", "127.0.0.1", "::1", "booking.test", "*.booking.test"])]
    hosts: Vec<String>,
    /// `PATH=KIND`, KIND one of `bucket:20/s:40`, `sliding:200/60s`, `clock:40/min`, `concurrent:3`; PATH may be `*`
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<Rule>,
    /// How an excess request is told to wait
    #[arg(long, default_value = "seconds", value_enum)]
    retry_after: RetryAfterForm,
    /// The request header that names the credential; without it, the user of `Authorization: Basic`
    #[arg(long)]
    credential_header: Option<HeaderName>,
    /// Exit when standard input closes, so as not to outlive the program that started this one
    #[arg(long)]
    exit_with_stdin: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let identity = pki::Identity::generate(&args.hosts)?;
    std::fs::write(&args.ca_file, identity.ca_pem())?;

    let https = TcpListener::bind(args.https).await?;
    let http = TcpListener::bind(args.http).await?;
    let control = TcpListener::bind(args.control).await?;
    let ready = serde_json::json!({
        "https": https.local_addr()?,
        "http": http.local_addr()?,
        "control": control.local_addr()?,
        "ca_file": args.ca_file,
    });

    let ota = Arc::new(Ota::new(args.limits, args.retry_after, args.credential_header));
    tokio::spawn(origin::serve(https, Some(TlsAcceptor::from(identity.server_config()?)), ota.clone()));
    tokio::spawn(origin::serve(http, None, ota.clone()));
    if args.exit_with_stdin {
        std::thread::spawn(exit_at_end_of_stdin);
    }
    println!("{ready}");
    control::serve(control, ota).await;
    Ok(())
}

fn exit_at_end_of_stdin() {
    // An error means that nothing more can be read, which is the end too.
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    std::process::exit(0);
}
