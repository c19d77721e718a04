//! Figures by name with one value for each round, and their table.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use tailwater_testbed::table::{Table, number};

/// For each name a value for each round. Serialized as the medians by name, with `spread`, the
/// lowest and highest value, beside them.
#[derive(Debug, Default)]
pub struct Figures {
    values: BTreeMap<&'static str, Vec<f64>>,
}

impl Figures {
    /// Adds a round's value.
    pub fn add(&mut self, name: &'static str, value: f64) {
        self.values.entry(name).or_default().push(value);
    }

    /// Returns the median; `None` without values.
    pub fn median(&self, name: &str) -> Option<f64> {
        let mut sorted = self.values.get(name)?.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        Some(match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        })
    }

    /// Lowest and highest value; `None` without values.
    fn spread(&self, name: &str) -> Option<[f64; 2]> {
        let values = self.values.get(name)?;
        let least = values.iter().copied().min_by(f64::total_cmp)?;
        Some([least, values.iter().copied().max_by(f64::total_cmp)?])
    }

    /// Median and spread as text, scaled by `unit`.
    fn cell(&self, name: &str, unit: f64) -> String {
        match (self.median(name), self.spread(name)) {
            (Some(median), Some([least, most])) if least != most => {
                format!("{} ({} to {})", number(median / unit), number(least / unit), number(most / unit))
            }
            (Some(median), _) => number(median / unit),
            _ => String::new(),
        }
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in self.values.keys() {
            map.serialize_entry(name, &self.median(name))?;
        }
        let spread: BTreeMap<_, _> = self.values.keys().map(|name| (name, self.spread(name))).collect();
        map.serialize_entry("spread", &spread)?;
        map.end()
    }
}

/// Label, unit, and the names of Tailwater's and the kernel's figure.
const ROWS: [(&str, f64, &str, &str); 32] = [
    ("rr 64 B, p50 us (kernel: both spin)", 1.0, "rr_p50_us", "kernel_rr_p50_us"),
    ("   p99", 1.0, "rr_p99_us", "kernel_rr_p99_us"),
    ("rr 64 B, p50 us (kernel: both block)", 1.0, "rr_p50_us", "kernel_rr_blocking_p50_us"),
    ("   p99", 1.0, "rr_p99_us", "kernel_rr_blocking_p99_us"),
    ("echo, 64 connections, 1000/s", 1e3, "echo_rps", "kernel_echo_rps"),
    ("   p50 us", 1.0, "echo_p50_us", "kernel_echo_p50_us"),
    ("   p99 us", 1.0, "echo_p99_us", "kernel_echo_p99_us"),
    ("bulk between two runtimes, Gbit/s", 1.0, "bulk_gbps", "kernel_bulk_gbps"),
    ("   segments sent again", 1.0, "bulk_retransmissions", ""),
    ("   retransmission time-outs", 1.0, "bulk_timeouts", ""),
    ("   tail loss probes", 1.0, "bulk_tail_probes", ""),
    ("   frames dropped at full rings", 1.0, "bulk_ring_drops", ""),
    ("   over 16 connections", 1.0, "bulk_shared_gbps", ""),
    ("      the slowest of them", 1.0, "bulk_shared_slowest_gbps", ""),
    ("      segments sent again", 1.0, "bulk_shared_retransmissions", ""),
    ("      retransmission time-outs", 1.0, "bulk_shared_timeouts", ""),
    ("   port to runtime", 1.0, "bulk_upload_gbps", "kernel_bulk_gbps"),
    ("   runtime to port", 1.0, "bulk_download_gbps", "kernel_bulk_gbps"),
    ("   within one runtime", 1.0, "bulk_loopback_gbps", "kernel_bulk_gbps"),
    ("connections made and closed, 1000/s", 1e3, "churn_cps", "kernel_churn_cps"),
    ("cycles of a request: client's TCP out", 1.0, "cycles_client_tcp_out", ""),
    ("   switch, in (copy into the ring)", 1.0, "cycles_switch_in", ""),
    ("   ring, driver, TCP in, wake", 1.0, "cycles_ring_tcp_in_wake", ""),
    ("   application", 1.0, "cycles_application", ""),
    ("   TCP out, driver", 1.0, "cycles_tcp_out", ""),
    ("   ring, switch, out", 1.0, "cycles_ring_switch_out", ""),
    ("   client's TCP in", 1.0, "cycles_client_tcp_in", ""),
    ("bytes per idle connection", 1.0, "idle_conn_bytes", ""),
    ("   connections established", 1.0, "idle_connections", ""),
    ("   seconds to establish them", 1.0, "idle_open_s", ""),
    ("   of them answered afterwards", 1.0, "idle_answered", ""),
    ("   seconds for that", 1.0, "idle_answer_s", ""),
];

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new("median (least to most) | Tailwater | kernel");
        for (label, unit, own, kernel) in ROWS {
            let (own, kernel) = (self.cell(own, unit), self.cell(kernel, unit));
            if !own.is_empty() || !kernel.is_empty() {
                table.row([label.to_owned(), own, kernel]);
            }
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_their_spread() {
        let mut figures = Figures::default();
        for value in [3.0, 1.0, 2.0] {
            figures.add("rr_p50_us", value);
        }
        figures.add("echo_rps", 10.0);
        figures.add("echo_rps", 20.0);
        let json = serde_json::to_value(&figures).expect("it serialises");
        assert_eq!(json["rr_p50_us"], 2.0);
        assert_eq!(json["echo_rps"], 15.0);
        assert_eq!(json["spread"]["rr_p50_us"], serde_json::json!([1.0, 3.0]));
        assert!(figures.to_string().contains("2.00 (1.00 to 3.00)"));
        assert_eq!(figures.median("nothing"), None);
    }
}
