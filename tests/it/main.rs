//! The behaviour of ota-pacer as its users see it: real processes, real sockets, one module a behaviour.

mod certificates;
mod clients;
mod config;
mod fleet_outage;
mod fleet_pause;
mod fleet_rate;
mod layers;
mod mock_ota;
mod queue_leave;
mod startup_errors;
mod support;
mod upstream;
