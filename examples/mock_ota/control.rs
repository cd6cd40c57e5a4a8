//! The port for whoever watches the OTA. JSON in, JSON out.
//!
//! | request | does |
//! |---|---|
//! | `POST /script` `{"path", "answers": [{"status", "retry_after", "headers", "body", "body_bytes", "latency_ms", "fault", "early", "repeat", "for_ms"}]}` | answers the next requests to `path` so; every field of an answer may be left out |
//! | `POST /limits` `["/path=bucket:20/s:40"]` | replaces all limits |
//! | `POST /settings` `{"latency_ms", "body_bytes", "retry_after"}` | changes how unscripted requests are answered |
//! | `POST /reset` | forgets arrivals, what was spent, and scripts |
//! | `GET /arrivals` | lists arrivals, oldest first |
//! | `GET /report` | counts by status and path, per-second bars; with `?rate=20&capacity=40`, the worst window |
//! | `GET /clock` | `{"now_us", "unix_us"}` |
//!
//! `/arrivals` and `/report` take `path`, `credential`, `since_us` and `until_us` as query parameters.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    ledger::Filter,
    limit::Rule,
    ota::Ota,
    script::{Script, Settings},
};

/// Serves until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, ota: Arc<Ota>) {
    loop {
        let Ok((tcp, _)) = listener.accept().await else { continue };
        tcp.set_nodelay(true).ok();
        let ota = ota.clone();
        let service = service_fn(move |request| respond(request, ota.clone()));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(tcp), service));
    }
}

async fn respond(request: Request<Incoming>, ota: Arc<Ota>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match handle(request, &ota).await {
        Ok(body) => (StatusCode::OK, body),
        Err(Refusal(status, reason)) => (status, json!({ "error": reason }).to_string()),
    };
    let mut response = Response::new(Full::from(body + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    Ok(response)
}

struct Refusal(StatusCode, String);

async fn handle(request: Request<Incoming>, ota: &Arc<Ota>) -> Result<String, Refusal> {
    let (head, body) = request.into_parts();
    let query = Query::parse(head.uri.query().unwrap_or_default());
    match (&head.method, head.uri.path()) {
        (&Method::POST, "/script") => {
            let script: Script = read_json(body).await?;
            check(&script)?;
            ota.play(script);
            done()
        }
        (&Method::POST, "/limits") => {
            let rules: Vec<String> = read_json(body).await?;
            let rules: Result<Vec<Rule>, String> = rules.iter().map(|rule| rule.parse()).collect();
            ota.limit(rules.map_err(bad)?);
            done()
        }
        (&Method::POST, "/settings") => {
            let settings: Settings = read_json(body).await?;
            ota.set(settings);
            done()
        }
        (&Method::POST, "/reset") => {
            ota.reset();
            done()
        }
        (&Method::GET, "/arrivals") => render(&ota.arrivals(&query.filter()?)),
        (&Method::GET, "/report") => render(&ota.report(&query.filter()?, query.allowance()?)),
        (&Method::GET, "/clock") => {
            let now = ota.now();
            render(&json!({ "now_us": now.micros, "unix_us": now.unix_micros }))
        }
        (method, path) => Err(Refusal(StatusCode::NOT_FOUND, format!("nothing answers `{method} {path}`"))),
    }
}

/// Refuses what could not be written to a connection later.
fn check(script: &Script) -> Result<(), Refusal> {
    for answer in &script.answers {
        if !(200..=999).contains(&answer.status) {
            return Err(bad(format!("`{}` is no final status", answer.status)));
        }
        let retry_after = answer.retry_after.as_ref().map(|value| ("retry-after", value.as_str()));
        let headers = answer.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in headers.chain(retry_after) {
            if HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(value).is_err() {
                return Err(bad(format!("`{name}: {value}` is no header")));
            }
        }
    }
    Ok(())
}

struct Query<'a>(HashMap<&'a str, &'a str>);

impl<'a> Query<'a> {
    fn parse(query: &'a str) -> Self {
        Self(query.split('&').filter_map(|pair| pair.split_once('=')).collect())
    }

    fn filter(&self) -> Result<Filter, Refusal> {
        Ok(Filter {
            path: self.0.get("path").map(|path| path.replace("%2F", "/")),
            credential: self.0.get("credential").map(ToString::to_string),
            since_us: self.number("since_us")?.unwrap_or(0),
            until_us: self.number("until_us")?,
        })
    }

    fn allowance(&self) -> Result<Option<(f64, f64)>, Refusal> {
        Ok(self.number("rate")?.zip(self.number("capacity")?))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        self.0
            .get(name)
            .map(|text| text.parse().map_err(|_| bad(format!("`{name}={text}` is not a number"))))
            .transpose()
    }
}

async fn read_json<T: serde::de::DeserializeOwned>(body: Incoming) -> Result<T, Refusal> {
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| bad(error.to_string()))
}

fn render(value: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(value).map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn done() -> Result<String, Refusal> {
    Ok(json!({ "ok": true }).to_string())
}

fn bad(reason: String) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, reason)
}

/// In bytes; a script of a thousand answers is far below.
const MAX_BODY: usize = 1 << 20;
