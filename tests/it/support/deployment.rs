//! Several Redis servers that belong together.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use tempfile::TempDir;

use super::{
    clock::wait_for,
    process::Process,
    redis::{self, Redis, free_port},
};

/// A master, a replica, and sentinels that watch them.
pub(crate) struct Watched {
    pub(crate) master: Redis,
    pub(crate) replica: Redis,
    ports: Vec<u16>,
    _sentinels: Vec<(Process, TempDir)>,
}

/// Three masters without replicas.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
}

/// A Redis with TLS, signed by a CA that no system knows. It also listens in the clear, for the test.
pub(crate) struct Secured {
    pub(crate) redis: Redis,
    tls_port: u16,
    directory: TempDir,
}

impl Watched {
    #[track_caller]
    pub(crate) fn start(sentinels: usize) -> Self {
        let fast = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
        let master = Redis::start_with(free_port(), &fast);
        let master_port = master.port().to_string();
        let replica = Redis::start_with(free_port(), &["--replicaof", "127.0.0.1", &master_port]);
        wait_for("the replica is in step", PATIENCE, || {
            replica.command("INFO replication").contains("master_link_status:up").then_some(())
        });
        let quorum = sentinels / 2 + 1;
        let ports: Vec<_> = std::iter::repeat_with(free_port).take(sentinels).collect();
        let sentinels = ports.iter().map(|port| sentinel(*port, &master_port, quorum)).collect();
        let watched = Self { master, replica, ports, _sentinels: sentinels };
        wait_for("the sentinels know all", PATIENCE, || {
            let knows_all = |port: &u16| {
                // Sentinels do not know QUIT.
                let mut ask = Command::new("redis-cli");
                let known = ask.args(["-p", &port.to_string(), "SENTINEL", "MASTER", "pacer"]).output();
                let known = String::from_utf8(known.expect("redis-cli runs").stdout).expect("sentinels speak ASCII");
                let field = |name: &str| known.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
                field("num-slaves").as_deref() == Some("1")
                    && field("num-other-sentinels") == Some((watched.ports.len() - 1).to_string())
            };
            watched.ports.iter().all(knows_all).then_some(())
        });
        watched
    }

    pub(crate) fn url(&self) -> String {
        let others: String = self.ports[1..].iter().map(|port| format!("&node=127.0.0.1:{port}")).collect();
        format!("redis-sentinel://127.0.0.1:{}?sentinelServiceName=pacer{others}", self.ports[0])
    }
}

impl Cluster {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let nodes: Vec<_> = (0..3).map(|_| Redis::start_with(port_with_bus(), &arguments)).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())));
        let created = create.args(["--cluster-replicas", "0", "--cluster-yes"]).output().expect("redis-cli runs");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    pub(crate) fn url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    #[track_caller]
    pub(crate) fn wait_until_whole(&self) {
        let is_whole = |node: &Redis| node.command("CLUSTER INFO").contains("cluster_state:ok");
        wait_for("every node sees a whole cluster", PATIENCE, || self.nodes.iter().all(is_whole).then_some(()));
    }

    /// Which node holds the bucket at the endpoint `fast` of the only credential there is.
    #[track_caller]
    pub(crate) fn holder(&self) -> usize {
        wait_for("a node holds the bucket", PATIENCE, || {
            self.nodes.iter().position(|node| node.command("KEYS bkt:{booking_com:*}:fast").contains("bkt:"))
        })
    }

    pub(crate) fn id(&self, node: usize) -> String {
        let answer = self.nodes[node].command("CLUSTER MYID");
        answer.lines().nth(1).expect("an id after its length").to_owned()
    }
}

impl Secured {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory is made");
        let path = |name: &str| directory.path().join(name);
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_key = rcgen::KeyPair::generate().expect("a key is made");
        let certificate = ca.self_signed(&ca_key).expect("the CA signs itself");
        fs::write(path("ca.pem"), certificate.pem()).expect("a file is written");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let leaf = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name for a certificate");
        let leaf_key = rcgen::KeyPair::generate().expect("a key is made");
        fs::write(path("redis.pem"), leaf.signed_by(&leaf_key, &issuer).expect("the CA signs").pem()).expect("a file");
        fs::write(path("redis.key"), leaf_key.serialize_pem()).expect("a file is written");
        let tls_port = free_port();
        let tls = tls_port.to_string();
        let text = |name: &str| path(name).display().to_string();
        let arguments = [
            "--tls-port",
            &tls,
            "--tls-cert-file",
            &text("redis.pem"),
            "--tls-key-file",
            &text("redis.key"),
            "--tls-ca-cert-file",
            &text("ca.pem"),
            "--tls-auth-clients",
            "no",
        ];
        let redis = Redis::start_with(free_port(), &arguments);
        Self { redis, tls_port, directory }
    }

    /// Its address, with `user` as `name:password@`.
    pub(crate) fn url(&self, user: &str) -> String {
        format!("rediss://{user}localhost:{}", self.tls_port)
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }
}

#[track_caller]
fn sentinel(port: u16, master_port: &str, quorum: usize) -> (Process, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory is made");
    let file = directory.path().join("sentinel.conf");
    let config = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor pacer 127.0.0.1 {master_port} {quorum}\n\
         sentinel down-after-milliseconds pacer 500\nsentinel failover-timeout pacer 3000\n",
        directory.path().display()
    );
    fs::write(&file, config).expect("a config is written");
    let process = Process::start("sentinel", Command::new(redis::program()).arg(&file).arg("--sentinel"));
    wait_for("the sentinel listens", PATIENCE, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    (process, directory)
}

/// A port whose cluster bus, 10,000 above, exists and is free too.
fn port_with_bus() -> u16 {
    let bus_is_free =
        |port: &u16| port.checked_add(10_000).is_some_and(|bus| TcpListener::bind((Ipv4Addr::LOCALHOST, bus)).is_ok());
    std::iter::repeat_with(free_port).find(bus_is_free).expect("an endless iterator ends by finding")
}

const PATIENCE: Duration = Duration::from_secs(30);
