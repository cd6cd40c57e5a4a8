//! Every arrival at the OTA, and what can be read from them.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

/// One request as the OTA saw it. Times are microseconds since the OTA started.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Arrival {
    /// When its head had been read.
    pub(crate) at_us: u64,
    /// When the answer was handed to the connection; absent while it is not.
    pub(crate) answered_us: Option<u64>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) credential: String,
    /// The status it was or will be answered with; 0 where a scripted fault answers nothing.
    pub(crate) status: u16,
    /// Length of the request body; 0 while it has not been read.
    pub(crate) body_bytes: u64,
    /// Counts connections from 1 in the order they were accepted.
    pub(crate) connection: u64,
}

/// The latest arrivals, oldest first.
#[derive(Default)]
pub(crate) struct Ledger {
    arrivals: VecDeque<Arrival>,
    /// The id of the first arrival remembered.
    first: u64,
    /// How many were forgotten for want of room.
    dropped: u64,
}

/// Names one arrival in the ledger.
#[derive(Clone, Copy)]
pub(crate) struct EntryId(u64);

/// What a report is about.
#[derive(Default)]
pub(crate) struct Filter {
    pub(crate) path: Option<String>,
    pub(crate) credential: Option<String>,
    pub(crate) since_us: u64,
    pub(crate) until_us: Option<u64>,
}

/// A summary of arrivals.
#[derive(Serialize)]
pub(crate) struct Report {
    now_us: u64,
    /// When the first of these arrivals came, where the first of `seconds` begins.
    first_us: Option<u64>,
    /// Arrivals that the report is about.
    total: usize,
    /// Arrivals since the last reset that were forgotten for want of room, of any kind.
    dropped: u64,
    connections: usize,
    by_status: BTreeMap<u16, u64>,
    by_path: BTreeMap<String, u64>,
    /// Arrivals second by second, from the first one on.
    seconds: Vec<Second>,
    worst_window: Option<Window>,
}

#[derive(Serialize, Default, Clone)]
struct Second {
    ok: u64,
    throttled: u64,
    other: u64,
}

/// The window with the most arrivals above `capacity + rate × length`.
#[derive(Serialize)]
struct Window {
    from_us: u64,
    to_us: u64,
    count: usize,
    /// Negative where even the worst window is below what is allowed.
    excess: f64,
}

impl Ledger {
    /// Notes an arrival; the oldest is forgotten where there are too many.
    pub(crate) fn enter(&mut self, arrival: Arrival) -> EntryId {
        if self.arrivals.len() == MAX_ARRIVALS {
            self.arrivals.pop_front();
            self.first += 1;
            self.dropped += 1;
        }
        self.arrivals.push_back(arrival);
        EntryId(self.first + self.arrivals.len() as u64 - 1)
    }

    /// The entry, unless it has been forgotten.
    pub(crate) fn entry(&mut self, id: EntryId) -> Option<&mut Arrival> {
        let index = id.0.checked_sub(self.first)?;
        self.arrivals.get_mut(usize::try_from(index).ok()?)
    }

    /// Forgets every arrival; those being answered now will not be noted.
    pub(crate) fn clear(&mut self) {
        self.first += self.arrivals.len() as u64;
        self.dropped = 0;
        self.arrivals.clear();
    }

    /// The arrivals that `filter` lets through.
    pub(crate) fn select(&self, filter: &Filter) -> Vec<&Arrival> {
        self.arrivals.iter().filter(|arrival| filter.admits(arrival)).collect()
    }

    /// Sums up what `filter` lets through; `allowance` is the rate per second and the capacity to hold it against.
    pub(crate) fn report(&self, filter: &Filter, allowance: Option<(f64, f64)>, now_us: u64) -> Report {
        let arrivals = self.select(filter);
        let mut by_status = BTreeMap::new();
        let mut by_path = BTreeMap::new();
        let mut seconds: Vec<Second> = Vec::new();
        let mut connections: Vec<u64> = arrivals.iter().map(|arrival| arrival.connection).collect();
        connections.sort_unstable();
        connections.dedup();
        for arrival in &arrivals {
            *by_status.entry(arrival.status).or_default() += 1;
            *by_path.entry(arrival.path.clone()).or_default() += 1;
            let second = usize::try_from((arrival.at_us - arrivals[0].at_us) / 1_000_000).unwrap_or(usize::MAX);
            if second < MAX_SECONDS {
                seconds.resize(seconds.len().max(second + 1), Second::default());
                let second = &mut seconds[second];
                match arrival.status {
                    200..=299 => second.ok += 1,
                    429 => second.throttled += 1,
                    _ => second.other += 1,
                }
            }
        }
        Report {
            now_us,
            first_us: arrivals.first().map(|arrival| arrival.at_us),
            total: arrivals.len(),
            dropped: self.dropped,
            connections: connections.len(),
            by_status,
            by_path,
            seconds,
            worst_window: allowance.and_then(|(rate, capacity)| worst_window(&arrivals, rate, capacity)),
        }
    }
}

impl Filter {
    fn admits(&self, arrival: &Arrival) -> bool {
        self.path.as_ref().is_none_or(|path| *path == arrival.path)
            && self.credential.as_ref().is_none_or(|credential| *credential == arrival.credential)
            && arrival.at_us >= self.since_us
            && self.until_us.is_none_or(|until| arrival.at_us <= until)
    }
}

/// Looks at every window that starts and ends with an arrival, since any other holds no more per length.
///
/// One pass: the excess of the window from `i` to `j` is a term of `j` minus a term of `i`, so for each end only the start
/// with the least term matters.
fn worst_window(arrivals: &[&Arrival], rate: f64, capacity: f64) -> Option<Window> {
    let refilled = |index: usize| rate * arrivals[index].at_us as f64 / 1e6;
    let mut start = 0;
    let mut worst: Option<Window> = None;
    for end in 0..arrivals.len() {
        if (end as f64 - refilled(end)) < start as f64 - refilled(start) {
            start = end;
        }
        let count = end - start + 1;
        let excess = count as f64 - (refilled(end) - refilled(start)) - capacity;
        if worst.as_ref().is_none_or(|worst| excess > worst.excess) {
            worst = Some(Window { from_us: arrivals[start].at_us, to_us: arrivals[end].at_us, count, excess });
        }
    }
    worst
}

/// A test sends thousands; a bench, some hundred thousand.
const MAX_ARRIVALS: usize = 500_000;

/// An hour of bars.
const MAX_SECONDS: usize = 3_600;
