//! Pages made of results that are written here.

use serde_json::{Value, json};

use super::*;
use crate::measure::envelope::{CoreNoise, SCHEMA};
use crate::measure::list::Kind;

/// Returns a result of three rounds on a quiet machine, without spread.
pub fn result(experiment: &str, commit: &str, report: Value) -> Envelope {
    Envelope {
        schema: SCHEMA,
        experiment: experiment.to_owned(),
        kind: Kind::Benchmark,
        title: "a title".to_owned(),
        commit: commit.to_owned(),
        date: "2026-11-29T04:30:00Z".to_owned(),
        machine_name: "epyc-2".to_owned(),
        machine: json!({
            "cpu_model": "AMD EPYC", "cores": 2, "virtual_machine": true, "kernel": "6.18",
            "memory_mib": 24_576, "tsc_hz": 2_600_000_000_u64,
        }),
        noise_before: vec![CoreNoise { core: 0, stalls_per_s: 12.0, lost_percent: 0.3, longest_us: 90.0 }],
        noise_after: Vec::new(),
        rounds: 3,
        quick: false,
        wall_seconds: 12.0,
        command: format!("tailwater-lab bench {experiment}"),
        repeat: String::new(),
        error: None,
        report,
        lowest: Value::Null,
        highest: Value::Null,
    }
}

/// Returns a result whose numbers spread by a tenth to either side.
fn spread(experiment: &str, report: Value) -> Envelope {
    fn times(value: &Value, factor: f64) -> Value {
        match value {
            Value::Number(number) => json!(number.as_f64().unwrap() * factor),
            Value::Array(items) => items.iter().map(|item| times(item, factor)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, item)| (key.clone(), times(item, factor))).collect()
            }
            other => other.clone(),
        }
    }
    let (lowest, highest) = (times(&report, 0.9), times(&report, 1.1));
    Envelope { lowest, highest, ..result(experiment, "abc123", report) }
}

fn tcp() -> Envelope {
    spread(
        "tcp",
        json!({
            "rr_p99_us": 3.46, "rr_p50_us": 1.57, "kernel_rr_p99_us": 14.4, "kernel_rr_p50_us": 9.24,
            "kernel_rr_blocking_p99_us": 120, "kernel_rr_blocking_p50_us": 88.5,
            "echo_rps": 1_200_000, "kernel_echo_rps": 140_000, "idle_conn_bytes": 498,
        }),
    )
}

fn point(system: &str, load: f64, tail: f64) -> Value {
    json!({
        "system": system, "service": "exp:10us", "load": load, "win_p999_us": tail, "p50_us": tail / 10.0,
        "batch_share": 0.36, "saturated": tail > 1000.0,
    })
}

fn demo_result() -> Envelope {
    let ideal = |load: f64| {
        json!({
            "load": load, "win_p999_us": 132.0, "p50_us": 14.0, "batch_share": 0.5,
            "stalled": {"win_p999_us": 150.0, "p50_us": 14.3, "batch_share": 0.49},
        })
    };
    spread(
        "demo",
        json!({
            "points": [
                point("tailwater", 50.0, 183.0), point("linux", 50.0, 221.0),
                point("tailwater", 80.0, 555.0), point("linux", 80.0, 2000.0),
            ],
            "ideal": [ideal(50.0), ideal(80.0)],
        }),
    )
}

fn threads_result() -> Envelope {
    let row = |op: &str, system: &str, ns: f64| json!({"op": op, "system": system, "ns": ns});
    spread(
        "threads",
        json!({"rows": [
            row("yield", "tailwater", 34.5), row("yield", "std", 1648.0), row("yield", "go", 82.6),
            row("yield", "tokio", 88.2), row("spawn_join", "tailwater", 123.0),
            row("spawn_join", "std", 37_451.0), row("spawn_join", "go", 469.0),
            row("spawn_join", "tokio", 253.0),
        ]}),
    )
}

fn handoff() -> Envelope {
    spread(
        "handoff",
        json!({
            "busy_p99_us": 3.98, "busy_p50_us": 2.13, "signal_p99_us": 68.3, "signal_p50_us": 29.6,
            "idle_p99_us": 0.72, "idle_p50_us": 0.32,
        }),
    )
}

fn figure() -> Envelope {
    Envelope {
        kind: Kind::Measured,
        ..result(
            "ix-fig4",
            "abc123",
            json!({
                "claims": [
                    {"paper": "half the latency", "ours": "0.2 times", "verdict": "reached"},
                    {"paper": "10 Gbit/s", "ours": "no such card", "verdict": "not-comparable"},
                    {"paper": "twice the rate", "ours": "1.5 times", "verdict": "not-reached"},
                ],
                "summary": {"header": ["bytes", "us"], "rows": [["64", "1.2 (1.1 to 1.3)"]]},
            }),
        )
    }
}

fn all() -> Results {
    Results::of([tcp(), demo_result(), threads_result(), handoff(), figure()])
}

#[test]
fn the_region_of_a_benchmark_is_its_tables() {
    insta::assert_snapshot!("tcp", content("tcp", &all(), &[]).unwrap());
    insta::assert_snapshot!("demo", content("demo", &all(), &[]).unwrap());
    insta::assert_snapshot!("handoff", content("handoff", &all(), &[]).unwrap());
    insta::assert_snapshot!("threads", content("threads", &all(), &[]).unwrap());
}

#[test]
fn readme_has_one_figure_a_row_each_with_a_peer_and_their_ratio() {
    let text = content("readme", &all(), &[]).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert_eq!(rows.len(), 7);
    assert!(
        rows.iter().all(|row| row.split('|').skip(2).take(3).all(|cell| !cell.trim().is_empty())),
        "{text}"
    );
    insta::assert_snapshot!("readme", text);
}

#[test]
fn a_figure_is_published_with_each_claim_and_its_verdict() {
    let text = content("figures-ix", &all(), &[]).unwrap();
    let section = text.split("### ").find(|section| section.starts_with("`ix-fig4`")).unwrap();
    insta::assert_snapshot!("figure", section);
    assert!(text.contains("measure --only ix-fig13"), "{text}");
    let index = content("figures-index", &all(), &[]).unwrap();
    let row = index.lines().find(|line| line.contains("`ix-fig4`")).unwrap();
    assert!(row.ends_with("| 1 | 1 | 1 |"), "{row}");
    assert!(index.lines().any(|line| line.contains("`shenango-fig7`") && line.ends_with("| not measured |")));
}

#[test]
fn the_machine_of_a_page_is_described_once() {
    let names = ["tcp", "demo", "tcp"].map(str::to_owned);
    insta::assert_snapshot!("machine", content("machine", &all(), &names).unwrap());
}

#[test]
fn the_demo_is_drawn_of_the_medians() {
    let svg = demo::drawing(&all()).unwrap();
    assert!(svg.contains("</svg>") && svg.contains("exp:10us") && svg.contains("Linux"), "{svg}");
    assert!(demo::drawing(&Results::default()).is_none());
}

#[test]
fn a_page_of_several_commits_is_refused() {
    let page =
        "<!-- figures: tcp -->\n<!-- end figures -->\n<!-- figures: handoff -->\n<!-- end figures -->\n";
    assert!(page_of(page, &all()).unwrap().contains("| p99, one connection |"));
    let mixed = Results::of([tcp(), Envelope { commit: "def456".to_owned(), ..handoff() }]);
    let error = page_of(page, &mixed).unwrap_err();
    assert!(error.contains("measure these again") && error.contains(".json ("), "{error}");
    // Another page does not have the results that differ.
    assert!(page_of("<!-- figures: tcp -->\n<!-- end figures -->\n", &mixed).is_ok());
}

#[test]
fn an_unknown_region_is_refused_with_those_there_are() {
    let error = page_of("<!-- figures: tpc -->\n<!-- end figures -->\n", &all()).unwrap_err();
    assert!(error.contains("no region tpc") && error.contains("handoff"), "{error}");
}

#[test]
fn every_benchmark_has_a_region() {
    let list = crate::measure::list::all();
    for experiment in list.iter().filter(|experiment| experiment.kind == Kind::Benchmark) {
        assert!(
            BENCHMARKS.iter().any(|(_, name, _)| *name == experiment.name),
            "{} is measured and not published",
            experiment.name
        );
    }
}
