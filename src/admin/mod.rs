//! What operators and their machines ask an instance: `/metrics`, `/healthz`, `/readyz`, `/status`.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What the admin listener tells.
pub struct Admin {
    metrics: PrometheusHandle,
    readiness: Box<dyn Fn() -> Readiness + Send + Sync>,
    status: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// Whether this instance should be sent traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It should.
    Ready,
    /// It should not, and why: it is draining, or the store is lost and its requests would be refused.
    NotReady(&'static str),
}

impl Admin {
    /// `readiness` and `status` are asked anew for each request, and must not block.
    pub fn new(
        metrics: PrometheusHandle,
        readiness: impl Fn() -> Readiness + Send + Sync + 'static,
        status: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Self {
        Self { metrics, readiness: Box::new(readiness), status: Box::new(status) }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => content(StatusCode::OK, PROMETHEUS, self.metrics.render()),
            "/healthz" => text(StatusCode::OK, "ok"),
            "/readyz" => match (self.readiness)() {
                Readiness::Ready => text(StatusCode::OK, "ready"),
                Readiness::NotReady(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
            },
            "/status" => content(StatusCode::OK, "application/json", format!("{:#}\n", (self.status)())),
            _ => text(StatusCode::NOT_FOUND, "there is /metrics, /healthz, /readyz and /status"),
        }
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

/// Answers on `listener` until `shutdown` is cancelled, which should be after the proxy has drained: until then a prober
/// must still learn that the instance is not ready.
pub async fn serve(listener: TcpListener, admin: Arc<Admin>, shutdown: CancellationToken) {
    let tasks = TaskTracker::new();
    shutdown.run_until_cancelled(accept(listener, admin, &tasks, &shutdown)).await;
    tasks.close();
    // Answers are made at once; what takes longer is a peer that does not read.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, tasks.wait()).await;
}

async fn accept(listener: TcpListener, admin: Arc<Admin>, tasks: &TaskTracker, shutdown: &CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tasks.spawn(serve_connection(stream, admin.clone(), shutdown.clone()));
            }
            // Out of descriptors, mostly: trying again at once would only burn a core.
            Err(error) => {
                tracing::warn!(%error, "cannot accept an admin connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, admin: Arc<Admin>, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let service = service_fn(move |request| {
        let response = admin.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "admin connection ended");
    }
}

fn text(status: StatusCode, line: &str) -> Response<Full<Bytes>> {
    content(status, "text/plain; charset=utf-8", format!("{line}\n"))
}

fn content(status: StatusCode, media_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The text format that scrapers ask for.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Scrapers keep their connection between scrapes, which are up to a minute apart.
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn admin(readiness: Readiness) -> Admin {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || metrics::counter!("seen_total").increment(3));
        Admin::new(handle, move || readiness.clone(), || serde_json::json!({"store": "up"}))
    }

    async fn asked(admin: &Admin, method: Method, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let response = admin.answer(&request);
        let status = response.status().as_u16();
        (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn tells_what_it_is_asked() {
        let admin = admin(Readiness::Ready);
        let (status, metrics) = asked(&admin, Method::GET, "/metrics").await;
        assert!(status == 200 && metrics.contains("seen_total 3"), "{metrics}");
        assert_eq!(asked(&admin, Method::GET, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(asked(&admin, Method::HEAD, "/readyz?verbose").await.0, 200);
        let (status, json) = asked(&admin, Method::GET, "/status").await;
        assert_eq!(
            (status, serde_json::from_str::<serde_json::Value>(&json).unwrap()["store"].as_str()),
            (200, Some("up"))
        );
    }

    #[tokio::test]
    async fn says_why_it_is_not_ready() {
        let admin = admin(Readiness::NotReady("draining"));
        assert_eq!(asked(&admin, Method::GET, "/readyz").await, (503, "draining\n".into()));
        assert_eq!(asked(&admin, Method::GET, "/healthz").await.0, 200, "alive all the same");
    }

    #[tokio::test]
    async fn other_methods_and_paths() {
        let admin = admin(Readiness::Ready);
        assert_eq!(asked(&admin, Method::POST, "/metrics").await.0, 405);
        let (status, text) = asked(&admin, Method::GET, "/").await;
        assert!(status == 404 && text.contains("/metrics"), "{text}");
    }
}
