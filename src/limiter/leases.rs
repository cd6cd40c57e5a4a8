//! Requests under way, lane by lane: what `kinds.c` of `lua/claim.lua` does, in Rust.

use std::collections::BTreeMap;

/// How many requests of each lane are under way, for as long as the lane goes on saying so. Instants and durations are
/// microseconds on the clock of the store.
#[derive(Debug, Clone, Default)]
pub(super) struct Leases {
    lanes: BTreeMap<String, Lease>,
    /// Until when nothing new may begin.
    hold: f64,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    held: f64,
    expires: f64,
}

impl Leases {
    /// How many requests of `lane` may begin where `most` may be under way. It has `held` of them, and knows itself
    /// registered or not.
    pub(super) fn free(&mut self, most: f64, lane: &str, held: usize, is_registered: bool, now: f64) -> f64 {
        self.lanes.retain(|name, lease| {
            // No honest lease is longer: the clock went back.
            lease.expires = lease.expires.min(now + LEASE);
            name == lane || lease.expires > now
        });
        // A lease that is gone: all may be, forgotten, or out of date by a leap of the clock. Nothing new until every lane
        // has said what it holds.
        if is_registered && self.lanes.get(lane).is_none_or(|own| own.expires <= now) {
            self.hold = now + LEASE / 3.0;
        }
        let is_held_back = self.hold > now && self.hold <= now + LEASE;
        if is_held_back { 0.0 } else { most - self.under_way(lane, held) }
    }

    /// Requests under way, those of `lane` as it says.
    pub(super) fn under_way(&self, lane: &str, held: usize) -> f64 {
        let others = self.lanes.iter().filter(|(name, _)| *name != lane).map(|(_, lease)| lease.held);
        others.sum::<f64>() + held as f64
    }

    /// Takes what `lane` says that it has under way.
    pub(super) fn register(&mut self, lane: &str, held: usize, now: f64) {
        if held > 0 {
            self.lanes.insert(lane.to_owned(), Lease { held: held as f64, expires: now + LEASE });
        } else {
            self.lanes.remove(lane);
        }
    }

    /// When each lease ends, unless it is renewed.
    pub(super) fn ends(&self) -> impl Iterator<Item = f64> {
        self.lanes.values().map(|lease| lease.expires)
    }
}

/// A lane that says nothing for this many microseconds has no requests under way.
pub const LEASE: f64 = 15e6;
