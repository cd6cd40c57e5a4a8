//! What the fleet did, second by second, held against what it was allowed and what it could have done.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    fleet::Event,
    ideal::{self, Bucket},
    incident::Incident,
    instance::Step,
};

/// The limit that the fleet shares.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    /// Microseconds that one token takes to refill.
    pub(crate) interval: f64,
    /// Tokens.
    pub(crate) capacity: f64,
}

impl Limit {
    /// Tokens per second.
    pub(crate) fn rate(self) -> f64 {
        1e6 / self.interval
    }
}

/// All that is known of a run. Instants are microseconds of the shared clock.
pub(crate) struct Run {
    /// In order of time.
    pub(crate) log: Vec<Event>,
    pub(crate) incidents: Vec<Incident>,
    /// Of scripts, in Redis.
    pub(crate) calls: u64,
    pub(crate) limit: Limit,
    pub(crate) instances: usize,
    pub(crate) end: u64,
}

/// One request's fate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) instance: usize,
    pub(crate) came: u64,
    pub(crate) went: Option<u64>,
    /// When it stopped waiting without going: refused, or its process killed.
    pub(crate) left: Option<u64>,
    pub(crate) refused: bool,
}

/// What was seen while the run was gone through in order of time.
#[derive(Debug, Default)]
pub(crate) struct Course {
    /// For every request that went, microseconds by which the oldest one still waiting was older.
    pub(crate) overtaking: Vec<f64>,
    /// For every request that went, microseconds for which a token and a waiter had both been there.
    pub(crate) idle: Vec<f64>,
    /// Microseconds in stretches of more than a second during which somebody always waited.
    pub(crate) backlog: f64,
    /// What went in these stretches.
    pub(crate) used: f64,
    /// What the limit allowed in them.
    pub(crate) allowed: f64,
}

impl Run {
    /// Every request, in the order they came.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let mut places = HashMap::new();
        let mut requests = Vec::new();
        for event in &self.log {
            let Event { at, instance, request, step } = *event;
            match step {
                Step::Came => {
                    places.insert((instance, request), requests.len());
                    requests.push(Request { instance, came: at, went: None, left: None, refused: false });
                }
                Step::Went | Step::Refused => {
                    let Some(place) = places.get(&(instance, request)) else { continue };
                    let request: &mut Request = &mut requests[*place];
                    match step {
                        Step::Went => request.went = Some(at),
                        _ => (request.left, request.refused) = (Some(at), true),
                    }
                }
            }
        }
        for incident in &self.incidents {
            let Incident::Killed { instance, at } = *incident else { continue };
            let dead = |request: &&mut Request| request.instance == instance && request.went.is_none();
            requests.iter_mut().filter(dead).for_each(|request| request.left = request.left.or(Some(at)));
        }
        requests
    }

    /// When requests went, in order.
    pub(crate) fn sends(&self) -> Vec<u64> {
        self.log.iter().filter(|event| event.step == Step::Went).map(|event| event.at).collect()
    }

    /// Goes through the run in order of time.
    pub(crate) fn course(&self, requests: &[Request]) -> Course {
        let mut course = Course::default();
        let mut bucket = Bucket::full(self.limit);
        let mut line = Line::default();
        let mut stretch: Option<Stretch> = None;
        for (at, _, happening) in self.happenings(requests) {
            match happening {
                Happening::Came(request) => line.join(request, &requests[request]),
                Happening::Left(request) => line.leave(request, &requests[request]),
                Happening::Went(request) => {
                    let came = requests[request].came;
                    line.leave(request, &requests[request]);
                    let oldest = line.oldest().map_or(came, |oldest| oldest.min(came));
                    course.overtaking.push((came - oldest) as f64);
                    course.idle.push((at as f64 - bucket.ready_at().max(oldest as f64)).max(0.0));
                    bucket.take(at as f64);
                    if let Some(stretch) = &mut stretch {
                        stretch.used += 1.0;
                    }
                }
                Happening::Froze(instance) => line.freeze(instance),
                Happening::Thawed(instance) => line.thaw(instance),
                Happening::Ended => line = Line::default(),
            }
            match (line.oldest(), stretch.take()) {
                (Some(_), None) => stretch = Some(Stretch { from: at, tokens: bucket.tokens(at as f64), used: 0.0 }),
                (Some(_), same) => stretch = same,
                (None, Some(stretch)) => stretch.count(at, self.limit, &mut course),
                (None, None) => {}
            }
        }
        course
    }

    /// For every instance, what its requests waited in all, and what they would have waited in a single line, in
    /// microseconds; only those that went in both, and not of instances that were stopped or killed.
    pub(crate) fn waits(&self, requests: &[Request], ideal: &[Option<u64>]) -> BTreeMap<usize, (f64, f64, u32)> {
        let mut waits: BTreeMap<usize, (f64, f64, u32)> = BTreeMap::new();
        for (request, ideal) in requests.iter().zip(ideal) {
            let (Some(went), Some(ideal)) = (request.went, ideal) else { continue };
            if self.incidents.iter().any(|incident| incident.strikes(request.instance)) {
                continue;
            }
            let (wait, would, count) = waits.entry(request.instance).or_default();
            *wait += (went - request.came) as f64;
            *would += ideal.saturating_sub(request.came) as f64;
            *count += 1;
        }
        waits
    }

    /// By how much the n-th request to go went later than the n-th of a single line, in microseconds.
    pub(crate) fn lateness(&self, ideal: &[Option<u64>]) -> Vec<f64> {
        let mut ideal: Vec<u64> = ideal.iter().copied().flatten().collect();
        ideal.sort_unstable();
        self.sends().iter().zip(&ideal).map(|(went, ideal)| went.saturating_sub(*ideal) as f64).collect()
    }

    /// See [`ideal::single_line`].
    pub(crate) fn ideal(&self, requests: &[Request]) -> Vec<Option<u64>> {
        ideal::single_line(requests, self.limit, self.end)
    }

    fn happenings(&self, requests: &[Request]) -> Vec<(u64, u8, Happening)> {
        let mut happenings = vec![(self.end, 4, Happening::Ended)];
        for (place, request) in requests.iter().enumerate() {
            happenings.push((request.came, 0, Happening::Came(place)));
            if let Some(left) = request.left {
                happenings.push((left, 1, Happening::Left(place)));
            }
            if let Some(went) = request.went {
                happenings.push((went, 3, Happening::Went(place)));
            }
        }
        for incident in &self.incidents {
            let Incident::Stopped { instance, from, to } = *incident else { continue };
            happenings.push((from, 2, Happening::Froze(instance)));
            happenings.push((to + SETTLE, 2, Happening::Thawed(instance)));
        }
        // What follows the end only ends the run.
        happenings.retain(|(at, ..)| *at <= self.end);
        happenings.sort_unstable_by_key(|(at, order, _)| (*at, *order));
        happenings
    }
}

enum Happening {
    Came(usize),
    Left(usize),
    Went(usize),
    Froze(usize),
    Thawed(usize),
    Ended,
}

/// Everybody who waits, anywhere. Whoever waits in a process that stands still cannot go, and is overtaken by nobody.
#[derive(Default)]
struct Line {
    waiting: BTreeSet<(u64, usize)>,
    frozen: BTreeMap<usize, BTreeSet<(u64, usize)>>,
    instances: HashMap<usize, usize>,
}

impl Line {
    fn join(&mut self, place: usize, request: &Request) {
        self.instances.insert(place, request.instance);
        let line = self.frozen.get_mut(&request.instance).unwrap_or(&mut self.waiting);
        line.insert((request.came, place));
    }

    fn leave(&mut self, place: usize, request: &Request) {
        if !self.waiting.remove(&(request.came, place))
            && let Some(frozen) = self.frozen.get_mut(&request.instance)
        {
            frozen.remove(&(request.came, place));
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.waiting.first().map(|(came, _)| *came)
    }

    fn freeze(&mut self, instance: usize) {
        let instances = &self.instances;
        let frozen = self.waiting.extract_if(.., |(_, place)| instances.get(place) == Some(&instance)).collect();
        self.frozen.insert(instance, frozen);
    }

    fn thaw(&mut self, instance: usize) {
        self.waiting.extend(self.frozen.remove(&instance).unwrap_or_default());
    }
}

/// A time during which somebody always waited.
struct Stretch {
    from: u64,
    /// What the bucket held when it began.
    tokens: f64,
    used: f64,
}

impl Stretch {
    /// Short ones tell of arrivals, not of the limiter.
    fn count(self, to: u64, limit: Limit, course: &mut Course) {
        let length = (to - self.from) as f64;
        if length > SHORTEST.max(3.0 * limit.interval) {
            course.backlog += length;
            course.used += self.used;
            course.allowed += self.tokens + length / limit.interval;
        }
    }
}

/// What an instance that runs again may take until its requests count as waiting, in microseconds.
const SETTLE: u64 = 1_000_000;
/// Of the stretches that show how well the limit is used, in microseconds.
const SHORTEST: f64 = 1e6;
