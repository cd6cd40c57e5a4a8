//! Limiters as the proxy uses them, without a proxy around them, and traffic through them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ota_pacer::{
    config::{self, Config, model::Class},
    limiter::{Lane, Limiter, Refused, Turn},
};
use tokio::{task::JoinSet, time::Instant};

/// An instance of a fleet.
pub(crate) struct Instance {
    pub(crate) limiter: Limiter,
    config: Config,
}

/// Tasks that send through lanes as fast as they may, until they are stopped.
pub(crate) struct Traffic {
    sent: Arc<Mutex<Vec<Instant>>>,
    tasks: JoinSet<()>,
}

impl Instance {
    /// Opens one with `redis` as the section of that name, in flow style without its braces.
    pub(crate) async fn open(redis: &str) -> Self {
        let yaml = format!(
            "listen: 127.0.0.1:0\nredis: {{ {redis} }}\n\
             channels:\n\
             \x20 booking_com:\n\
             \x20   hosts: [ota.test]\n\
             \x20   endpoints:\n\
             \x20     fast: {{ match: {{ path: /fast }}, limits: [{{ rate: 50/s, capacity: {CAPACITY} }}] }}\n\
             \x20     brisk: {{ match: {{ path: /brisk }}, limits: [{{ rate: 1000/s, capacity: 1000 }}] }}\n"
        );
        let config = config::parse("test.yaml", &yaml, |_| None).unwrap();
        Self { limiter: Limiter::open(&config).await.unwrap(), config }
    }

    /// One of a fleet of five on the Redis at `url`.
    pub(crate) async fn on(url: &str) -> Self {
        Self::open(&format!("url: '{url}', on_outage: local, expected_instances: 5")).await
    }

    /// The lane of `user` at the endpoint `fast`: [`RATE`] a second, [`CAPACITY`] at once.
    pub(crate) fn lane(&self, user: &str) -> Lane {
        self.lane_of("fast", user)
    }

    pub(crate) fn lane_of(&self, endpoint: &str, user: &str) -> Lane {
        let channel = &self.config.channels[0];
        let endpoint = channel.endpoints.iter().find(|known| known.name == endpoint).map(Arc::clone);
        self.limiter.lane(channel, endpoint.as_ref(), |_| Some(user.as_bytes())).unwrap()
    }

    pub(crate) fn is_on_redis(&self) -> bool {
        self.limiter.mode() == "redis"
    }
}

impl Traffic {
    pub(crate) fn start(lanes: impl IntoIterator<Item = Lane>) -> Self {
        let (sent, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
        for lane in lanes {
            for _ in 0..SENDERS {
                let (lane, sent) = (lane.clone(), Arc::clone(&sent));
                tasks.spawn(async move {
                    loop {
                        if slot(&lane).await.is_ok() {
                            sent.lock().unwrap().push(Instant::now());
                        }
                    }
                });
            }
        }
        Self { sent, tasks }
    }

    /// How many were sent so far.
    pub(crate) fn count(&self) -> usize {
        self.sent.lock().unwrap().len()
    }

    /// How many were sent from `from` to `to`.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> usize {
        self.sent.lock().unwrap().iter().filter(|at| (from..to).contains(at)).count()
    }

    /// Ends it and asserts that no window held more than `capacity` + `rate` · its length, and what slots may be late.
    #[track_caller]
    pub(crate) fn assert_within(mut self, rate: f64, capacity: f64) {
        self.tasks.abort_all();
        let mut sent = self.sent.lock().unwrap().clone();
        sent.sort_unstable();
        for first in 0..sent.len() {
            for last in first..sent.len() {
                let length = (sent[last] - sent[first]).as_secs_f64();
                let (held, allowed) = ((last - first + 1) as f64, capacity + rate * (length + LATE));
                assert!(held <= allowed, "{held} in {length} s, {allowed} allowed");
            }
        }
    }
}

/// Waits for a slot for at most ten seconds.
pub(crate) async fn slot(lane: &Lane) -> Result<(), Refused> {
    let turn = Turn { arrived: Instant::now(), class: Class::Interactive, max_wait: Duration::from_secs(10) };
    lane.slot(turn).await.map(drop)
}

pub(crate) const RATE: f64 = 50.0;
pub(crate) const CAPACITY: u32 = 10;
const SENDERS: usize = 4;
/// Seconds between a slot and the clock being read after it, on a busy machine.
const LATE: f64 = 0.060;
