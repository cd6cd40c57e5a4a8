//! `limits`: token buckets, windows, requests under way, and what tells their buckets apart.

use std::{num::NonZeroU32, rc::Rc, time::Duration};

use super::{
    document::{Entry, Kind, Node},
    mistake::{Invalid, Mistake, Span, listed, nearest},
    model::{Adaptive, KeyPart, Limit, LimitKind, PathPattern, Start, Window},
    reader::{Context, Section, count, flag, word},
    schema,
    units::{Rate, decimal, positive_duration, rate},
};

/// Whose limits they are, which decides what their keys may name.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    /// Every request of a channel takes from them.
    Channel,
    /// Those of one endpoint; `None` when its path is missing or wrong, which is reported elsewhere.
    Endpoint(Option<&'a PathPattern>),
}

/// The `limits` of a channel or an endpoint, and where each stands.
pub(super) fn limits(section: &Section<'_>, owner: Owner<'_>) -> Vec<(Limit, Span)> {
    let cx = section.context();
    let items = section.list("limits", "a list, for example `limits: [{ rate: 20/s, capacity: 40 }]`");
    let limits: Vec<(Limit, Span)> =
        items.iter().filter_map(|item| limit(cx, item, owner).map(|limit| (limit, item.span.clone()))).collect();
    one_concurrent_a_key(cx, &limits);
    limits
}

fn limit(cx: &Context<'_>, item: &Rc<Node>, owner: Owner<'_>) -> Option<Limit> {
    let section = Section::open::<schema::Limit>(cx, "a limit", &item.span, Some(item), &[]);
    let safety = section.read("safety", fraction).unwrap_or(1.0);
    let adaptive = adaptive(&section);
    let key = key(&section, owner);
    let start = section.read("start", word(&[("full", Start::Full), ("empty", Start::Empty)])).unwrap_or(Start::Full);
    let capacity = section.read("capacity", count::<NonZeroU32>).unwrap_or(NonZeroU32::MIN);
    let token_bucket = |rate: Rate| LimitKind::TokenBucket { rate: rate.scaled(safety), capacity, start };
    let rate = section.read("rate", rate).map(token_bucket);
    let interval = section.read("interval", interval).map(token_bucket);
    let window = window(&section, safety);
    let concurrent = section.read("concurrent", count).map(|most| LimitKind::Concurrent { most });
    if item.is_null() {
        cx.mistake(Mistake::new(&item.span, "an empty limit", "for example `{ rate: 20/s, capacity: 40 }`"));
    } else if let Kind::Mapping(entries) = &item.kind {
        of_one_kind(&section, &item.span, entries);
    }
    section.finish();
    Some(Limit { kind: rate.or(interval).or(window).or(concurrent)?, key, adaptive })
}

/// Reports a limit of no kind or of several, and keys that do not go with its kind.
fn of_one_kind(section: &Section<'_>, span: &Span, entries: &[Entry]) {
    let cx = section.context();
    let mut written = KINDS.iter().filter_map(|kind| section.entry(kind.name).map(|_| kind));
    let Some(kind) = written.next() else {
        // An unknown key is reported already, and probably is the kind, misspelt.
        let is_known = |entry: &Entry| entry.key == "key" || OPTIONS.iter().any(|(key, _)| *key == entry.key);
        if !entries.iter().all(is_known) {
            return;
        }
        let hint = "for example `{ rate: 20/s, capacity: 40 }`, `{ count: 200, per: 60s }`, `{ concurrent: 3 }` or \
                    `{ interval: 100ms }`";
        let names = listed(KINDS.iter().map(|kind| kind.name), "or");
        cx.mistake(Mistake::new(span, format!("a limit needs {names}"), hint));
        return;
    };
    let others: Vec<&LimitKeys> = written.collect();
    for other in &others {
        let entry = section.entry(other.name).expect("only kinds that are written are listed");
        let message = format!("a limit has either `{}` or `{}`", kind.name, other.name);
        let hint = "a request takes from all limits in the list: write two of them";
        cx.mistake(Mistake::new(&entry.span, message, hint));
    }
    let fits = |key: &str| kind.takes.contains(&key) || others.iter().any(|other| other.takes.contains(&key));
    for (key, hint) in OPTIONS.iter().filter(|(key, _)| !fits(key)) {
        if let Some(entry) = section.entry(key) {
            cx.mistake(Mistake::new(&entry.span, format!("`{key}` does not go with `{}`", kind.name), *hint));
        }
    }
}

/// `interval: 100ms` is a rate of one per interval.
fn interval(text: &str) -> Result<Rate, Invalid> {
    let interval = positive_duration(text)?;
    Rate::new(1.0, interval).ok_or_else(|| Invalid::new("no interval that can be kept", "for example `100ms`"))
}

/// `count`, `per` and `window`.
fn window(section: &Section<'_>, safety: f64) -> Option<LimitKind> {
    let count = section.read("count", count::<NonZeroU32>);
    let words = [("sliding", Window::Sliding), ("clock", Window::Clock)];
    let window = section.read("window", word(&words)).unwrap_or(Window::Sliding);
    let per = section.read("per", |text| match positive_duration(text)? {
        per if per < SHORTEST_WINDOW => Err(Invalid::new("shorter than a millisecond", "for example `60s`")),
        per if window == Window::Clock && !divides_time(per) => Err(Invalid::new(
            "no window of the clock has this length",
            "it divides a day or is a whole number of days: `60s`, `15m`, `1h`, `1d`; any length goes with `window: sliding`",
        )),
        per => Ok(per),
    });
    if let Some(entry) = section.entry("count")
        && section.entry("per").is_none()
    {
        let hint = "the length of the window, for example `{ count: 200, per: 60s }`";
        section.context().mistake(Mistake::new(&entry.span, "`count` has no `per`", hint));
    }
    Some(LimitKind::Window { count: scaled(count?, safety), per: per?, window })
}

/// Whether windows of this length begin at the same times each day, or each on a midnight (UTC).
fn divides_time(per: Duration) -> bool {
    DAY.as_nanos().is_multiple_of(per.as_nanos()) || per.as_nanos().is_multiple_of(DAY.as_nanos())
}

/// The whole part of `count` times `safety`, at least 1. What a decimal fraction lacks in binary (0.29 of 100 is
/// 28.999…) is no reason to lose a unit.
fn scaled(count: NonZeroU32, safety: f64) -> NonZeroU32 {
    let scaled = (f64::from(count.get()) * safety + 1e-6).floor() as u32;
    NonZeroU32::new(scaled).unwrap_or(NonZeroU32::MIN).min(count)
}

/// `adaptive: true`, or a mapping of what differs from the default.
fn adaptive(section: &Section<'_>) -> Option<Adaptive> {
    let Entry { span, value, .. } = section.entry("adaptive")?;
    if !matches!(value.kind, Kind::Mapping(_)) {
        return section.read("adaptive", flag)?.then(Adaptive::default);
    }
    let cx = section.context();
    let section = Section::open::<schema::AdaptiveSettings>(cx, "`adaptive`", span, Some(&**value), &[]);
    let default = Adaptive::default();
    let cut = section.read("cut", |text| match fraction(text)? {
        cut if cut < 1.0 => Ok(cut),
        _ => Err(Invalid::new("would cut nothing", "`cut: 0.7` leaves seven tenths of the rate")),
    });
    let adaptive = Adaptive {
        cut: cut.unwrap_or(default.cut),
        floor: section.read("floor", fraction).unwrap_or(default.floor),
        recover: section.read("recover", fraction).unwrap_or(default.recover),
    };
    section.finish();
    Some(adaptive)
}

/// `key`, the credential alone when it is left out.
fn key(section: &Section<'_>, owner: Owner<'_>) -> Vec<KeyPart> {
    if section.entry("key").is_none() {
        return vec![KeyPart::Credential];
    }
    let cx = section.context();
    let mut parts: Vec<(KeyPart, &Span)> = Vec::new();
    for item in section.list("key", "for example `key: [credential, path.hotel_id]`") {
        let Some(part) = cx.parse("`key`", item, KeyPart::parse) else { continue };
        if let Some((_, first)) = parts.iter().find(|(earlier, _)| *earlier == part) {
            let mistake = Mistake::new(&item.span, format!("`{part}` stands twice in `key`"), "once is enough");
            cx.mistake(mistake.with(first, "first written here"));
            continue;
        }
        if let KeyPart::Path(name) = &part {
            captured(cx, name, &item.span, owner);
        }
        parts.push((part, &item.span));
    }
    parts.into_iter().map(|(part, _)| part).collect()
}

/// Reports a capture that requests under this limit do not have.
fn captured(cx: &Context<'_>, name: &str, span: &Span, owner: Owner<'_>) {
    let (message, hint) = match owner {
        Owner::Endpoint(None) => return,
        Owner::Endpoint(Some(path)) if path.captures().any(|(_, capture)| capture == name) => return,
        Owner::Endpoint(Some(path)) => {
            let names: Vec<&str> = path.captures().map(|(_, capture)| capture).collect();
            let hint = match nearest(name, names.iter().copied()) {
                _ if names.is_empty() => {
                    "name the segment in `path`, for example `/hotels/{hotel_id}/rates`".to_owned()
                }
                Some(near) => format!("did you mean `path.{near}`? the path captures {}", listed(names, "and")),
                None => format!("the path captures {}", listed(names, "and")),
            };
            (format!("the path `{path}` has no `{{{name}}}`"), hint)
        }
        Owner::Channel => (
            format!("`path.{name}` in a limit of the whole channel"),
            "each endpoint has a path of its own; move the limit to the endpoints whose paths hold the name".to_owned(),
        ),
    };
    cx.mistake(Mistake::new(span, format!("`key`: {message}"), hint));
}

/// Of two limits on requests under way in the same buckets, only the lower one says anything.
fn one_concurrent_a_key(cx: &Context<'_>, limits: &[(Limit, Span)]) {
    let is_concurrent = |limit: &Limit| matches!(limit.kind, LimitKind::Concurrent { .. });
    for (at, (later, span)) in limits.iter().enumerate().filter(|(_, (limit, _))| is_concurrent(limit)) {
        let equal = |(limit, _): &&(Limit, Span)| {
            is_concurrent(limit)
                && limit.key.len() == later.key.len()
                && limit.key.iter().all(|part| later.key.contains(part))
        };
        if let Some((_, first)) = limits[..at].iter().find(equal) {
            let hint = "keep the lower one, or give the two different keys";
            let mistake = Mistake::new(span, "a second `concurrent` with the same key", hint);
            cx.mistake(mistake.with(first, "the first is here"));
        }
    }
}

fn fraction(text: &str) -> Result<f64, Invalid> {
    decimal(text).filter(|part| *part > 0.0 && *part <= 1.0).ok_or_else(|| {
        Invalid::new("not a number above 0 and at most 1", "a part of the configured rate, for example `0.9`")
    })
}

/// A kind of limit by the key that makes it one, and what else it takes beside `key`.
struct LimitKeys {
    name: &'static str,
    takes: &'static [&'static str],
}

const KINDS: [LimitKeys; 4] = [
    LimitKeys { name: "rate", takes: &["capacity", "start", "safety", "adaptive"] },
    LimitKeys { name: "count", takes: &["per", "window", "safety"] },
    LimitKeys { name: "concurrent", takes: &[] },
    LimitKeys { name: "interval", takes: &["start", "safety", "adaptive"] },
];
/// Keys that only some kinds take, and what to do where they do not belong.
const OPTIONS: [(&str, &str); 6] = [
    ("capacity", "only a `rate` has bursts of `capacity`"),
    ("start", "only a bucket with a `rate` or an `interval` starts `full` or `empty`"),
    ("per", "`per` is the length of a window: `{ count: 200, per: 60s }`"),
    ("window", "only a `count` has windows: `{ count: 200, per: 60s, window: clock }`"),
    ("safety", "requests under way are whole; lower `concurrent` itself"),
    ("adaptive", "only a `rate` or an `interval` adapts to throttle answers"),
];
const SHORTEST_WINDOW: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn clock_windows_fit_the_day() {
        for (seconds, fits) in
            [(1, true), (60, true), (900, true), (3_600, true), (86_400, true), (604_800, true), (7, false), (90, true)]
        {
            assert_eq!(divides_time(Duration::from_secs(seconds)), fits, "{seconds} s");
        }
        assert!(!divides_time(Duration::from_secs(86_401)) && divides_time(Duration::from_millis(250)));
    }

    #[test]
    fn a_safety_factor_keeps_whole_units() {
        let scaled = |count, safety| scaled(NonZeroU32::new(count).unwrap(), safety).get();
        assert_eq!((scaled(200, 0.9), scaled(100, 0.29), scaled(10, 0.85), scaled(3, 0.1)), (180, 29, 8, 1));
    }

    proptest! {
        #[test]
        fn a_safety_factor_never_raises_a_count(count in 1u32.., thousandths in 1u32..=1_000) {
            let safety = f64::from(thousandths) / 1e3;
            let scaled = scaled(NonZeroU32::new(count).unwrap(), safety).get();
            prop_assert!(scaled <= count && scaled == ((u64::from(count) * u64::from(thousandths)) / 1_000).max(1) as u32);
        }
    }
}
