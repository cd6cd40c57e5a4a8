//! The behaviour of ota-pacer as its users see it: real processes, real sockets, one module a behaviour.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ca_command;
mod certificates;
mod clients;
mod config;
mod doctor;
mod fleet_leases;
mod fleet_outage;
mod fleet_pause;
mod fleet_rate;
mod gateway;
mod interception;
mod layers;
mod limiter;
mod limiter_script;
mod metrics_page;
mod mock_ota;
mod proxy_concurrency;
mod proxy_fidelity;
mod proxy_framing;
mod proxy_lifetime;
mod proxy_preference;
mod proxy_retry;
mod proxy_rig;
mod proxy_targets;
mod proxy_tunnel;
mod proxy_tunnel_bytes;
mod queue_leave;
mod redis_deployments;
mod redis_faults;
mod reload;
mod run_command;
mod startup_errors;
mod support;
mod swarm;
mod upstream;
