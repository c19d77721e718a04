//! A counter, structs of counters, and what describes a number of the statistics.

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

impl serde::Serialize for Counter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// What a number does over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from 0, until the thing that it is about ends.
    Counter,
    /// It rises and falls.
    Gauge,
    /// An object: `count`, `sum`, percentiles, and `buckets`, how many values are at most each of
    /// the document's `bucket_bounds_ns`.
    Histogram,
    /// An object of two percentiles, `p50` and `p99`.
    Percentiles,
}

impl Kind {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Percentiles => "percentiles",
        }
    }
}

/// The unit of a number in the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// A part of a whole, or of a target.
    Ratio,
}

/// One number of the document, or one number of each of several things.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its key in the document.
    pub key: &'static str,
    /// What it does over time.
    pub kind: Kind,
    /// Its unit, as the end of its key says.
    pub unit: Unit,
    /// What it means.
    pub help: &'static str,
}

impl Field {
    /// Returns a field; its unit follows from the end of its key.
    pub(crate) const fn new(key: &'static str, kind: Kind, help: &'static str) -> Self {
        let unit = match key.as_bytes() {
            [.., b'_', b'n', b's'] => Unit::Nanoseconds,
            [.., b'_', b'b', b'y', b't', b'e', b's'] => Unit::Bytes,
            [.., b'r', b'a', b't', b'i', b'o'] | b"share" => Unit::Ratio,
            _ => Unit::Count,
        };
        Self { key, kind, unit, help: help.trim_ascii_start() }
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
        pub struct $name { $($(#[doc = $help])* pub $field: $crate::stats::counter::Counter,)* }

        impl $name {
            /// What the document has of these.
            pub(crate) const FIELDS: &'static [$crate::stats::counter::Field] = &[$(
                $crate::stats::counter::Field::new(
                    stringify!($field),
                    $crate::stats::counter::counters!(@kind $($kind)?),
                    concat!($($help),*),
                ),
            )*];
        }
    };
    (@kind) => { $crate::stats::counter::Kind::Counter };
    (@kind $kind:ident) => { $crate::stats::counter::Kind::$kind };
}

pub(crate) use counters;
