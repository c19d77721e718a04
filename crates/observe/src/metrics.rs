//! The statistics as metrics: OpenMetrics 1.0, or Prometheus' text format 0.0.4.
//!
//! Owns the text. Names, units, meanings and labels are those of `tailwater_stats::schema`; times
//! are in seconds. Values of labels are text of programs and are escaped; a series that a program
//! publishes twice is there once.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Value;
use tailwater_stats::schema::{Field, Kind, PARTS, Part, Unit, text};

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
    /// What `promtool check metrics` and node_exporter's textfile collector read.
    Prometheus,
}

impl Format {
    /// Returns the type of the text, for HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns the metrics of a document; those of an IOKernel that did not answer if there is none.
pub fn render(document: Option<&Value>, format: Format) -> String {
    let mut out = Exposition { text: String::new(), format };
    out.plain("tailwater_up", "1 if the IOKernel answered.", &[String::new()], u8::from(document.is_some()));
    if let Some(document) = document {
        out.facts(document);
        PARTS.iter().for_each(|part| out.part(part, document));
    }
    if format == Format::OpenMetrics {
        out.text.push_str("# EOF\n");
    }
    out.text
}

struct Exposition {
    text: String,
    format: Format,
}

impl Exposition {
    /// Writes what the IOKernel and its programs are, as metrics whose value is 1.
    fn facts(&mut self, document: &Value) {
        let facts = &document["iokernel"];
        let about = ["version", "policy", "socket"].map(|key| (key, text(&facts[key])));
        self.plain("tailwater_iokernel_info", "The IOKernel.", &[labels(&about)], 1);
        let managed = facts["managed_cores"].as_array().map_or(0, Vec::len);
        self.plain("tailwater_managed_cores", "Cores that the IOKernel lends.", &[String::new()], managed);
        let keys = [("program", "name"), ("id", "id"), ("class", "class"), ("pid", "pid"), ("address", "ip")];
        let programs = document["runtimes"].as_array().into_iter().flatten();
        let series: Vec<String> =
            programs.map(|program| labels(&keys.map(|(name, key)| (name, text(&program[key]))))).collect();
        self.plain("tailwater_program_info", "A registered program.", &series, 1);
    }

    /// Writes a gauge without a unit.
    fn plain(&mut self, name: &str, help: &str, series: &[String], value: impl std::fmt::Display) {
        if !series.is_empty() {
            self.head(name, "gauge", "", help);
        }
        for labels in series {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn head(&mut self, family: &str, kind: &str, unit: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE {family} {kind}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {family} {help}");
    }

    fn part(&mut self, part: &Part, document: &Value) {
        let mut samples: HashMap<&str, Vec<(String, &Value)>> = HashMap::new();
        let mut seen = HashSet::new();
        part.visit(document, &mut |field, found, value| {
            let labels = labels(found);
            if seen.insert((field.key, labels.clone())) {
                samples.entry(field.key).or_default().push((labels, value));
            }
        });
        for field in part.shape.metrics() {
            if let Some(series) = samples.get(field.key) {
                self.family(part, field, series, &document["bucket_bounds_ns"]);
            }
        }
    }

    fn family(&mut self, part: &Part, field: &Field, series: &[(String, &Value)], bounds: &Value) {
        let name = field.metric(part);
        let unit = match field.unit {
            Unit::Nanoseconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::Ratio => "ratio",
            Unit::Count => "",
        };
        let (kind, family) = match (field.kind, self.format) {
            // OpenMetrics has the ending at the samples only.
            (Kind::Counter, Format::OpenMetrics) => ("counter", name.trim_end_matches("_total")),
            (Kind::Counter, Format::Prometheus) => ("counter", name.as_str()),
            (Kind::Gauge, _) => ("gauge", name.as_str()),
            (Kind::Histogram, _) => ("histogram", name.as_str()),
            (Kind::Percentiles, _) => ("summary", name.as_str()),
        };
        self.head(family, kind, unit, field.help);
        for (labels, value) in series {
            match field.kind {
                Kind::Counter | Kind::Gauge => {
                    let _ = writeln!(self.text, "{name}{labels} {}", number(value, field.unit));
                }
                Kind::Histogram => self.histogram(&name, labels, value, bounds),
                Kind::Percentiles => {
                    for (key, quantile) in [("p50", "0.5"), ("p99", "0.99")] {
                        let labels = with(labels, "quantile", quantile);
                        let _ = writeln!(self.text, "{name}{labels} {}", number(&value[key], field.unit));
                    }
                }
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, value: &Value, bounds: &Value) {
        let bounds = bounds.as_array().into_iter().flatten();
        for (bound, count) in bounds.zip(value["buckets"].as_array().into_iter().flatten()) {
            let labels = with(labels, "le", &number(bound, Unit::Nanoseconds));
            let _ = writeln!(self.text, "{name}_bucket{labels} {count}");
        }
        let count = &value["count"];
        let _ = writeln!(self.text, "{name}_bucket{} {count}", with(labels, "le", "+Inf"));
        let _ = writeln!(self.text, "{name}_sum{labels} {}", number(&value["sum"], Unit::Nanoseconds));
        let _ = writeln!(self.text, "{name}_count{labels} {count}");
    }
}

/// Returns labels in brackets, with their values escaped; nothing without labels.
fn labels(labels: &[(&str, Cow<'_, str>)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let label = |(name, value): &(&str, Cow<'_, str>)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(label).collect::<Vec<_>>().join(","))
}

/// Returns labels in brackets with one more.
fn with(labels: &str, name: &str, value: &str) -> String {
    match labels.strip_suffix('}') {
        Some(labels) => format!("{labels},{name}=\"{value}\"}}"),
        None => format!("{{{name}=\"{value}\"}}"),
    }
}

/// Returns a number in the base unit: nanoseconds as seconds, without loss.
fn number(value: &Value, unit: Unit) -> String {
    match (value, unit) {
        (Value::Bool(value), _) => u8::from(*value).to_string(),
        (value, Unit::Nanoseconds) => match value.as_u64() {
            Some(ns) => {
                let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            None => (value.as_f64().unwrap_or_default() / 1e9).to_string(),
        },
        (value, _) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    use tailwater_stats::BOUNDS_NS;

    pub fn document() -> Value {
        json!({
            "bucket_bounds_ns": BOUNDS_NS,
            "iokernel": { "version": "0.1.0", "policy": "adaptive", "socket": "@x", "managed_cores": [1, 2] },
            "loop": { "slept_ns": 1_500_000_001u64, "stalls": 2 },
            "apply_ns": { "count": 3, "sum": 2_000_000_000u64, "buckets": BOUNDS_NS.map(|_| 2) },
            "account": [{ "core": 1, "ns": { "free": 5 }, "samples": {} }],
            "ports": [{ "name": "tap", "failed": true }],
            "runtimes": [{ "name": "a\"\\\n", "id": 1, "class": "latency-critical", "counters": { "rx_bytes": 7 },
                "classes": [{ "name": "GET", "dispatcher": 0, "latency_ns": { "p50": 1000, "p99": 2000 } },
                            { "name": "GET", "dispatcher": 0, "latency_ns": { "p50": 1, "p99": 2 } }] }],
        })
    }

    #[test]
    fn numbers_have_base_units_and_names_of_programs_are_escaped() {
        let text = render(Some(&document()), Format::Prometheus);
        for line in [
            "tailwater_up 1",
            "tailwater_managed_cores 2",
            "# TYPE tailwater_loop_slept_seconds_total counter",
            "tailwater_loop_slept_seconds_total 1.500000001",
            "tailwater_apply_seconds_bucket{le=\"0.0000002\"} 2",
            "tailwater_apply_seconds_bucket{le=\"+Inf\"} 3",
            "tailwater_apply_seconds_sum 2",
            "tailwater_core_time_seconds_total{core=\"1\",phase=\"free\"} 0.000000005",
            "tailwater_port_failed{port=\"tap\"} 1",
            r#"tailwater_program_rx_bytes_total{program="a\"\\\n",id="1",class="latency-critical"} 7"#,
        ] {
            assert!(text.lines().any(|found| found == line), "`{line}` is missing:\n{text}");
        }
        assert_eq!(text.matches("request=\"GET\"").count(), 2, "two quantiles of one class:\n{text}");
    }

    #[test]
    fn the_formats_differ_in_counters_units_and_the_end() {
        let open = render(Some(&document()), Format::OpenMetrics);
        assert!(open.ends_with("\n# EOF\n"));
        assert!(open.contains(
            "# TYPE tailwater_loop_slept_seconds counter\n# UNIT tailwater_loop_slept_seconds seconds\n"
        ));
        assert!(open.contains("\ntailwater_loop_slept_seconds_total 1.5"));
        let absent = render(None, Format::Prometheus);
        assert_eq!(absent.lines().last(), Some("tailwater_up 0"));
    }

    #[test]
    fn promtool_finds_nothing_to_say() {
        if !tailwater_testkit::is_installed("promtool", "prometheus") {
            return;
        }
        let mut promtool = Command::new("promtool");
        promtool
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = promtool.spawn().unwrap();
        let text = render(Some(&document()), Format::Prometheus);
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success() && said == ["", ""], "{said:?}");
    }
}
