//! A counter, and structs of counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its one writing thread increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Called by one thread only.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        // Relaxed: a statistic.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value (for gauges). Called by one thread only.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines a struct of counters and its JSON document.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$doc])* pub $field: $crate::stats::counter::Counter,)* }

        impl $name {
            pub(crate) fn to_json(&self) -> serde_json::Value {
                let mut map = serde_json::Map::new();
                $(map.insert(stringify!($field).to_owned(), self.$field.get().into());)*
                serde_json::Value::Object(map)
            }
        }
    };
}

pub(crate) use counters;
