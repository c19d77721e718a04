use std::collections::{BTreeSet, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tailwater_ports::Port;
use tailwater_ports::fault::{FaultPort, FaultSpec};
use tailwater_ports::frame::MacAddr;
use tailwater_ports::pcap::{PcapPort, PcapSpec};
use tailwater_ports::xdp::{XdpPort, XdpSpec};

use serde_json::{Value, json};
use tailwater_sched::{CoreId, RuntimeId};
use tailwater_shm::classes::ClassRecord;
use tailwater_shm::control::{CaptureRequest, Class, TraceRequest};
use tailwater_shm::layout::{Region, RegionSpec};

use super::{Kind, PARTS, Shape};
use crate::firewall::FirewallConfig;
use crate::stats::{CaptureStats, Counter, RuntimeCounters, RuntimeStats, Stats, TraceStats};

/// What the document has besides numbers that count or measure: who and what things are.
const FACTS: [&str; 14] = [
    "bucket_bounds_ns",
    "iokernel",
    "refusals",
    "registrations",
    "captures[].id",
    "trace.id",
    "trace.every",
    "account[].core",
    "ports[].account.seed",
    "runtimes[].id",
    "runtimes[].pid",
    "runtimes[].user",
    "runtimes[].grant",
    "runtimes[].threads",
];
/// The same behind arrays.
const FACTS_OF_PARTS: [&str; 3] =
    ["runtimes[].classes[].dispatcher", "batch_jobs[].pid", "batch_jobs[].cores"];

/// Returns the places of numbers in a document that the list lacks.
fn unlisted(document: &Value) -> BTreeSet<String> {
    let mut listed = HashSet::new();
    for part in PARTS {
        part.visit(document, &mut |_, _, value| {
            listed.insert(std::ptr::from_ref(value));
        });
    }
    let mut found = BTreeSet::new();
    walk(document, String::new(), &listed, &mut found);
    found
}

fn walk(value: &Value, at: String, listed: &HashSet<*const Value>, found: &mut BTreeSet<String>) {
    if listed.contains(&std::ptr::from_ref(value))
        || FACTS.iter().chain(&FACTS_OF_PARTS).any(|fact| *fact == at)
    {
        return;
    }
    match value {
        Value::Number(_) => {
            found.insert(at);
        }
        Value::Array(values) => values.iter().for_each(|value| walk(value, format!("{at}[]"), listed, found)),
        Value::Object(values) => {
            for (key, value) in values {
                let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                walk(value, at, listed, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Returns a document that has everything but the queues of an AF_XDP port that runs.
fn everything() -> Value {
    let config: FirewallConfig =
        toml::from_str("[[rule]]\naction = \"deny\"\ndirection = \"ingress\"").expect("a rule");
    let pcap = || Box::new(PcapPort::new(PcapSpec::default()));
    let xdp: XdpSpec = "eth0".parse().expect("an interface");
    let ports: [Box<dyn Port>; 3] =
        [pcap(), Box::new(FaultPort::new(pcap(), FaultSpec::default())), Box::new(XdpPort::new(xdp))];
    let accounts = ports.iter().enumerate().map(|(i, port)| (format!("p{i}"), port.account()));
    let stats = Stats::new(accounts.collect(), &config, [CoreId(1)]);
    let spec = RegionSpec::new(1, 1 << 15).unwrap();
    let (region, ..) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
    region.classes().write(0, &ClassRecord { name: "GET".to_owned(), slo_ns: 1, ..ClassRecord::default() });
    stats.add_runtime(Arc::new(RuntimeStats {
        id: RuntimeId(3),
        name: "web".to_owned(),
        pid: 1,
        ip: Ipv4Addr::LOCALHOST,
        ip6: None,
        mac: MacAddr::default(),
        class: Class::LatencyCritical,
        kthreads: 1,
        threads: vec![1],
        guaranteed: 1,
        counters: RuntimeCounters::default(),
        classes: Some(region.class_reader()),
        queues: Some(region.queues()),
        user: 1,
        grant: Counter::default(),
    }));
    let (runtime, ring_bytes) = (None, 1 << 20);
    let capture =
        CaptureRequest { runtime: runtime.clone(), port: None, direction: None, snap: 64, ring_bytes };
    stats.add_capture(Arc::new(CaptureStats::new(1, capture)));
    stats.set_trace(Some(Arc::new(TraceStats::new(1, TraceRequest { every: 1, runtime }))));
    stats.note_refusal("web", 7, "the name is taken");
    stats.apply.record(700);
    let mut document = stats.to_json();
    document["batch_jobs"] = json!([{ "name": "xz", "pid": 4, "cores": [1], "group": null, "usage": {
        "processes": 1, "threads": 2, "core_ns": 3, "by_core_ns": { "1": 3 }, "share": { "1": 0.5 } } }]);
    document
}

#[test]
fn every_number_of_the_document_is_listed() {
    assert_eq!(unlisted(&everything()), BTreeSet::new());
    let mut document = everything();
    document["switch"]["new_counter"] = json!(1);
    assert!(unlisted(&document).contains("switch.new_counter"));
}

#[test]
fn everything_that_is_listed_is_in_the_document() {
    let document = everything();
    for part in PARTS.iter().filter(|part| part.name != "port_xdp_queue") {
        let mut found = BTreeSet::new();
        part.visit(&document, &mut |field, labels, value| {
            let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, part.labels(), "{}", part.place());
            let fits = match field.kind {
                Kind::Histogram => value["count"].is_u64() && value["buckets"].is_array(),
                Kind::Percentiles => value["p50"].is_u64() && value["p99"].is_u64(),
                Kind::Counter | Kind::Gauge => value.is_number() || value.is_boolean(),
            };
            assert!(fits, "{}.{}: {value}", part.place(), field.key);
            let key = match part.shape {
                Shape::Values { .. } => labels.last().expect("the label of the shape").1.to_string(),
                _ => field.key.to_owned(),
            };
            found.insert(key);
        });
        let listed: BTreeSet<String> = part.shape.fields().iter().map(|field| field.key.to_owned()).collect();
        assert_eq!(found, listed, "{}", part.place());
    }
}

#[test]
fn every_metric_has_one_name_one_help_and_labels_that_prometheus_takes() {
    let mut names = HashSet::new();
    for part in PARTS {
        for field in part.shape.metrics() {
            let name = field.metric(part);
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_plain) && !name.contains("__"), "{name}");
            assert!(field.help.ends_with('.') && !field.help.contains("anosecond"), "{name}: {}", field.help);
            let labels: HashSet<&str> = part.labels().into_iter().collect();
            assert_eq!(labels.len(), part.labels().len(), "{name} has a label twice");
            // Prometheus sets the first two itself, and renames those of a target.
            let is_taken = |label: &&str| {
                ["job", "instance", "le", "quantile"].contains(label) || label.starts_with("__")
            };
            assert!(!labels.iter().any(is_taken), "{name} has a label that Prometheus uses: {labels:?}");
            assert!(names.insert(name.clone()), "two metrics are called {name}");
        }
        for field in part.shape.fields() {
            assert!(field.help.ends_with('.'), "{}.{}: {}", part.place(), field.key, field.help);
        }
    }
}
