//! Units that operators write: rates.

use std::{fmt, time::Duration};

/// A refill rate of cost units, positive and finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    micros_per_unit: f64,
}

impl Rate {
    /// `count` units every `per`, `None` unless both are positive and finite.
    pub fn new(count: f64, per: Duration) -> Option<Self> {
        let micros_per_unit = per.as_secs_f64() * 1e6 / count;
        (micros_per_unit.is_finite() && micros_per_unit > 0.0).then_some(Self { micros_per_unit })
    }

    /// The time one unit takes to refill, in microseconds.
    pub fn interval_micros(self) -> f64 {
        self.micros_per_unit
    }

    /// Units per second.
    pub fn per_second(self) -> f64 {
        1e6 / self.micros_per_unit
    }

    /// The same rate times `factor`, which must be positive and finite.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { micros_per_unit: self.micros_per_unit / factor }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.per_second())
    }
}
