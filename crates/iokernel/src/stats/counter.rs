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

/// Defines a struct of counters, its JSON document, and the list of what that has: the
/// documentation of a counter is its help. `name: Gauge` is a number that also falls.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[doc = $help:literal])* $field:ident $(: $kind:ident)?,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[doc = $help])* pub $field: $crate::stats::counter::Counter,)* }

        impl $name {
            /// What the document has of these.
            pub(crate) const FIELDS: &'static [$crate::stats::schema::Field] = &[$(
                $crate::stats::schema::Field::new(
                    stringify!($field),
                    $crate::stats::counter::counters!(@kind $($kind)?),
                    concat!($($help),*),
                ),
            )*];

            pub(crate) fn to_json(&self) -> serde_json::Value {
                let mut map = serde_json::Map::new();
                $(map.insert(stringify!($field).to_owned(), self.$field.get().into());)*
                serde_json::Value::Object(map)
            }
        }
    };
    (@kind) => { $crate::stats::schema::Kind::Counter };
    (@kind $kind:ident) => { $crate::stats::schema::Kind::$kind };
}

pub(crate) use counters;
