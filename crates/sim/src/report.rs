//! Numbers in tables, and writing result files.
//!
//! Owns formatting only: numbers are formatted always the same way, so that equal results are equal
//! bytes.

use std::path::Path;

use anyhow::Context;
use tailwater_plot::table::number;

use crate::stats::Estimate;

/// Formats nanoseconds as microseconds with three significant digits or more.
#[must_use]
pub fn us(ns: f64) -> String {
    number(ns / 1_000.0)
}

/// Returns a value with its relative error in percent: `12.3 ±0.4%`.
#[must_use]
pub fn us_with_error(e: &Estimate) -> String {
    if e.error.is_finite() && e.value > 0.0 {
        format!("{} ±{:.1}%", us(e.value), 100.0 * e.relative_error())
    } else {
        us(e.value)
    }
}

/// Returns a fraction as a percentage.
#[must_use]
pub fn percent(fraction: f64) -> String {
    format!("{:.1}%", 100.0 * fraction)
}

/// Writes a result file, creating its folder.
///
/// # Errors
///
/// If it cannot be written; the message names it.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot create folder {}", parent.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([us(1_234.0), us(12_345.0), us(1_234_567.0)], ["1.23", "12.3", "1235"]);
        assert_eq!(us_with_error(&Estimate { value: 1_000.0, error: 10.0 }), "1.00 ±1.0%");
    }
}
