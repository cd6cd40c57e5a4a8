//! Lanes whose time stands still, so that instants are exact, whatever the speed of the machine.

mod lines;
mod pauses;
mod places;
pub(super) mod together;
