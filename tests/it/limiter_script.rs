//! The scripts in Redis do exactly what the arithmetic in Rust does: random claims, pauses, losses and clock steps, answer
//! by answer. Time is injected into the scripts here, and only here.

use std::collections::BTreeMap;

use fred::prelude::{Builder, Client, ClientLike, Config, KeysInterface, LuaInterface};
use ota_pacer::limiter::bucket::{self, Ask, BucketState, LimitSpec, LineState, MOST_POINTS, Queue};
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
        let actual = scripts.apply(&step, model.now).await;
        assert_eq!(actual, expected, "step {number} at {}: {step:?}", model.now);
    }
    assert!(model.granted > steps / 10, "the steps were no test: {} slots", model.granted);
}

#[derive(Debug, Clone)]
enum Step {
    Claim {
        after: f64,
        instance: usize,
        group: usize,
        cost: f64,
        ages: Vec<f64>,
        extra: usize,
        slow: bool,
        witness: f64,
    },
    Pause {
        after: f64,
        bucket: usize,
        wait: f64,
        slow: bool,
    },
    Lose {
        bucket: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![
        8 => 0.0..50_000.0,
        4 => 0.0..2e6,
        1 => Just(0.0),
        1 => -3.6e9..3.6e9,
    ]
    .prop_map(f64::floor);
    let ages = proptest::collection::vec((0.0..3e6).prop_map(f64::floor), 1..=MOST_POINTS);
    let witness = prop_oneof![3 => Just(0.0), 1 => 0.0..2e6];
    prop_oneof![
        40 => (after.clone(), 0..3_usize, 0..3_usize, prop_oneof![Just(1.0), Just(2.0)], ages, 0..200_usize, any::<bool>(), witness)
            .prop_map(|(after, instance, group, cost, mut ages, extra, slow, witness)| {
                ages.sort_by(|a, b| b.total_cmp(a));
                let extra = if ages.len() == MOST_POINTS { extra } else { 0 };
                Step::Claim { after, instance, group, cost, ages, extra, slow, witness }
            }),
        2 => (after, 0..2_usize, (0.0..3e6).prop_map(f64::floor), any::<bool>())
            .prop_map(|(after, bucket, wait, slow)| Step::Pause { after, bucket, wait, slow }),
        1 => (0..2_usize).prop_map(|bucket| Step::Lose { bucket }),
    ]
}

/// The limits of a bucket; `slow` is what a reload made of them.
fn limits(bucket: usize, slow: bool) -> Vec<LimitSpec> {
    let factor = if slow { 2.5 } else { 1.0 };
    let limit = |interval: f64, capacity: f64, starts_full: bool| LimitSpec {
        interval: interval * factor,
        capacity,
        starts_full,
    };
    match bucket {
        0 => vec![limit(50_000.0, 40.0, true)],
        _ => vec![limit(333_333.5, 3.0, true), limit(1_000.25, 200.0, false)],
    }
}

/// The buckets of a group.
fn buckets(group: usize) -> Vec<usize> {
    [vec![0], vec![1], vec![0, 1]][group].clone()
}

const KEYS: [&str; 2] = ["bkt:{test}", "bkt:{test}:endpoint"];
const HORIZON: f64 = 200_000.0;
const LEAD: f64 = 100_000.0;
const RTT: f64 = 1_000.0;

#[derive(Default)]
struct Model {
    now: f64,
    buckets: [BucketState; 2],
    lines: BTreeMap<usize, LineState>,
    granted: usize,
}

impl Model {
    fn apply(&mut self, step: &Step) -> Vec<i64> {
        match step {
            Step::Claim { after, instance, group, cost, ages, extra, slow, witness } => {
                self.now += after;
                let taken = buckets(*group);
                let limits: Vec<_> = taken.iter().map(|bucket| limits(*bucket, *slow)).collect();
                let witness = vec![*witness; limits.iter().map(Vec::len).sum()];
                let ask = Ask {
                    instance: &instance.to_string(),
                    cost: *cost,
                    queue: Queue::new(ages.len() + extra, ages.iter().map(|age| self.now - age).collect()),
                    horizon: HORIZON,
                    lead: LEAD,
                    rtt: RTT,
                    witness: &witness,
                };
                let mut states: Vec<_> = taken.iter().map(|bucket| self.buckets[*bucket].clone()).collect();
                let mut pairs: Vec<_> = states.iter_mut().zip(limits.iter().map(Vec::as_slice)).collect();
                let answer = bucket::claim(&mut pairs, self.lines.entry(*group).or_default(), &ask, self.now);
                for (bucket, state) in taken.into_iter().zip(states) {
                    self.buckets[bucket] = state;
                }
                self.granted += answer.slots.len();
                let ceil = |micros: &f64| micros.ceil() as i64;
                let mut reply = vec![ceil(&answer.next), ceil(&answer.pause), answer.others as i64];
                reply.extend(answer.debts.iter().map(ceil));
                reply.extend(answer.slots.iter().map(ceil));
                reply
            }
            Step::Pause { after, bucket, wait, slow } => {
                self.now += after;
                let left = bucket::pause(&mut self.buckets[*bucket], &limits(*bucket, *slow), *wait, self.now);
                vec![left.ceil() as i64]
            }
            Step::Lose { bucket } => {
                self.buckets[*bucket] = BucketState::default();
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

    async fn apply(&self, step: &Step, now: f64) -> Vec<i64> {
        let _: () = self.client.set("now", format!("{now:.0}"), None, None, false).await.unwrap();
        match step {
            Step::Claim { instance, group, cost, ages, extra, slow, witness, .. } => {
                let taken = buckets(*group);
                let mut keys: Vec<String> = taken.iter().map(|bucket| KEYS[*bucket].to_owned()).collect();
                keys.push(format!("bkt:{{test}}:{group}:line"));
                let mut args = vec![HORIZON.to_string(), LEAD.to_string(), RTT.to_string(), instance.to_string()];
                args.extend([cost.to_string(), (ages.len() + extra).to_string(), ages.len().to_string()]);
                args.extend(ages.iter().map(f64::to_string));
                for bucket in taken {
                    let limits = limits(bucket, *slow);
                    args.push(limits.len().to_string());
                    for limit in limits {
                        args.extend([limit.interval.to_string(), limit.capacity.to_string()]);
                        args.extend([u8::from(limit.starts_full).to_string(), witness.to_string()]);
                    }
                }
                self.client.evalsha(self.claim.as_str(), keys, args).await.unwrap()
            }
            Step::Pause { bucket, wait, slow, .. } => {
                let mut args = vec![wait.to_string(), "bkt:pauses".to_owned()];
                args.extend(
                    limits(*bucket, *slow)
                        .iter()
                        .flat_map(|limit| [limit.interval, limit.capacity].map(|n| n.to_string())),
                );
                let left: i64 = self.client.evalsha(self.pause.as_str(), KEYS[*bucket], args).await.unwrap();
                vec![left]
            }
            Step::Lose { bucket } => {
                let _: i64 = self.client.del(KEYS[*bucket]).await.unwrap();
                Vec::new()
            }
        }
    }
}

/// The script with the time of the test in place of Redis's, and keys that do not expire on the machine's.
fn on_test_time(script: &str) -> String {
    let injected = script.replace("redis.call('TIME')", "{ 0, redis.call('GET', 'now') }");
    let lasting = injected.replace("local KEEP = 600000 ", "local KEEP = 1e12 ");
    assert!(injected != script && lasting != injected, "time is injected");
    lasting
}
