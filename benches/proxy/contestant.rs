//! Who is measured: an OTA, and the ways to it, each proxy a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tempfile::TempDir;

/// Everything that runs; gone once it is dropped.
pub(crate) struct Scene {
    pub(crate) ota: Ota,
    pub(crate) contestants: Vec<Contestant>,
    _processes: Vec<Process>,
    _directory: TempDir,
}

/// The OTA's ports on `localhost`.
#[derive(Clone, Copy)]
pub(crate) struct Ota {
    pub(crate) http: u16,
    pub(crate) https: u16,
}

/// A way to the OTA.
#[derive(Clone)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    /// What the OTA is asked for.
    pub(crate) path: &'static str,
    /// `None`: without a proxy.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) tls: Arc<ClientConfig>,
}

/// A running proxy.
#[derive(Clone, Copy)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pid: u32,
}

impl Proxy {
    /// User and system time of the process so far, in seconds; fields 14 and 15 of `/proc/PID/stat` (proc(5)).
    pub(crate) fn cpu_seconds(self) -> anyhow::Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        // The name, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has a name")?;
        let ticks: Vec<u64> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Scene {
    /// Starts them all.
    pub(crate) fn set() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        let mut processes = Vec::new();

        let ota_ca = at("ota.pem");
        let mut command = Command::new(example("mock_ota")?);
        command.arg("--exit-with-stdin").arg("--ca-file").arg(&ota_ca);
        let (process, ready) = Process::start(command)?;
        processes.push(process);
        let port = |name: &str| -> anyhow::Result<SocketAddr> {
            ready[name].as_str().with_context(|| format!("the OTA names its `{name}`"))?.parse().map_err(Into::into)
        };
        let ota = Ota { http: port("http")?.port(), https: port("https")?.port() };
        answer_with_a_kibibyte(port("control")?)?;

        let mut contestants = vec![Contestant { name: "direct", path: PASSED, proxy: None, tls: trusting(&ota_ca)? }];
        for name in ["bare proxy", "bare proxy again"] {
            let ca = at(&format!("{name}.pem"));
            let mut command = Command::new(example("bare_proxy")?);
            command.arg("--ca-file").arg(&ca).arg("--upstream-ca").arg(&ota_ca);
            let (process, ready) = Process::start(command)?;
            let address = ready["address"].as_str().context("the bare proxy names its address")?.parse()?;
            let proxy = Some(Proxy { address, pid: process.child.id() });
            processes.push(process);
            contestants.push(Contestant { name, path: PASSED, proxy, tls: trusting(&ca)? });
        }

        let (process, address) = ota_pacer(directory.path(), &ota_ca)?;
        let proxy = Some(Proxy { address, pid: process.child.id() });
        processes.push(process);
        let tls = trusting(&at("ca/ca.pem"))?;
        for (name, path) in [("ota-pacer, unpaced", PASSED), ("ota-pacer, paced", PACED)] {
            contestants.push(Contestant { name, path, proxy, tls: Arc::clone(&tls) });
        }
        Ok(Self { ota, contestants, _processes: processes, _directory: directory })
    }
}

struct Process {
    child: Child,
}

impl Process {
    /// Starts a program of `examples/` and reads the line of JSON that it prints once it listens. Its standard input is a
    /// pipe: it ends with this process.
    fn start(mut command: Command) -> anyhow::Result<(Self, serde_json::Value)> {
        let mut process = Self { child: command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()? };
        let mut line = String::new();
        BufReader::new(process.child.stdout.take().context("standard output is piped")?).read_line(&mut line)?;
        Ok((process, serde_json::from_str(&line)?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Starts ota-pacer with buckets in memory, and a limit that is never reached.
fn ota_pacer(directory: &Path, ota_ca: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let file = directory.join("ota-pacer.yaml");
    let (ca, ota_ca) = (directory.join("ca").display().to_string(), ota_ca.display());
    fs::write(
        &file,
        format!(
            "listen: 127.0.0.1:0\nca: {{ dir: \"{ca}\" }}\nupstream: {{ ca_file: \"{ota_ca}\" }}\n\
             channels:\n  bench:\n    hosts: [localhost]\n    endpoints:\n      paced:\n        \
             match: {{ path: {PACED} }}\n        limits: [{{ rate: 100000/s, capacity: 100000 }}]\n"
        ),
    )?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_ota-pacer"));
    command.arg("serve").arg("--config").arg(&file).env_remove("RUST_LOG");
    let mut process = Process { child: command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()? };
    let mut stderr = BufReader::new(process.child.stderr.take().context("standard error is piped")?);
    let mut said = String::new();
    let address = loop {
        let start = said.len();
        anyhow::ensure!(stderr.read_line(&mut said)? > 0, "ota-pacer does not start:\n{said}");
        if said[start..].contains("proxy listening") {
            let address = said[start..].split("addr=").nth(1).and_then(|rest| rest.split_whitespace().next());
            break address.context("ota-pacer names its address")?.parse()?;
        }
    };
    // Or its log would fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    Ok((process, address))
}

/// Cargo puts examples beside the directory of the benchmarks.
fn example(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let profile = own.parent().and_then(Path::parent).context("benchmarks are in `target/PROFILE/deps`")?;
    let program = profile.join("examples").join(name);
    anyhow::ensure!(program.exists(), "`{}` is missing\n\nhint: make bench", program.display());
    Ok(program)
}

fn trusting(ca: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

fn answer_with_a_kibibyte(control: SocketAddr) -> anyhow::Result<()> {
    let json = serde_json::json!({ "body_bytes": crate::load::BODY }).to_string();
    let mut stream = TcpStream::connect(control)?;
    write!(
        stream,
        "POST /settings HTTP/1.0\r\nHost: control\r\nContent-Length: {length}\r\n\r\n{json}",
        length = json.len()
    )?;
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status)?;
    anyhow::ensure!(status.contains(" 200 "), "the OTA refuses its settings: {status}");
    Ok(())
}

/// A path of no endpoint.
const PASSED: &str = "/passed";
/// The path of the endpoint that has a limit.
const PACED: &str = "/paced";
