//! Whatever way Redis is deployed, a fleet shares its limits through it, hears of its pauses, and outlives its failures.

use std::{path::Path, time::Duration};

use tokio::time::Instant;

use crate::support::{
    clock::wait_for,
    deployment::{Cluster, Secured, Watched},
    limiter::{CAPACITY, Instance, RATE, Traffic, slot},
    mock_ota::MockOta,
    proxy::Settings,
    redis::{Redis, free_port},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_as_three_sentinels_agree() {
    assert_fails_over(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_as_a_single_sentinel_decides() {
    assert_fails_over(1).await;
}

async fn assert_fails_over(sentinels: usize) {
    let mut watched = Watched::start(sentinels);
    let fleet = [Instance::on(&watched.url()).await, Instance::on(&watched.url()).await];
    assert!(fleet.iter().all(Instance::is_on_redis));
    let traffic = Traffic::start(fleet.iter().map(|instance| instance.lane("user")));
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 30).then_some(()));
    assert_eq!(watched.master.listeners(), 2, "both hear of pauses");

    watched.master.kill();
    wait_for("the outage is noticed", PATIENCE, || fleet.iter().all(|one| !one.is_on_redis()).then_some(()));
    wait_for("the replica is made master", PATIENCE, || {
        watched.replica.command("ROLE").contains("master").then_some(())
    });
    wait_for("both pace through the new master", PATIENCE, || fleet.iter().all(Instance::is_on_redis).then_some(()));
    let back = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > back + 50).then_some(()));
    assert!(watched.replica.calls("evalsha") + watched.replica.calls("eval") > 0);
    wait_for("both hear of pauses", PATIENCE, || (watched.replica.listeners() == 2).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_shares_limits_and_pauses_and_outlives_a_node() {
    let mut cluster = Cluster::start();
    let fleet = [Instance::on(&cluster.url()).await, Instance::on(&cluster.url()).await];
    assert!(fleet.iter().all(Instance::is_on_redis));
    let traffic = Traffic::start(fleet.iter().map(|instance| instance.lane("user")));
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 30).then_some(()));
    // Every bucket works, wherever it lies.
    for user in 0..20 {
        slot(&fleet[0].lane(&user.to_string())).await.unwrap();
    }
    assert!(cluster.nodes.iter().all(|node| node.calls("evalsha") + node.calls("eval") > 0), "spread over the nodes");
    let listeners = || cluster.nodes.iter().map(Redis::listeners).sum::<u64>();
    assert_eq!(listeners(), 2, "both hear of pauses");
    fleet[0].lane("user").pause(Duration::from_secs(1)).await;
    let paused = Instant::now();
    let heard = paused + Duration::from_millis(200);
    tokio::time::sleep_until(paused + Duration::from_millis(900)).await;
    assert_eq!(traffic.between(heard, paused + Duration::from_millis(900)), 0, "sent during a pause");

    cluster.nodes[2].kill();
    wait_for("the outage is noticed", PATIENCE, || fleet.iter().all(|one| !one.is_on_redis()).then_some(()));
    let lost = traffic.count();
    wait_for("requests go on at the share", PATIENCE, || (traffic.count() > lost + 10).then_some(()));
    cluster.nodes[2].restart();
    cluster.wait_until_whole();
    wait_for("both are back", PATIENCE, || fleet.iter().all(Instance::is_on_redis).then_some(()));
    let back = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > back + 50).then_some(()));
    let listeners = || cluster.nodes.iter().map(Redis::listeners).sum::<u64>();
    wait_for("both hear of pauses", PATIENCE, || (listeners() == 2).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_moves_to_another_node_is_followed() {
    let cluster = Cluster::start();
    let instance = Instance::on(&cluster.url()).await;
    let traffic = Traffic::start([instance.lane("user")]);
    wait_for("the bucket is spent", PATIENCE, || (traffic.count() > 30).then_some(()));
    let from = cluster.holder();
    let to = (from + 1) % cluster.nodes.len();
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let keys = || {
        source
            .command("KEYS bkt:{booking_com:*")
            .lines()
            .filter(|line| line.starts_with("bkt:"))
            .fold(String::new(), |keys, key| keys + " " + key)
    };
    let first = keys().split_whitespace().next().expect("a key of the bucket").to_owned();
    let slot = source.command(&format!("CLUSTER KEYSLOT {first}"));
    let slot = slot.lines().next().and_then(|line| line.strip_prefix(':')).expect("a slot").to_owned();

    target.command(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(from)));
    source.command(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(to)));
    // While only the keys have moved, the former node answers ASK.
    for key in keys().split_whitespace() {
        source.command(&format!("MIGRATE 127.0.0.1 {} {key} 0 1000", target.port()));
    }
    let asked = target.calls("asking") + redirections(source);
    wait_for("the former node redirects", PATIENCE, || {
        (target.calls("asking") + redirections(source) > asked).then_some(())
    });
    for node in [target, source] {
        node.command(&format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(to)));
    }
    let calls = || target.calls("evalsha") + target.calls("eval");
    let before = calls();
    wait_for("the new node is asked", PATIENCE, || (calls() > before + 5).then_some(()));
    wait_for("it decides", PATIENCE, || instance.is_on_redis().then_some(()));
    let sent = traffic.count();
    wait_for("requests go on", PATIENCE, || (traffic.count() > sent + 50).then_some(()));
    traffic.assert_within(RATE, f64::from(CAPACITY) + TRANSITION);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_a_private_ca_and_a_user_of_few_rights_are_enough() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let secured = Secured::start();
    secured.redis.command(&format!("ACL SETUSER pacer on >secret {RIGHTS}"));
    let section = |ca: &Path, user: &str| {
        let url = secured.url(user);
        format!("url: '{url}', ca_file: '{}', on_outage: closed", ca.display())
    };
    let instance = Instance::open(&section(&secured.ca_file(), "pacer:secret@")).await;
    assert!(instance.is_on_redis());
    let lane = instance.lane("user");
    for _ in 0..20 {
        slot(&lane).await.unwrap();
    }
    lane.pause(Duration::from_millis(100)).await;
    wait_for("it hears of pauses", PATIENCE, || (secured.redis.listeners() == 1).then_some(()));
    slot(&lane).await.unwrap();
    // A lost connection takes the rights to come back, too.
    secured.redis.command("CLIENT KILL TYPE normal SKIPME yes");
    secured.redis.command("CLIENT KILL TYPE pubsub");
    wait_for("it hears of pauses again", PATIENCE, || (secured.redis.listeners() == 1).then_some(()));
    assert!(slot(&lane).await.is_ok());
    let forbidden = secured.redis.command("ACL LOG");
    assert!(!forbidden.contains("\r\nlua\r\n"), "the scripts were forbidden something: {forbidden}");

    let stranger = Instance::open(&format!("url: '{}', on_outage: closed", secured.url("pacer:secret@"))).await;
    assert!(!stranger.limiter.is_usable(), "a certificate that nobody vouches for");
    let intruder = Instance::open(&section(&secured.ca_file(), "pacer:wrong@")).await;
    assert!(!intruder.limiter.is_usable(), "a wrong password");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unix_socket_serves() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let redis = Redis::start_with(free_port(), &["--unixsocket", socket.to_str().unwrap()]);
    let instance = Instance::on(&format!("redis+unix://{}", socket.display())).await;
    assert!(instance.is_on_redis());
    for _ in 0..20 {
        slot(&instance.lane("user")).await.unwrap();
    }
    assert!(redis.calls("evalsha") + redis.calls("eval") > 0);
    wait_for("it hears of pauses", PATIENCE, || (redis.listeners() == 1).then_some(()));
}

#[test]
fn a_policy_that_deletes_buckets_is_warned_of_at_start() {
    let redis = Redis::start_with(free_port(), &["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    let ota = MockOta::start(&[]);
    let settings = |redis| Settings::for_ota(&ota).redis(redis, 1).endpoint("availability", "/a", "20/s", 20);
    let proxy = settings(&redis).start();
    let warning = |line: &str| line.contains("redis may delete buckets").then(|| line.to_owned());
    let warned = wait_for("the warning", PATIENCE, || proxy.log().find(warning));
    assert!(warned.contains("volatile-lru") && warned.contains("noeviction"), "{warned}");

    let harmless = Redis::start();
    let proxy = settings(&harmless).start();
    wait_for("it has asked", PATIENCE, || harmless.is_checked().then_some(()));
    assert_eq!(proxy.log().find(warning), None);
}

fn redirections(redis: &Redis) -> u64 {
    redis.errors("ASK") + redis.errors("TRYAGAIN")
}

/// What the example configuration says a user needs.
const RIGHTS: &str = "~bkt:* &bkt:* +@all -@dangerous";
/// How many requests more may come around a loss: the burst of 1 of each instance alone, and those under way.
const TRANSITION: f64 = 4.0;
const PATIENCE: Duration = Duration::from_secs(30);
