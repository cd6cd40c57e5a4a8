//! One request, from its head to the head of its answer: match, wait for a slot, send, look at the answer, wait and send
//! again or pass it on, record.

mod attempt;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use super::{
    Rules,
    answer::{self, Answer},
    arrival::Arrival,
    downstream::Downstream,
    entrance,
    gateway::Base,
    headers,
    metrics::{Outcome, RetryReason, SkipReason},
    preference,
    rebase::rebase,
    record::Record,
    refusal::Refusal,
    relay::relay,
    replay::{Copy, Replay},
    target::{self, Target},
};
use crate::{
    config::model::{Class, Policy, UnmatchedHost, UnmatchedPath},
    feedback::{Backoff, ThrottleSignal, retry_after},
    limiter::Lane,
    route::Route,
    upstream::{self, Download, Offer, Origin},
};

/// Answers one request of a client. Dropping the future leaves the line, and cancels what is under way at the origin.
pub(super) async fn answer(client: &Downstream, request: Request<Incoming>) -> Response<Answer> {
    let is_head = request.method() == Method::HEAD;
    let mut exchange = match Exchange::open(client, request) {
        Ok(exchange) => exchange,
        Err((record, refusal)) => return finish(*record, refuse(refusal), is_head),
    };
    let (mut response, outcome) = exchange.run().await.unwrap_or_else(|refusal| {
        exchange.record.slot = None;
        refuse(refusal)
    });
    exchange.annotate(&mut response);
    exchange.rebase(&mut response);
    finish(exchange.record, (response, outcome), is_head)
}

/// An answer, and how it counts.
type Answered = (Response<Answer>, Outcome);

fn refuse(refusal: Refusal) -> Answered {
    let outcome = refusal.outcome;
    (refusal.into_response(), outcome)
}

/// Leaves the account with the answer, whose last byte closes it.
fn finish(mut record: Record, (response, outcome): Answered, is_head: bool) -> Response<Answer> {
    record.answer(response.status(), outcome);
    if is_head {
        record.complete();
    }
    response.map(|body| body.recorded(record))
}

/// One request on its way.
struct Exchange<'a> {
    client: &'a Downstream,
    /// Those of the moment it came.
    rules: Arc<Rules>,
    origin: Origin,
    /// Its place at the gateway, where the request came through that.
    base: Option<Base>,
    /// In which versions of HTTP the origin may be spoken to.
    offer: Offer,
    head: Head,
    body: Replay<Arrival>,
    /// The client sends its body only once it is asked to, which reading it does. That waits for the slot.
    expects_continue: bool,
    /// The client's side of an upgrade, where it asks for one.
    upgrade: Option<OnUpgrade>,
    /// Whether it authenticates the connection that it is sent on.
    is_bound: bool,
    /// `None`: nothing limits the request.
    lane: Option<Lane>,
    policy: Policy,
    /// The longest it may be held in all, where the client says so.
    max_hold: Option<Duration>,
    class: Class,
    is_matched: bool,
    /// When the pause ends that the origin asked for.
    resumes: Option<Instant>,
    record: Record,
}

/// What is sent before the body, the same each time.
struct Head {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// Holds the spelling of the header names.
    extensions: http::Extensions,
}

/// Why a request got no answer from its origin.
enum Failure {
    /// It was not sent, this time.
    Unsent(Refusal),
    /// It was, or may have been, or there is nobody left to send it for.
    Sent(Refusal),
}

impl<'a> Exchange<'a> {
    /// Reads the head: where to, by which rules, in which line.
    fn open(client: &'a Downstream, mut request: Request<Incoming>) -> Result<Self, (Box<Record>, Refusal)> {
        let rules = client.proxy().rules();
        let upgrade = hyper::upgrade::on(&mut request);
        let (mut parts, body) = request.into_parts();
        let unmatched = || Box::new(Record::new(rules.metrics.unmatched().clone()));

        if !upstream::is_clearly_framed(parts.version, &parts.headers) {
            return Err((unmatched(), Refusal::ambiguous_end()));
        }
        let (Target { origin, path, host_header }, base) =
            entrance::target(client, &rules, &parts).map_err(|error| (unmatched(), Refusal::target(error)))?;
        if target::is_own_address(&origin.host, origin.port, client.own()) {
            return Err((unmatched(), Refusal::own_address()));
        }
        if rules.upstream.comes_back(&parts.headers) {
            return Err((unmatched(), Refusal::came_back()));
        }
        if parts.version == Version::HTTP_2 {
            headers::join_cookies(&mut parts.headers);
            headers::announce_body(&mut parts.headers, &body);
        }

        let max_hold = preference::take_max_wait(&mut parts.headers);
        let class = preference::take_class(&mut parts.headers, &rules.settings.priority_header);
        let (max_hold, class) = max_hold
            .and_then(|max_hold| Ok((max_hold, class?)))
            .map_err(|error| (unmatched(), Refusal::preference(&error)))?;
        let class = class.or_else(|| client.tunnel().and_then(|tunnel| tunnel.class)).unwrap_or_default();

        let route = rules.router.route(&origin.host, origin.port, &parts.method, &path, &parts.headers);
        let is_http2_allowed = matches!(&route, Route::Matched(matched) if matched.channel.http2.origin);
        let (record, policy, lane, is_matched) = match &route {
            Route::Unmatched => {
                if rules.settings.unmatched.host == UnmatchedHost::Refuse {
                    return Err((unmatched(), Refusal::unmatched_host()));
                }
                (*unmatched(), Policy::default(), None, false)
            }
            Route::Matched(matched) => {
                let endpoint = matched.endpoint.as_ref();
                let metrics = rules.metrics.route(&matched.channel, endpoint.map(AsRef::as_ref));
                let record = Record::new(metrics.clone());
                if endpoint.is_none() && rules.settings.unmatched.path == UnmatchedPath::Refuse {
                    return Err((Box::new(record), Refusal::unmatched_path()));
                }
                let lane = client.proxy().limiter.lane(&matched.channel, endpoint, |part| matched.value(part));
                (record, *matched.policy(), lane, true)
            }
        };

        let upgrade = headers::wants_upgrade(&parts).then_some(upgrade);
        let expects_continue = parts.headers.contains_key(http::header::EXPECT);
        headers::strip_request(&mut parts.headers, upgrade.is_some());
        if let Some(host) = host_header {
            headers::put_host(&mut parts.headers, host);
        }
        let is_bound = upstream::authenticates_connection(&parts.headers);
        Ok(Self {
            client,
            rules,
            origin,
            base,
            // Only a connection of HTTP/1.1 can be left for another protocol, or be authenticated itself.
            offer: if is_http2_allowed && upgrade.is_none() && !is_bound { Offer::Http2 } else { Offer::Http1 },
            head: Head {
                method: parts.method,
                uri: Uri::from(path),
                headers: parts.headers,
                extensions: parts.extensions,
            },
            // Without a lane there is no second send for a throttle answer, and no copy is needed.
            body: Replay::new(
                Arrival::new(body, parts.version),
                if lane.is_some() { policy.retry.replay_body } else { 0 },
            ),
            expects_continue,
            upgrade,
            is_bound,
            lane,
            policy,
            max_hold,
            class,
            is_matched,
            resumes: None,
            record,
        })
    }

    /// Sends until the answer is no throttle signal, or may not be retried; the last one is passed on as it came.
    async fn run(&mut self) -> Result<Answered, Refusal> {
        let mut backoff = Backoff::new(self.policy.retry.backoff, self.policy.retry.max_backoff);
        let mut hold = self.policy.max_wait;
        let mut throttled: Option<Response<Answer>> = None;
        loop {
            let response = match (self.attempt(hold).await, throttled.take()) {
                (Ok(response), _) => response,
                // The origin said no, and there was no second chance to ask: its answer is the true one.
                (Err(Failure::Unsent(_)), Some(throttled)) => {
                    self.record.slot = None;
                    self.record.metrics.retry_skipped(SkipReason::NoSecondChance);
                    return Ok((throttled, Outcome::Throttled));
                }
                (Err(Failure::Unsent(refusal) | Failure::Sent(refusal)), _) => return Err(refusal),
            };
            let lane = match (ThrottleSignal::of(response.status()), &self.lane) {
                (Some(_), Some(lane)) => lane.clone(),
                (Some(_), None) => return Ok((streaming(response), Outcome::Throttled)),
                (None, _) => return self.pass_on(response),
            };

            let asked = retry_after(response.headers(), SystemTime::now());
            let wait = asked.unwrap_or_else(|| backoff.pause(rand::random()));
            let pause = wait.min(self.policy.retry.max_pause);
            self.record.hold();
            self.resumes = Some(Instant::now() + pause.min(FOREVER));
            lane.pause(pause).await;
            match self.retry_of(response, wait).await {
                Ok(held) => {
                    throttled = Some(held);
                    // That send is over: what waits counts nowhere as under way.
                    self.record.slot = None;
                }
                Err((response, reason)) => {
                    self.record.release();
                    self.record.metrics.retry_skipped(reason);
                    return Ok((response, Outcome::Throttled));
                }
            }
            self.record.metrics.retry(RetryReason::Throttled);
            hold = pause.saturating_add(self.policy.max_wait);
        }
    }

    /// How much longer the client would be held; `None` where it does not say.
    fn patience(&self) -> Option<Duration> {
        self.max_hold.map(|max_hold| max_hold.saturating_sub(self.record.waited()))
    }

    /// Holds a throttle answer back, where the request may be sent again after `wait`. Otherwise the answer, to be passed
    /// on, and the reason.
    async fn retry_of(
        &self,
        response: Response<Download>,
        wait: Duration,
    ) -> Result<Response<Answer>, (Response<Answer>, SkipReason)> {
        let retry = &self.policy.retry;
        let reason = if self.record.attempts >= retry.attempts.get() {
            SkipReason::AttemptsSpent
        } else if wait > retry.max_retry_after {
            SkipReason::RetryAfterTooLong
        } else if self.patience().is_some_and(|patience| patience.is_zero() || patience < wait) {
            SkipReason::ClientMaxWait
        } else if self.body.copy() == Copy::TooLarge {
            SkipReason::BodyTooLarge
        } else {
            let held = answer::hold(end_to_end(response)).await.map_err(|rest| (rest, SkipReason::AnswerTooLarge))?;
            // Some origins answer from the head alone, while the body's last bytes are on their way.
            if self.body.copy() == Copy::Unfinished {
                let _ = timeout(BODY_GRACE, self.body.complete()).await;
            }
            return match self.body.copy() {
                Copy::Whole => Ok(held),
                Copy::TooLarge => Err((held, SkipReason::BodyTooLarge)),
                Copy::Unfinished => Err((held, SkipReason::BodyUnfinished)),
            };
        };
        Err((streaming(response), reason))
    }

    /// The origin's answer, for the client.
    fn pass_on(&mut self, mut response: Response<Download>) -> Result<Answered, Refusal> {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok((streaming(response), Outcome::Answered));
        }
        let Some(upgrade) = self.upgrade.take() else { return Err(Refusal::unasked_upgrade()) };
        let origin = hyper::upgrade::on(&mut response);
        self.client.leave_http();
        let tunnel = self.rules.metrics.tunnel();
        let permit = self.record.slot.take();
        let shutdown = self.client.shutdown().clone();
        self.client.spawn(async move {
            let (_tunnel, _permit) = (tunnel, permit);
            // Either side may be gone before it has switched.
            let (Ok(client), Ok(origin)) = tokio::join!(upgrade, origin) else { return };
            if let Err(error) = relay(TokioIo::new(client), TokioIo::new(origin), &shutdown).await {
                tracing::debug!(%error, "upgraded connection ended");
            }
        });
        let (mut parts, _) = response.into_parts();
        headers::strip_response(&mut parts.headers, true);
        parts.version = Version::HTTP_11;
        Ok((Response::from_parts(parts, Answer::empty()), Outcome::Answered))
    }

    /// Has the answer lead nowhere past the gateway.
    fn rebase(&self, response: &mut Response<Answer>) {
        if let Some(base) = &self.base {
            let router = &self.rules.router;
            rebase(response.headers_mut(), base, |origin| router.channel(&origin.host, origin.port).is_some());
        }
    }

    /// Tells the worker how long it was held, how often it was sent, and in which line.
    fn annotate(&self, response: &mut Response<Answer>) {
        if !self.is_matched || !self.rules.settings.annotate {
            return;
        }
        let headers = response.headers_mut();
        let wait = format!("{:.3}", self.record.waited().as_secs_f64());
        for (name, value) in [
            (WAIT, HeaderValue::try_from(wait).ok()),
            (ATTEMPTS, Some(HeaderValue::from(self.record.attempts))),
            (BUCKET, self.lane.as_ref().and_then(|lane| HeaderValue::from_str(lane.name()).ok())),
        ] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
    }
}

/// An answer without what was between origin and proxy.
fn end_to_end(response: Response<Download>) -> Response<Download> {
    let (mut parts, body) = response.into_parts();
    headers::strip_response(&mut parts.headers, false);
    // An origin that speaks HTTP/1.0 is no reason to speak it to the client.
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, body)
}

fn streaming(response: Response<Download>) -> Response<Answer> {
    end_to_end(response).map(Answer::streaming)
}

const WAIT: HeaderName = HeaderName::from_static("x-pacer-wait");
const ATTEMPTS: HeaderName = HeaderName::from_static("x-pacer-attempts");
const BUCKET: HeaderName = HeaderName::from_static("x-pacer-bucket");

/// How long the rest of a request body may take after an early throttle answer.
const BODY_GRACE: Duration = Duration::from_millis(500);

/// A hold that no clock overflows with.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
