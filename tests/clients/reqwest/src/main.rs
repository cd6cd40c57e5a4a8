//! reqwest with its blocking client: the steps of the client tests.

use std::{
    error::Error,
    hash::{DefaultHasher, Hash, Hasher},
    io::Cursor,
    time::Duration,
};

use reqwest::{
    Method,
    blocking::{Body, Client},
};

fn main() -> Result<(), Box<dyn Error>> {
    let origin = std::env::var("ORIGIN")?;
    let client = Client::builder().timeout(Duration::from_secs(20)).build()?;
    let payload = "0123456789abcdef".repeat(6400);
    let step = |name: &str, method: Method, path: &str, body: Option<Body>| -> Result<(), Box<dyn Error>> {
        let mut request = client.request(method, format!("{origin}{path}"));
        if let Some(body) = body {
            request = request.body(body);
        }
        let answer = request.send()?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes()?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        println!("{name} {status} {} {:x}", bytes.len(), hasher.finish());
        Ok(())
    };
    step("get", Method::GET, "/get", None)?;
    step("post", Method::POST, "/echo", Some(payload.clone().into()))?;
    step("chunked", Method::POST, "/echo", Some(Body::new(Cursor::new(payload))))?;
    step("head", Method::HEAD, "/head", None)?;
    step("redirect", Method::GET, "/redirect", None)?;
    step("gzip", Method::GET, "/gzip", None)?;
    step("missing", Method::GET, "/missing", None)?;
    step("stream", Method::GET, "/stream", None)?;
    for number in 0..5 {
        step("series", Method::GET, &format!("/series/{number}"), None)?;
    }
    Ok(())
}
