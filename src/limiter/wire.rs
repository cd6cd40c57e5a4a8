//! What the scripts are given and what they answer, as text and numbers.

use std::time::Duration;

use super::{
    bucket::{Answer, Level, LimitSpec, Outage},
    claim::{BucketSpec, Claim, HORIZON},
};

/// What some instance of the fleet announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A bucket may send nothing for a while.
    Pause {
        /// The bucket.
        key: String,
        /// How long, from the moment the notice was sent.
        wait: Duration,
    },
    /// A request ended that others wait for.
    Wake {
        /// Their line.
        line: String,
    },
}

/// The keys and arguments of `lua/claim.lua`.
pub fn claim(claim: &Claim, notices: &str) -> (Vec<String>, Vec<String>) {
    let group = &claim.group;
    let mut keys = Vec::new();
    let points = claim.ages.points();
    let outage = claim.outage.unwrap_or(Outage { at: 0.0, length: 0.0, instances: 0.0 });
    let mut args = vec![
        text(HORIZON),
        text(group.lead()),
        text(claim.rtt),
        claim.lane.to_string(),
        notices.to_owned(),
        text(claim.witness_age),
        text(outage.at),
        text(outage.length),
        text(outage.instances),
        text(group.cost),
        claim.held.to_string(),
        u8::from(claim.is_registered).to_string(),
        claim.ages.count().to_string(),
        points.len().to_string(),
    ];
    args.extend(points.iter().flat_map(|point| [point.place, point.arrival]).map(text));
    let mut witness = claim.witness.iter().copied();
    for bucket in &group.buckets {
        keys.push(bucket.key.clone());
        args.push(bucket.limits.len().to_string());
        for limit in &bucket.limits {
            let witness = witness.next().unwrap_or(0.0);
            match *limit {
                LimitSpec::Bucket { interval, capacity, starts_full, adaptive } => {
                    let recover = adaptive.map_or(0.0, |adaptive| adaptive.recover);
                    let start = f64::from(u8::from(starts_full));
                    args.push("b".to_owned());
                    args.extend([interval, capacity, start, witness, recover].map(text));
                }
                LimitSpec::Window { count, per, margin, is_clock } => {
                    args.push("w".to_owned());
                    args.extend([count, per, margin, f64::from(u8::from(is_clock)), witness].map(text));
                }
                LimitSpec::Concurrent { most } => {
                    keys.push(format!("{}:leases", bucket.key));
                    args.extend(["c".to_owned(), text(most)]);
                }
            }
        }
    }
    keys.push(group.line.clone());
    (keys, args)
}

/// The answer of `lua/claim.lua`; `None` where it is none.
pub fn answer(claim: &Claim, reply: &[i64]) -> Option<Answer> {
    let (head, rest) = reply.split_at_checked(4)?;
    let (levels, slots) = rest.split_at_checked(2 * claim.witness.len())?;
    let level = |pair: &[i64]| Level { level: pair[0] as f64, more: pair[1] as f64 };
    Some(Answer {
        next: head[0] as f64,
        pause: head[1] as f64,
        others: usize::try_from(head[2]).ok()?,
        older: usize::try_from(head[3]).ok()?,
        levels: levels.chunks_exact(2).map(level).collect(),
        slots: slots.iter().map(|slot| *slot as f64).collect(),
    })
}

/// The keys and arguments of `lua/pause.lua`.
pub fn pause(bucket: &BucketSpec, wait: Duration, notices: &str) -> (Vec<String>, Vec<String>) {
    let mut args = vec![text(wait.as_secs_f64() * 1e6), notices.to_owned()];
    for limit in &bucket.limits {
        match *limit {
            LimitSpec::Bucket { interval, capacity, adaptive, .. } => {
                let (cut, floor) = adaptive.map_or((0.0, 0.0), |adaptive| (adaptive.cut, adaptive.floor));
                args.push("b".to_owned());
                args.extend([interval, capacity, cut, floor].map(text));
            }
            LimitSpec::Window { .. } | LimitSpec::Concurrent { .. } => args.push("-".to_owned()),
        }
    }
    (vec![bucket.key.clone()], args)
}

/// `pause <microseconds> <key>` or `wake <line>`, as the scripts publish them.
pub fn notice(text: &str) -> Option<Notice> {
    match text.split_once(' ')? {
        ("pause", rest) => {
            let (wait, key) = rest.split_once(' ')?;
            Some(Notice::Pause { key: key.to_owned(), wait: Duration::from_micros(wait.parse().ok()?) })
        }
        ("wake", line) => Some(Notice::Wake { line: line.to_owned() }),
        _ => None,
    }
}

fn text(number: f64) -> String {
    number.to_string()
}
