//! Keeps count of what each credential has sent, and says which request is one too many.
//!
//! Whole numbers only, so that it is exact: a bucket's level is counted in `1 / period` of a token, which makes one
//! microsecond worth `count` of them.

use std::collections::{HashMap, VecDeque};

use crate::{
    limit::{Limit, Rule},
    ota::Now,
};

/// The limits of the OTA and what has been spent of them.
pub(crate) struct Judge {
    rules: Vec<Rule>,
    accounts: HashMap<(usize, String), Account>,
}

/// The answer to one request.
pub(crate) enum Verdict {
    /// Within every limit, and spent from each.
    Within,
    /// Over at least one limit, nothing spent; the same request fits after this many microseconds.
    Excess { wait: u64 },
}

enum Account {
    Bucket { level: u128, counted_at: u64 },
    Sliding { admitted: VecDeque<u64> },
    Clock { window: u64, used: u64 },
    Concurrent { open: u64 },
}

impl Judge {
    /// Starts with every account unused.
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Self { rules, accounts: HashMap::new() }
    }

    /// Forgets what was spent, keeps the limits.
    pub(crate) fn forget(&mut self) {
        self.accounts.clear();
    }

    /// Judges one request. What is [`Verdict::Within`] must be given to [`Judge::release`] once it is answered.
    pub(crate) fn admit(&mut self, credential: &str, path: &str, now: Now) -> Verdict {
        self.make_room();
        let concerned: Vec<_> = (0..self.rules.len()).filter(|&rule| self.rules[rule].covers(path)).collect();
        let mut wait = 0;
        for &rule in &concerned {
            let limit = self.rules[rule].limit;
            let account =
                self.accounts.entry((rule, credential.to_owned())).or_insert_with(|| Account::unused(limit, now));
            wait = wait.max(account.wait(limit, now));
        }
        if wait > 0 {
            return Verdict::Excess { wait };
        }
        for rule in concerned {
            if let Some(account) = self.accounts.get_mut(&(rule, credential.to_owned())) {
                account.spend(self.rules[rule].limit, now);
            }
        }
        Verdict::Within
    }

    /// An admitted request has been answered.
    pub(crate) fn release(&mut self, credential: &str, path: &str) {
        for rule in (0..self.rules.len()).filter(|&rule| self.rules[rule].covers(path)) {
            if let Some(Account::Concurrent { open }) = self.accounts.get_mut(&(rule, credential.to_owned())) {
                *open = open.saturating_sub(1);
            }
        }
    }

    fn make_room(&mut self) {
        if self.accounts.len() >= MAX_ACCOUNTS {
            self.accounts.clear();
        }
    }
}

impl Account {
    fn unused(limit: Limit, now: Now) -> Self {
        match limit {
            Limit::Bucket { period, capacity, .. } => {
                Self::Bucket { level: u128::from(capacity) * u128::from(period), counted_at: now.micros }
            }
            Limit::Sliding { .. } => Self::Sliding { admitted: VecDeque::new() },
            Limit::Clock { window, .. } => Self::Clock { window: now.unix_micros / window, used: 0 },
            Limit::Concurrent { .. } => Self::Concurrent { open: 0 },
        }
    }

    /// Microseconds until one more request fits; 0 means now. Brings the account up to `now`.
    fn wait(&mut self, limit: Limit, now: Now) -> u64 {
        match (self, limit) {
            (Self::Bucket { level, counted_at }, Limit::Bucket { count, period, capacity }) => {
                let (count, token) = (u128::from(count), u128::from(period));
                let gained = u128::from(now.micros - *counted_at) * count;
                *level = (*level + gained).min(u128::from(capacity) * token);
                *counted_at = now.micros;
                u64::try_from(token.saturating_sub(*level).div_ceil(count)).unwrap_or(u64::MAX)
            }
            (Self::Sliding { admitted }, Limit::Sliding { count, window }) => {
                while admitted.front().is_some_and(|&at| at + window <= now.micros) {
                    admitted.pop_front();
                }
                // Full windows hold exactly `count`, so the oldest one's end makes the next place.
                admitted.front().filter(|_| admitted.len() as u64 >= count).map_or(0, |&at| at + window - now.micros)
            }
            (Self::Clock { window: current, used }, Limit::Clock { count, window }) => {
                let (at, into) = (now.unix_micros / window, now.unix_micros % window);
                if *current != at {
                    (*current, *used) = (at, 0);
                }
                if *used < count { 0 } else { window - into }
            }
            // Nobody knows when an open request will be answered: ask to come back in a second.
            (Self::Concurrent { open }, Limit::Concurrent { count }) => u64::from(*open >= count) * 1_000_000,
            _ => unreachable!("an account is made from its limit, and limits change only with all accounts forgotten"),
        }
    }

    fn spend(&mut self, limit: Limit, now: Now) {
        match (self, limit) {
            (Self::Bucket { level, .. }, Limit::Bucket { period, .. }) => *level -= u128::from(period),
            (Self::Sliding { admitted }, _) => admitted.push_back(now.micros),
            (Self::Clock { used, .. }, _) => *used += 1,
            (Self::Concurrent { open }, _) => *open += 1,
            (Self::Bucket { .. }, _) => unreachable!("an account is made from its limit"),
        }
    }
}

/// Far more credentials than a test uses; past it everything is forgotten rather than memory spent.
const MAX_ACCOUNTS: usize = 10_000;
