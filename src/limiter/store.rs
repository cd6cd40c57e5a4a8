//! The store that this instance uses. What it does is the same for both: see [`Store`].

use std::{sync::Arc, time::Duration};

use super::{
    claim::{Claim, Grant, Group, StoreError},
    fleet::FleetStore,
    memory::MemoryStore,
};

/// The store that this instance uses. Every call is made at most once and ends in bounded time.
#[derive(Debug, Clone)]
pub enum Store {
    /// One instance, buckets in this process.
    Memory(Arc<MemoryStore>),
    /// A fleet, buckets in Redis.
    Fleet(Arc<FleetStore>),
    /// A fleet in one process, for tests in which time stands still.
    #[cfg(test)]
    Together(Arc<super::tests::together::SharedStore>),
}

impl Store {
    /// Claims slots.
    ///
    /// # Errors
    /// When the outcome is unknown or the store is closed; the claim must not be replayed.
    pub async fn claim(&self, claim: Claim) -> Result<Grant, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.claim(&claim)),
            Self::Fleet(store) => store.claim(claim).await,
            #[cfg(test)]
            Self::Together(store) => Ok(store.claim(&claim).await),
        }
    }

    /// Pauses the narrowest bucket of `group` for at least `wait` from now.
    pub async fn pause(&self, group: &Group, wait: Duration) {
        match self {
            Self::Memory(store) => store.pause(group.narrowest(), wait),
            Self::Fleet(store) => store.pause(group.narrowest(), wait).await,
            #[cfg(test)]
            Self::Together(_) => unreachable!("these tests pause nothing"),
        }
    }
}
