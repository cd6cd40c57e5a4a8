//! Reads the Prometheus text of `/metrics`.

use std::{collections::BTreeMap, net::SocketAddr};

use super::http;

/// One scrape.
#[derive(Debug)]
pub(crate) struct Metrics(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Scrapes the admin port of a proxy.
    #[track_caller]
    pub(crate) fn scrape(admin: SocketAddr) -> Self {
        let answer = http::read(admin, "/metrics");
        assert_eq!(answer.status, 200, "/metrics answers {}", answer.status);
        Self::parse(&answer.body)
    }

    /// Parses the text format 0.0.4.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// The sum of the samples of that name which carry all of `labels`; `None` where there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let carries = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|&(key, value)| sample.labels.get(key).is_some_and(|v| v == value))
        };
        self.0.iter().filter(carries).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    Some(Sample { name: name.to_owned(), labels: parse_labels(labels), value: value.parse().ok()? })
}

/// Label values here come from configs of tests, which hold no quotes and no commas.
fn parse_labels(text: &str) -> BTreeMap<String, String> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

#[test]
fn sums_the_samples_that_carry_the_labels() {
    let text = "# TYPE a counter\na{channel=\"x\",outcome=\"ok\"} 2\na{channel=\"x\",outcome=\"bad\"} 1.5\nb 7\n";
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.sum("a", &[("channel", "x")]), Some(3.5));
    assert_eq!(metrics.sum("a", &[("outcome", "bad")]), Some(1.5));
    assert_eq!(metrics.sum("b", &[]), Some(7.0));
    assert_eq!(metrics.sum("a", &[("channel", "y")]), None);
}
