//! A counter, and structs of counters that describe themselves.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its one writing thread increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Called by the one writing thread only: a second writer would lose counts, nothing
    /// worse.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        // Relaxed: a statistic.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value (for gauges). Called by the one writing thread only, likewise.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl serde::Serialize for Counter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// Defines a struct of counters, which is an object of the document, and the list of what that has:
/// the documentation of a counter is its help. `name: Gauge` is a number that also falls.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[doc = $help:literal])* $field:ident $(: $kind:ident)?,)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default, serde::Serialize)]
        pub struct $name { $($(#[doc = $help])* pub $field: $crate::counter::Counter,)* }

        impl $name {
            /// What the document has of these.
            pub const FIELDS: &'static [$crate::field::Field] = &[$(
                $crate::field::Field::new(
                    stringify!($field),
                    $crate::counter::counters!(@kind $($kind)?),
                    concat!($($help),*),
                ),
            )*];
        }
    };
    (@kind) => { $crate::field::Kind::Counter };
    (@kind $kind:ident) => { $crate::field::Kind::$kind };
}

pub(crate) use counters;
