//! What describes a number of the document: its key, what it does over time, unit and meaning.

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
