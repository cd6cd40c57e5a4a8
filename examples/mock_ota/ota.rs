//! The OTA itself: decides each request's answer under one lock, and notes it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, Method, header::AUTHORIZATION};
use tokio::time::Instant;

use crate::{
    judge::{Judge, Verdict},
    ledger::{Arrival, EntryId, Filter, Ledger, Report},
    limit::Rule,
    script::{Answer, Fault, RetryAfterForm, Script, Settings},
};

/// One instant on both clocks, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Since the OTA started; never goes back.
    pub(crate) micros: u64,
    /// Since 1970.
    pub(crate) unix_micros: u64,
}

/// The OTA behind all of its ports.
pub(crate) struct Ota {
    started: Instant,
    connections: AtomicU64,
    credential_header: Option<HeaderName>,
    state: Mutex<State>,
}

struct State {
    judge: Judge,
    ledger: Ledger,
    scripts: HashMap<String, VecDeque<Answer>>,
    latency: Duration,
    body_bytes: Option<u64>,
    retry_after: RetryAfterForm,
}

/// A request that has arrived and whose answer is decided.
pub(crate) struct Visit {
    pub(crate) answer: Answer,
    pub(crate) latency: Duration,
    entry: EntryId,
    ota: Arc<Ota>,
    /// Credential and path of a request that holds its place in concurrency limits until the visit ends.
    held: Option<(String, String)>,
}

impl Ota {
    /// Starts with nothing spent. Credentials are told apart by `credential_header`, or else by the user of Basic.
    pub(crate) fn new(rules: Vec<Rule>, retry_after: RetryAfterForm, credential_header: Option<HeaderName>) -> Self {
        let state = State {
            judge: Judge::new(rules),
            ledger: Ledger::default(),
            scripts: HashMap::new(),
            latency: Duration::ZERO,
            body_bytes: None,
            retry_after,
        };
        Self { started: Instant::now(), connections: AtomicU64::new(0), credential_header, state: Mutex::new(state) }
    }

    /// The number of the connection just accepted.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes the arrival of a request whose head has just been read, and decides its answer.
    pub(crate) fn receive(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        connection: u64,
    ) -> Visit {
        let credential = self.credential(headers);
        // The lock is taken before the clock is read, so that the ledger is in order of time.
        let mut state = self.state();
        let now = self.now();
        let (answer, held) = state.decide(&credential, path, now);
        let latency = answer.latency_ms.map_or(state.latency, Duration::from_millis);
        let entry = state.ledger.enter(Arrival {
            at_us: now.micros,
            answered_us: None,
            method: method.to_string(),
            path: path.to_owned(),
            credential,
            status: if matches!(answer.fault, Some(Fault::Reset | Fault::Stall)) { 0 } else { answer.status },
            body_bytes: 0,
            connection,
        });
        drop(state);
        Visit { answer, latency, entry, held, ota: self.clone() }
    }

    /// Queues answers for the next requests to a path.
    pub(crate) fn play(&self, script: Script) {
        self.state().scripts.entry(script.path).or_default().extend(script.answers);
    }

    /// Changes how unscripted requests are answered.
    pub(crate) fn set(&self, settings: Settings) {
        let mut state = self.state();
        if let Some(latency) = settings.latency_ms {
            state.latency = Duration::from_millis(latency);
        }
        state.body_bytes = settings.body_bytes.or(state.body_bytes);
        state.retry_after = settings.retry_after.unwrap_or(state.retry_after);
    }

    /// Replaces all limits; nothing is spent of the new ones.
    pub(crate) fn limit(&self, rules: Vec<Rule>) {
        self.state().judge = Judge::new(rules);
    }

    /// Forgets arrivals, what was spent, and scripts. Limits and settings stay.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.ledger.clear();
        state.judge.forget();
        state.scripts.clear();
    }

    /// The arrivals that `filter` lets through, oldest first.
    pub(crate) fn arrivals(&self, filter: &Filter) -> Vec<Arrival> {
        self.state().ledger.select(filter).into_iter().cloned().collect()
    }

    /// Sums up what `filter` lets through; `allowance` is the rate per second and the capacity to hold it against.
    pub(crate) fn report(&self, filter: &Filter, allowance: Option<(f64, f64)>) -> Report {
        let state = self.state();
        state.ledger.report(filter, allowance, self.now().micros)
    }

    /// The time on both clocks.
    pub(crate) fn now(&self) -> Now {
        Now { micros: micros(self.started.elapsed()), unix_micros: micros(unix_time()) }
    }

    fn credential(&self, headers: &HeaderMap) -> String {
        match &self.credential_header {
            Some(name) => headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            None => headers.get(AUTHORIZATION).and_then(|value| basic_user(value.as_bytes())),
        }
        .unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn decide(&mut self, credential: &str, path: &str, now: Now) -> (Answer, Option<(String, String)>) {
        if let Some(answer) = self.scripted(path, now) {
            return (answer, None);
        }
        match self.judge.admit(credential, path, now) {
            Verdict::Within => {
                let answer = Answer { body_bytes: self.body_bytes, ..Answer::plain(200, ACCEPTED) };
                (answer, Some((credential.to_owned(), path.to_owned())))
            }
            Verdict::Excess { wait } => {
                let retry_after = self.retry_after.render(SystemTime::now(), Duration::from_micros(wait));
                (Answer { retry_after, ..Answer::plain(429, TOO_FAST) }, None)
            }
        }
    }

    fn scripted(&mut self, path: &str, now: Now) -> Option<Answer> {
        let answers = self.scripts.get_mut(path)?;
        while answers.front()?.until_us.is_some_and(|until| until <= now.micros) {
            answers.pop_front();
        }
        let next = answers.front_mut()?;
        if let Some(length) = next.for_ms {
            next.until_us.get_or_insert(now.micros + 1_000 * length);
            return Some(next.clone());
        }
        next.repeat = next.repeat.saturating_sub(1);
        if next.repeat == 0 { answers.pop_front() } else { Some(next.clone()) }
    }
}

impl Answer {
    fn plain(status: u16, body: &str) -> Self {
        Self {
            status,
            retry_after: None,
            headers: Default::default(),
            body: Some(body.to_owned()),
            body_bytes: None,
            latency_ms: None,
            fault: None,
            early: false,
            repeat: 1,
            for_ms: None,
            until_us: None,
        }
    }
}

impl Visit {
    /// Notes how long the request's body was.
    pub(crate) fn body_read(&self, bytes: u64) {
        if let Some(arrival) = self.ota.state().ledger.entry(self.entry) {
            arrival.body_bytes = bytes;
        }
    }

    /// Notes that the answer is being handed to the connection.
    pub(crate) fn answered(&self) {
        let mut state = self.ota.state();
        let now = self.ota.now().micros;
        if let Some(arrival) = state.ledger.entry(self.entry) {
            arrival.answered_us = Some(now);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some((credential, path)) = self.held.take() {
            self.ota.state().judge.release(&credential, &path);
        }
    }
}

/// The user of `Authorization: Basic` (RFC 7617). The password is looked at by nobody.
fn basic_user(authorization: &[u8]) -> Option<String> {
    use base64::{Engine, prelude::BASE64_STANDARD};

    let (scheme, token) = std::str::from_utf8(authorization).ok()?.split_once(' ')?;
    let pair = BASE64_STANDARD.decode(token.trim()).ok()?;
    let user = pair.split(|&byte| byte == b':').next()?;
    scheme.eq_ignore_ascii_case("basic").then(|| String::from_utf8_lossy(user).into_owned())
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

const ACCEPTED: &str = "<ok/>\n";
const TOO_FAST: &str = "<error>too many requests</error>\n";
