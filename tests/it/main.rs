//! The behaviour of ota-pacer as its users see it: real processes, real sockets.

mod support;
