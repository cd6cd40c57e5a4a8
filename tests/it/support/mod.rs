//! What the tests run against: real processes on free ports, stopped when they go out of scope.

pub(crate) mod clock;
pub(crate) mod cutter;
pub(crate) mod deployment;
pub(crate) mod example;
pub(crate) mod http;
pub(crate) mod limiter;
pub(crate) mod metrics;
pub(crate) mod mock_ota;
pub(crate) mod parent;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod worker;
