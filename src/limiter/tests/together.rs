//! Many instances on one bucket, in a process where time stands still: the order and the cost of their claims, exactly,
//! whatever the speed of the machine.
//!
//! `examples/swarm` runs the same with real processes and a real Redis.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until};

use crate::config::model::Class;

use super::{
    super::{
        bucket::{self, BucketState, LimitSpec, LineState},
        claim::{Claim, Grant, HORIZON, micros},
        lane::{Lane, Turn},
        memory::ask,
        store::Store,
    },
    lane, refills,
};

/// One bucket and its line, a trip away from every instance.
#[derive(Debug)]
pub struct SharedStore {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bucket: BucketState,
    lines: HashMap<String, LineState>,
    claims: usize,
}

impl SharedStore {
    pub(in crate::limiter) async fn claim(&self, claim: &Claim) -> Grant {
        sleep(TRIP).await;
        let grant = {
            let mut state = self.state.lock().unwrap();
            state.claims += 1;
            let State { bucket, lines, .. } = &mut *state;
            let now = self.started.elapsed().as_secs_f64() * 1e6;
            let line = lines.entry(claim.group.line.clone()).or_default();
            let limits = claim.group.narrowest().limits.as_slice();
            Grant::new(claim, bucket::claim(&mut [(bucket, limits)], line, &ask(claim, now), now), true)
        };
        sleep(TRIP).await;
        grant
    }
}

/// What is asked for, as in the swarm: a quarter of the requests in bursts.
struct Demand {
    instances: usize,
    rate: f64,
    capacity: f64,
    load: f64,
    burst: usize,
    seconds: u64,
}

impl Demand {
    /// When requests come, and at which instance.
    fn plan(&self, seed: u64) -> Vec<(Duration, usize)> {
        let mut random = StdRng::seed_from_u64(seed);
        let requests = (self.load * self.rate * self.seconds as f64) as usize;
        let weights: Vec<f64> = (1..=self.instances).map(|rank| 1.0 / rank as f64).collect();
        let whole: f64 = weights.iter().sum();
        let mut plan = Vec::new();
        while plan.len() < requests {
            let at = Duration::from_micros(random.random_range(0..self.seconds * 1_000_000));
            if random.random_range(0..4 * self.burst) < 1 {
                plan.extend(std::iter::repeat_n((at, random.random_range(0..self.instances)), self.burst));
            } else {
                let mut place = random.random_range(0.0..whole);
                let instance = weights.iter().position(|weight| {
                    place -= weight;
                    place < 0.0
                });
                plan.push((at, instance.unwrap_or(0)));
            }
        }
        plan.sort_unstable();
        plan
    }
}

/// When a request came and when it went, in seconds from the start.
struct Course {
    came: f64,
    went: f64,
}

struct Figures {
    claims_per_grant: f64,
    /// How much older the oldest request still waiting anywhere was than the one that went; ascending.
    overtaking: Vec<f64>,
    /// Tokens above the limit in the worst window.
    excess: f64,
    /// By how many seconds the n-th request went later than the n-th of a single line at one bucket, at most.
    lateness: f64,
}

async fn run(demand: &Demand, seed: u64) -> Figures {
    let start = Instant::now();
    let store = Arc::new(SharedStore { started: start, state: Mutex::default() });
    let limit = refills(1e6 / demand.rate, demand.capacity);
    let lanes = lanes(&store, limit, demand.instances);
    let requests: Vec<_> = demand
        .plan(seed)
        .into_iter()
        .map(|(at, instance)| {
            let lane = lanes[instance].clone();
            tokio::spawn(async move {
                sleep_until(start + at).await;
                let arrived = Instant::now();
                let turn = Turn { arrived, class: Class::Interactive, max_wait: Duration::from_secs(3600) };
                let _permit = lane.slot(turn).await.unwrap();
                let since = |instant: Instant| (instant - start).as_secs_f64();
                Course { came: since(arrived), went: since(Instant::now()) }
            })
        })
        .collect();
    let mut courses = Vec::new();
    for request in requests {
        courses.push(request.await.unwrap());
    }
    let claims = store.state.lock().unwrap().claims;
    Figures {
        claims_per_grant: claims as f64 / courses.len() as f64,
        overtaking: overtaking(&courses),
        excess: excess(&courses, demand),
        lateness: lateness(&courses, demand),
    }
}

/// The lanes of so many instances before one bucket.
fn lanes(store: &Arc<SharedStore>, limit: LimitSpec, instances: usize) -> Vec<Lane> {
    let lane = |instance: usize| lane(Store::Together(Arc::clone(store)), limit, &instance.to_string(), "line");
    (0..instances).map(lane).collect()
}

fn overtaking(courses: &[Course]) -> Vec<f64> {
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    let mut steps: Vec<_> = courses
        .iter()
        .flat_map(|course| {
            [(micros(course.came), 0, micros(course.came)), (micros(course.went), 1, micros(course.came))]
        })
        .collect();
    steps.sort_unstable();
    let mut waiting = BTreeMap::<u64, usize>::new();
    let mut overtaking = Vec::new();
    for (_, goes, came) in steps {
        if goes == 0 {
            *waiting.entry(came).or_default() += 1;
            continue;
        }
        let oldest = *waiting.keys().next().unwrap();
        overtaking.push((came - oldest) as f64 / 1e6);
        let same = waiting.get_mut(&came).unwrap();
        *same -= 1;
        if *same == 0 {
            waiting.remove(&came);
        }
    }
    overtaking.sort_unstable_by(f64::total_cmp);
    overtaking
}

fn excess(courses: &[Course], demand: &Demand) -> f64 {
    let mut went: Vec<_> = courses.iter().map(|course| course.went).collect();
    went.sort_unstable_by(f64::total_cmp);
    let (mut level, mut before, mut worst) = (0.0_f64, 0.0, 0.0_f64);
    for at in went {
        level = (level - (at - before) * demand.rate).max(0.0) + 1.0;
        worst = worst.max(level - demand.capacity);
        before = at;
    }
    worst
}

fn lateness(courses: &[Course], demand: &Demand) -> f64 {
    let (mut came, mut went): (Vec<_>, Vec<_>) = courses.iter().map(|course| (course.came, course.went)).unzip();
    came.sort_unstable_by(f64::total_cmp);
    went.sort_unstable_by(f64::total_cmp);
    let (mut full_at, interval) = (0.0_f64, 1.0 / demand.rate);
    let ideal = came.into_iter().map(|came| {
        let slot = came.max(full_at - (demand.capacity - 1.0) * interval);
        full_at = full_at.max(slot) + interval;
        slot
    });
    went.into_iter().zip(ideal).map(|(went, ideal)| went - ideal).fold(0.0, f64::max)
}

async fn holds(demand: Demand, most_claims: f64) {
    for seed in 0..SEEDS {
        let Figures { claims_per_grant, overtaking, excess, lateness } = run(&demand, seed).await;
        let horizon = micros(HORIZON).as_secs_f64();
        let (p99, max) = (overtaking[overtaking.len() * 99 / 100], overtaking[overtaking.len() - 1]);
        let figures = format!(
            "seed {seed}: {claims_per_grant:.2} claims a grant, overtaking p99 {p99:.3} s, max {max:.3} s, {excess:.2} tokens \
             too many, {lateness:.3} s late at most"
        );
        println!("{} instances, {}/s, {figures}", demand.instances, demand.rate);
        assert!(p99 <= horizon / 2.0 && max <= horizon, "{figures}");
        assert!(claims_per_grant <= most_claims, "{figures}");
        assert!(excess <= demand.rate * JITTER + 1e-6, "{figures}");
        assert!(lateness <= horizon / 2.0, "a token and a waiter were both there: {figures}");
    }
}

#[tokio::test(start_paused = true)]
async fn few_slots_go_by_age() {
    holds(Demand { instances: 8, rate: 2.0, capacity: 1.0, load: 1.5, burst: 3, seconds: 60 }, 2.5).await;
    holds(Demand { instances: 8, rate: 5.0, capacity: 1.0, load: 1.5, burst: 3, seconds: 30 }, 2.5).await;
}

#[tokio::test(start_paused = true)]
async fn a_few_instances_go_by_age() {
    holds(Demand { instances: 2, rate: 100.0, capacity: 5.0, load: 1.3, burst: 10, seconds: 10 }, 0.7).await;
    holds(Demand { instances: 6, rate: 50.0, capacity: 1.0, load: 1.2, burst: 100, seconds: 12 }, 1.2).await;
    holds(Demand { instances: 10, rate: 100.0, capacity: 5.0, load: 1.3, burst: 10, seconds: 10 }, 0.7).await;
}

#[tokio::test(start_paused = true)]
async fn many_instances_go_by_age() {
    holds(Demand { instances: 32, rate: 20.0, capacity: 4.0, load: 1.3, burst: 10, seconds: 20 }, 2.0).await;
    holds(Demand { instances: 32, rate: 100.0, capacity: 5.0, load: 1.3, burst: 10, seconds: 10 }, 1.2).await;
}

#[tokio::test(start_paused = true)]
async fn high_rates_go_by_age_in_few_claims() {
    holds(Demand { instances: 20, rate: 1_000.0, capacity: 20.0, load: 1.2, burst: 10, seconds: 8 }, 0.35).await;
}

#[tokio::test(start_paused = true)]
async fn an_interactive_request_is_not_refused_for_those_of_others_that_it_precedes() {
    let start = Instant::now();
    let store = Arc::new(SharedStore { started: start, state: Mutex::default() });
    let limit = refills(1e6, 1.0);
    let lanes = lanes(&store, limit, 2);
    let turn = |class, max_wait| Turn { arrived: Instant::now(), class, max_wait: Duration::from_secs(max_wait) };
    for _ in 0..100 {
        let lane = lanes[1].clone();
        let turn = turn(Class::Batch, 3600);
        tokio::spawn(async move { lane.slot(turn).await.map(drop) });
    }
    sleep(Duration::from_millis(50)).await;
    let first = turn(Class::Interactive, 10);
    drop(lanes[0].slot(first).await.unwrap());
    drop(lanes[0].slot(turn(Class::Interactive, 10)).await.expect("it goes before all of the batch"));
    drop(lanes[0].slot(Turn { max_wait: Duration::from_secs(10), ..first }).await.expect("so does one sent again"));
}

const SEEDS: u64 = 4;

/// One way between an instance and the store.
const TRIP: Duration = Duration::from_millis(1);

/// Seconds by which slots that were granted at different instants may lie closer: a trip, and tokio's millisecond.
const JITTER: f64 = 0.003;
