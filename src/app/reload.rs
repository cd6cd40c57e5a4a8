//! Another configuration for a running instance: on SIGHUP, and when the file says something else than before.
//!
//! What cannot be used is refused whole, and the former configuration stays.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    signal::unix::Signal,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tracing::{error, info, warn};

use crate::{
    config::{self, Config},
    proxy::Proxy,
    route::Router,
    upstream::{self, Upstream},
};

/// A configuration file and what it said when it was last looked at.
#[derive(Debug, Clone)]
pub struct Watch {
    path: PathBuf,
    seen: Option<u64>,
    /// What it said the last time, where that is not what was seen.
    changed: Option<u64>,
}

impl Watch {
    /// Looks at the file. To be made before the configuration is loaded from it, so that no change is missed.
    pub fn new(path: PathBuf) -> Self {
        let seen = fingerprint(&path);
        Self { path, seen, changed: None }
    }

    /// Whether the file says something else than before, and has said so twice: one that is just being written is left
    /// alone, and so is one that is away for the moment of a replacement.
    fn has_changed(&mut self) -> bool {
        let now = fingerprint(&self.path).filter(|now| Some(*now) != self.seen);
        let is_settled = now.is_some() && now == self.changed;
        self.changed = now;
        if is_settled {
            self.seen = self.changed.take();
        }
        is_settled
    }
}

/// Gives a running instance what the file says.
#[derive(Debug)]
pub struct Reloader {
    watch: Watch,
    /// What the instance was started with.
    started: Config,
    proxy: Arc<Proxy>,
    metrics: ReloadMetrics,
}

impl Reloader {
    pub(super) fn new(watch: Watch, started: Config, proxy: Arc<Proxy>, metrics: ReloadMetrics) -> Self {
        Self { watch, started, proxy, metrics }
    }

    /// Reloads on every `hangup` and every change of the file; never returns.
    pub async fn run(mut self, mut hangup: Signal) {
        let mut looks = interval_at(Instant::now() + LOOK, LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = hangup.recv() => {
                    self.look(|watch| *watch = Watch::new(watch.path.clone())).await;
                    self.reload().await;
                }
                _ = looks.tick() => {
                    if self.look(Watch::has_changed).await == Some(true) {
                        self.reload().await;
                    }
                }
            }
        }
    }

    /// Has `look` read the file, which may take long where it is mounted from afar.
    async fn look<T: Send + 'static>(&mut self, look: impl FnOnce(&mut Watch) -> T + Send + 'static) -> Option<T> {
        let mut watch = self.watch.clone();
        let looked = spawn_blocking(move || {
            let found = look(&mut watch);
            (watch, found)
        });
        let (watch, found) = looked.await.ok()?;
        self.watch = watch;
        Some(found)
    }

    async fn reload(&self) {
        let path = self.watch.path.clone();
        // Files are read, and every rule is prepared: no work for a thread that moves requests.
        let read = spawn_blocking(move || read(path)).await;
        match read {
            Ok(Ok((config, router, upstream))) => {
                for warning in &config.warnings {
                    warn!("{warning}");
                }
                for key in fixed(&self.started, &config) {
                    warn!("`{key}` cannot change while the instance runs: restart it to apply the new value");
                }
                self.proxy.reload(&config, router, upstream);
                self.metrics.succeeded();
                info!(channels = config.channels.len(), "configuration reloaded");
            }
            Ok(Err(refused)) => {
                self.metrics.failed.increment(1);
                error!("configuration refused, the former one stays in force\n\n{refused}");
            }
            Err(panicked) => {
                self.metrics.failed.increment(1);
                error!(error = %panicked, "the configuration could not be read, the former one stays in force");
            }
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] config::Errors),
    #[error(transparent)]
    Upstream(#[from] upstream::SetupError),
}

fn read(path: PathBuf) -> Result<(Config, Router, Upstream), ReloadError> {
    let config = config::load(&path)?;
    let (router, upstream) = (Router::new(&config), Upstream::new(&config.upstream)?);
    Ok((config, router, upstream))
}

/// The keys that differ and are bound to what an instance opens when it starts: sockets, the store, the authority.
fn fixed(started: &Config, config: &Config) -> Vec<&'static str> {
    let mut keys = Vec::new();
    let mut differs = |key, is_different: bool| {
        if is_different {
            keys.push(key);
        }
    };
    differs("listen", started.listen != config.listen);
    differs("gateway", started.gateway != config.gateway);
    differs("admin", started.admin != config.admin);
    differs("ca.dir", started.ca.dir != config.ca.dir);
    differs("ca.key_type", started.ca.key_type != config.ca.key_type);
    differs("ca.name_constraints", started.ca.name_constraints != config.ca.name_constraints);
    differs("priority.ageing", started.priority.ageing != config.priority.ageing);
    match (&started.redis, &config.redis) {
        (None, None) => {}
        (Some(old), Some(new)) => {
            differs("redis.url", old.url.expose_secret() != new.url.expose_secret());
            differs("redis.prefix", old.prefix != new.prefix);
            let exposed = |key: &Option<SecretString>| key.as_ref().map(|key| key.expose_secret().to_owned());
            differs("redis.hash_key", exposed(&old.hash_key) != exposed(&new.hash_key));
            differs("redis.timeout", old.timeout != new.timeout);
            differs("redis.on_outage", old.on_outage != new.on_outage);
            differs("redis.expected_instances", old.expected_instances != new.expected_instances);
        }
        _ => differs("redis", true),
    }
    keys
}

/// `None` where the file cannot be read.
fn fingerprint(path: &Path) -> Option<u64> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)).ok()?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Some(hasher.finish())
}

/// How reloads went.
#[derive(Debug, Clone)]
pub(super) struct ReloadMetrics {
    succeeded: Counter,
    failed: Counter,
    succeeded_at: Gauge,
}

impl ReloadMetrics {
    /// Of an instance that has loaded its first configuration.
    pub(super) fn new() -> Self {
        describe_counter!(RELOADS, "Times the configuration was read again, by result");
        describe_gauge!(SUCCEEDED_AT, metrics::Unit::Seconds, "When the configuration in force was loaded, Unix time");
        let metrics = Self {
            succeeded: counter!(RELOADS, "result" => "success"),
            failed: counter!(RELOADS, "result" => "failure"),
            succeeded_at: gauge!(SUCCEEDED_AT),
        };
        metrics.mark();
        metrics
    }

    fn succeeded(&self) {
        self.succeeded.increment(1);
        self.mark();
    }

    fn mark(&self) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.succeeded_at.set(since_epoch.as_secs_f64());
    }
}

const RELOADS: &str = "ota_pacer_config_reloads_total";
const SUCCEEDED_AT: &str = "ota_pacer_config_last_reload_success_timestamp_seconds";

/// Mounted files of orchestrators change without a signal; nobody waits for them to the second.
const LOOK: Duration = Duration::from_secs(2);

/// More than any configuration has.
const MOST_BYTES: u64 = (1 << 20) + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_once_it_has_settled() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ota-pacer.yaml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("one");
        let mut watch = Watch::new(path.clone());
        let mut looks = |number: usize| -> Vec<bool> { (0..number).map(|_| watch.has_changed()).collect() };
        assert_eq!(looks(2), [false, false], "it says what it said");
        write("tw");
        assert_eq!(looks(1), [false]);
        write("two");
        assert_eq!(looks(3), [false, true, false], "not while it was being written, then once");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(looks(2), [false, false], "away");
        write("two");
        assert_eq!(looks(2), [false, false], "back, and the same");
        write("one");
        assert_eq!(looks(3), [false, true, false]);
    }

    #[test]
    fn what_cannot_change_is_named() {
        let parse = |text: &str| config::parse("test.yaml", text, |_| None).unwrap();
        let redis = "listen: 127.0.0.1:1\nredis: { url: 'redis://127.0.0.1:1', expected_instances: 2 }";
        let started = parse(redis);
        assert!(fixed(&started, &parse(redis)).is_empty());
        let text = "listen: 127.0.0.1:2\nadmin: 127.0.0.1:3\ngateway: 127.0.0.1:4";
        assert_eq!(fixed(&started, &parse(text)), ["listen", "gateway", "admin", "redis"]);
        let other = "listen: 127.0.0.1:1\nca: { dir: other, key_type: rsa2048, name_constraints: true }\n\
                     redis: { url: 'redis://:secret@127.0.0.1:1', prefix: p, expected_instances: 3 }";
        assert_eq!(
            fixed(&started, &parse(other)),
            ["ca.dir", "ca.key_type", "ca.name_constraints", "redis.url", "redis.prefix", "redis.expected_instances"]
        );
    }
}
