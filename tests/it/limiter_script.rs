//! The scripts in Redis do exactly what the arithmetic in Rust does: random claims of every kind of limit, pauses, losses,
//! outages, reloads and clock steps, answer by answer. Time is injected into the scripts here, and only here.

use std::collections::BTreeMap;

use fred::prelude::{Builder, Client, ClientLike, Config, KeysInterface, LuaInterface};
use ota_pacer::limiter::bucket::{
    self, AdaptiveSpec, Ask, BucketState, LimitSpec, LineState, MOST_POINTS, Outage, Point, Queue,
};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngSeed, TestRunner},
};

use crate::support::redis::Redis;

#[tokio::test]
async fn claims_and_pauses_are_those_of_the_model() {
    let steps: usize = std::env::var("OTA_PACER_MODEL_STEPS").ok().map_or(20_000, |steps| steps.parse().unwrap());
    let redis = Redis::start();
    let scripts = Scripts::connect(&redis.url()).await;
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: RngSeed::Random, ..ProptestConfig::default() });
    let strategy = step();
    let mut model = Model { now: 1.764e15, ..Model::default() };
    for number in 0..steps {
        let step = strategy.new_tree(&mut runner).unwrap().current();
        let expected = model.apply(&step);
        let actual = scripts.apply(&step, model.now, model.outage).await;
        assert_eq!(actual, expected, "step {number} at {}: {step:?}", model.now);
    }
    assert!(model.granted > steps / 20, "the steps were no test: {} slots", model.granted);
}

#[derive(Debug, Clone)]
enum Step {
    Claim(ClaimStep),
    Pause { after: f64, bucket: usize, wait: f64, slow: bool },
    Lose { bucket: usize },
    Outage { after: f64, length: f64 },
}

#[derive(Debug, Clone)]
struct ClaimStep {
    after: f64,
    lane: usize,
    group: usize,
    cost: f64,
    ages: Vec<f64>,
    extra: usize,
    held: usize,
    is_registered: bool,
    slow: bool,
    witness: f64,
    witness_age: f64,
    knows_outage: bool,
}

impl ClaimStep {
    /// The queue is longer than its points: `extra` stand before the last.
    fn waiting(&self) -> usize {
        self.ages.len() + if self.ages.len() > 1 { self.extra } else { 0 }
    }

    fn points(&self, arrival: impl Fn(f64) -> f64) -> Vec<Point> {
        let last = self.waiting().saturating_sub(1) as f64;
        let place = |point| if point + 1 == self.ages.len() { last } else { point as f64 };
        self.ages.iter().enumerate().map(|(point, age)| Point { place: place(point), arrival: arrival(*age) }).collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![8 => 0.0..50_000.0, 4 => 0.0..2e6, 1 => Just(0.0), 1 => -3.6e9..3.6e9].prop_map(f64::floor);
    let ages = proptest::collection::vec((-1e6..3e6).prop_map(f64::floor), 0..=MOST_POINTS);
    let witness = prop_oneof![3 => Just(0.0), 1 => 0.0..30.0, 1 => 0.0..2e6].prop_map(f64::floor);
    let who = (0..3_usize, 0..GROUPS.len(), prop_oneof![Just(1.0), Just(2.0)], 0..200_usize);
    let flags = (any::<bool>(), prop_oneof![9 => Just(false), 1 => Just(true)], any::<bool>());
    let claim = (after.clone(), who, ages, 0..4_usize, flags, witness, (0.0..3e6).prop_map(f64::floor)).prop_map(
        |(
            after,
            (lane, group, cost, extra),
            mut ages,
            held,
            (is_registered, slow, knows_outage),
            witness,
            witness_age,
        )| {
            ages.sort_by(|a, b| b.total_cmp(a));
            Step::Claim(ClaimStep {
                after,
                lane,
                group,
                cost,
                ages,
                extra,
                held,
                is_registered,
                slow,
                witness,
                witness_age,
                knows_outage,
            })
        },
    );
    prop_oneof![
        60 => claim,
        3 => (after.clone(), 0..BUCKETS, (0.0..3e6).prop_map(f64::floor), any::<bool>())
            .prop_map(|(after, bucket, wait, slow)| Step::Pause { after, bucket, wait, slow }),
        1 => (0..BUCKETS).prop_map(|bucket| Step::Lose { bucket }),
        1 => (after, (0.0..20e6).prop_map(f64::floor)).prop_map(|(after, length)| Step::Outage { after, length }),
    ]
}

/// The limits of a bucket; `slow` is what a reload made of them.
fn limits(bucket: usize, slow: bool) -> Vec<LimitSpec> {
    let factor = if slow { 2.5 } else { 1.0 };
    let token = |interval: f64, capacity: f64, starts_full: bool, adaptive| LimitSpec::Bucket {
        interval: interval * factor,
        capacity,
        starts_full,
        adaptive,
    };
    let adaptive = Some(AdaptiveSpec { cut: 0.5, floor: 0.125, recover: 0.0625 });
    let window = |count, per, margin, is_clock| LimitSpec::Window { count, per, margin, is_clock };
    match bucket {
        0 => vec![token(50_000.0, if slow { 20.0 } else { 40.0 }, true, None)],
        1 => vec![token(333_333.5, 3.0, true, adaptive), token(1_000.25, 200.0, false, None)],
        2 => vec![window(7.0, 1e6, 5_000.0, false), window(40.0, 60e6, 500_000.0, true)],
        3 => vec![window(600.0, 10e6, 50_000.0, false), token(2_000.0, 100.0, true, adaptive)],
        _ => vec![LimitSpec::Concurrent { most: 5.0 }, token(20_000.0, 10.0, true, None)],
    }
}

const BUCKETS: usize = 5;
/// The buckets of each group.
const GROUPS: [&[usize]; 7] = [&[0], &[1], &[0, 1], &[2], &[3], &[4], &[0, 2, 4]];
const HORIZON: f64 = 200_000.0;
const LEAD: f64 = 100_000.0;
const RTT: f64 = 1_000.0;
const INSTANCES: f64 = 3.0;

fn key(bucket: usize) -> String {
    format!("bkt:{{test}}:{bucket}")
}

#[derive(Default)]
struct Model {
    now: f64,
    outage: Option<Outage>,
    buckets: [BucketState; BUCKETS],
    lines: BTreeMap<usize, LineState>,
    granted: usize,
}

impl Model {
    fn apply(&mut self, step: &Step) -> Vec<i64> {
        let ceil = |micros: f64| micros.ceil() as i64;
        match step {
            Step::Claim(step) => {
                self.now += step.after;
                let taken = GROUPS[step.group];
                let limits: Vec<_> = taken.iter().map(|bucket| limits(*bucket, step.slow)).collect();
                let witness = vec![step.witness; limits.iter().map(Vec::len).sum()];
                let ask = Ask {
                    lane: &step.lane.to_string(),
                    cost: step.cost,
                    queue: Queue::new(step.waiting(), step.points(|age| self.now - age)),
                    held: step.held,
                    is_registered: step.is_registered,
                    horizon: HORIZON,
                    lead: LEAD,
                    rtt: RTT,
                    witness: &witness,
                    witness_age: step.witness_age,
                    outage: self.outage.filter(|_| step.knows_outage),
                };
                let mut states: Vec<_> = taken.iter().map(|bucket| self.buckets[*bucket].clone()).collect();
                let mut pairs: Vec<_> = states.iter_mut().zip(limits.iter().map(Vec::as_slice)).collect();
                let answer = bucket::claim(&mut pairs, self.lines.entry(step.group).or_default(), &ask, self.now);
                for (bucket, state) in taken.iter().zip(states) {
                    self.buckets[*bucket] = state;
                }
                self.granted += answer.slots.len();
                let mut reply = vec![ceil(answer.next), ceil(answer.pause), answer.others as i64, answer.older as i64];
                reply.extend(answer.levels.iter().flat_map(|level| [ceil(level.level), ceil(level.more)]));
                reply.extend(answer.slots.iter().map(|slot| ceil(*slot)));
                reply
            }
            Step::Pause { after, bucket, wait, slow } => {
                self.now += after;
                let left = bucket::pause(&mut self.buckets[*bucket], &limits(*bucket, *slow), *wait, self.now);
                vec![ceil(left)]
            }
            Step::Lose { bucket } => {
                self.buckets[*bucket] = BucketState::default();
                Vec::new()
            }
            Step::Outage { after, length } => {
                self.now += after;
                self.outage = Some(Outage { at: self.now, length: *length, instances: INSTANCES });
                Vec::new()
            }
        }
    }
}

struct Scripts {
    client: Client,
    claim: String,
    pause: String,
}

impl Scripts {
    async fn connect(url: &str) -> Self {
        let client = Builder::from_config(Config::from_url(url).unwrap()).build().unwrap();
        client.init().await.unwrap();
        let claim = client.script_load(on_test_time(include_str!("../../lua/claim.lua"))).await.unwrap();
        let pause = client.script_load(on_test_time(include_str!("../../lua/pause.lua"))).await.unwrap();
        Self { client, claim, pause }
    }

    async fn apply(&self, step: &Step, now: f64, outage: Option<Outage>) -> Vec<i64> {
        let _: () = self.client.set("now", format!("{now:.0}"), None, None, false).await.unwrap();
        match step {
            Step::Claim(step) => {
                let (keys, args) = arguments(step, outage);
                self.client.evalsha(self.claim.as_str(), keys, args).await.unwrap()
            }
            Step::Pause { bucket, wait, slow, .. } => {
                let mut args = vec![wait.to_string(), "bkt:notices".to_owned()];
                for limit in limits(*bucket, *slow) {
                    match limit {
                        LimitSpec::Bucket { interval, capacity, adaptive, .. } => {
                            let (cut, floor) = adaptive.map_or((0.0, 0.0), |adaptive| (adaptive.cut, adaptive.floor));
                            args.push("b".to_owned());
                            args.extend([interval, capacity, cut, floor].map(|number| number.to_string()));
                        }
                        _ => args.push("-".to_owned()),
                    }
                }
                let left: i64 = self.client.evalsha(self.pause.as_str(), key(*bucket), args).await.unwrap();
                vec![left]
            }
            Step::Lose { bucket } => {
                let _: i64 = self.client.del(vec![key(*bucket), format!("{}:leases", key(*bucket))]).await.unwrap();
                Vec::new()
            }
            Step::Outage { .. } => Vec::new(),
        }
    }
}

/// What the limiter sends for such a claim.
fn arguments(step: &ClaimStep, outage: Option<Outage>) -> (Vec<String>, Vec<String>) {
    let mut keys = Vec::new();
    let outage = outage.filter(|_| step.knows_outage).unwrap_or(Outage { at: 0.0, length: 0.0, instances: 0.0 });
    let mut args = vec![HORIZON.to_string(), LEAD.to_string(), RTT.to_string(), step.lane.to_string()];
    args.extend(["bkt:notices".to_owned(), step.witness_age.to_string()]);
    args.extend([outage.at, outage.length, outage.instances, step.cost].map(|number| number.to_string()));
    args.extend([step.held.to_string(), u8::from(step.is_registered).to_string()]);
    args.extend([step.waiting().to_string(), step.ages.len().to_string()]);
    args.extend(
        step.points(|age| age).iter().flat_map(|point| [point.place, point.arrival]).map(|number| number.to_string()),
    );
    for bucket in GROUPS[step.group] {
        let limits = limits(*bucket, step.slow);
        keys.push(key(*bucket));
        args.push(limits.len().to_string());
        for limit in limits {
            let (kind, numbers) = match limit {
                LimitSpec::Bucket { interval, capacity, starts_full, adaptive } => {
                    let recover = adaptive.map_or(0.0, |adaptive| adaptive.recover);
                    ("b", vec![interval, capacity, f64::from(u8::from(starts_full)), step.witness, recover])
                }
                LimitSpec::Window { count, per, margin, is_clock } => {
                    ("w", vec![count, per, margin, f64::from(u8::from(is_clock)), step.witness])
                }
                LimitSpec::Concurrent { most } => {
                    keys.push(format!("{}:leases", key(*bucket)));
                    ("c", vec![most])
                }
            };
            args.push(kind.to_owned());
            args.extend(numbers.iter().map(f64::to_string));
        }
    }
    keys.push(format!("bkt:{{test}}:{}:line", step.group));
    (keys, args)
}

/// The script with the time of the test in place of Redis's, and keys that do not expire on the machine's.
fn on_test_time(script: &str) -> String {
    let injected = script.replace("redis.call('TIME')", "{ 0, redis.call('GET', 'now') }");
    let lasting = injected
        .replace("local KEEP = 600000 ", "local KEEP = 1e12 ")
        .replace("redis.call('PEXPIRE', bucket.leases, 2 * LEASE / 1000)", "redis.call('PERSIST', bucket.leases)");
    assert!(injected != script && lasting != injected, "time is injected");
    lasting
}
