use super::*;
use std::collections::{BTreeSet, HashSet};
use tailwater_ports::Port;
use tailwater_ports::fault::{FaultPort, FaultSpec};
use tailwater_ports::pcap::{PcapPort, PcapSpec};
use tailwater_ports::xdp::{XdpPort, XdpSpec};
use tailwater_shm::classes::{CLASSES, NAME_LEN};
use tailwater_shm::control::ServerMessage;
use tailwater_shm::layout::{Region, RegionSpec};
use tailwater_stats::schema::{Kind, PARTS, Shape};

#[test]
fn the_document_names_every_part() {
    let stats = Stats::new(vec![("load".to_owned(), None)], &FirewallConfig::default(), [CoreId(3)]);
    stats.set_facts(json!({ "cores": [1] }));
    stats.switch.dropped_spoofed.add(3);
    stats.handoff(HandoffKind::Idle).running.record(700);
    let document = stats.to_json();
    assert_eq!(document["switch"]["dropped_spoofed"], 3);
    assert_eq!(document["handoff"]["idle"]["running_ns"]["count"], 1);
    assert_eq!(document["handoff"]["polling"]["running_ns"]["count"], 0);
    assert_eq!(document["reclaim"]["since_alive_ns"]["count"], 0);
    assert_eq!(document["ports"][0]["name"], "load");
    assert_eq!(document["iokernel"]["cores"][0], 1);
    assert_eq!(document["account"][0]["core"], 3);
    assert_eq!(document["account"][0]["ns"]["free"], 0);
}

#[test]
fn runtimes_come_and_go() {
    let stats = Stats::new(Vec::new(), &FirewallConfig::default(), []);
    let spec = RegionSpec::new(1, 1 << 15).unwrap();
    let (region, ..) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
    let latency = Percentiles { p50_ns: 1_000, p99_ns: 5_000 };
    let name = "GET".to_owned();
    // More finished than accepted.
    let class = ClassRecord { name, slo_ns: 2_000, finished: u64::MAX, latency, ..ClassRecord::default() };
    stats.add_runtime(runtime(7, Some(region.class_reader())));
    assert_eq!(stats.to_json()["runtimes"][0]["name"], "spin");
    assert_eq!(stats.to_json()["runtimes"][0]["classes"], json!([]));
    region.classes().write(3, &class);
    let shown = &stats.to_json()["runtimes"][0]["classes"];
    assert_eq!((&shown[0]["name"], &shown[0]["finished"]), (&json!("GET"), &json!(u64::MAX)));
    assert_eq!((&shown[0]["slo_ratio"], &shown[0]["latency_ns"]["p99"]), (&json!(2.5), &json!(5_000)));
    region.classes().write(3, &ClassRecord { slo_ns: 0, ..class });
    assert_eq!(stats.to_json()["runtimes"][0]["classes"][0]["slo_ratio"], Value::Null);
    stats.remove_runtime(RuntimeId(7));
    assert!(stats.runtimes().is_empty());
}

#[test]
fn what_programs_publish_leaves_the_document_a_message() {
    let stats = Stats::new(Vec::new(), &FirewallConfig::default(), []);
    let spec = RegionSpec::new(1, 1 << 15).unwrap();
    let (region, ..) = Region::create("tailwater-test", spec, 1_000_000_000).unwrap();
    for entry in 0..CLASSES {
        let (most, times) = (u64::MAX, Percentiles { p50_ns: u64::MAX, p99_ns: u64::MAX });
        let class = ClassRecord {
            // A quote is escaped in the document.
            name: "\"".repeat(NAME_LEN),
            dispatcher: most,
            slo_ns: most,
            accepted: most,
            dropped: most,
            finished: most,
            panicked: most,
            preemptions: most,
            held: most,
            late: most,
            queue_delay: times,
            service: times,
            latency: times,
        };
        region.classes().write(entry, &class);
    }
    for id in 0..16 {
        stats.note_refusal(&"\"".repeat(1_000), id, &"\u{10ffff}".repeat(1_000));
    }
    for id in 0..40 {
        stats.add_runtime(runtime(id, Some(region.class_reader())));
    }
    let document = stats.to_json();
    assert_is_message(&document);
    assert_eq!(document["left_out"], json!([]));
    let shown = |at: usize| document["runtimes"][at]["classes"].as_array().unwrap().len();
    assert!((0..40).all(|at| shown(at) == shown(0) && shown(0) > 0), "each its share: {}", shown(0));
    assert_eq!(document["runtimes"][39]["classes_left_out"], json!(CLASSES - shown(0)));
    // As many programs as there are at most by default, and then with long numbers.
    for id in 40..256 {
        stats.add_runtime(runtime(id, Some(region.class_reader())));
    }
    let document = stats.to_json();
    assert_is_message(&document);
    assert_eq!(document["runtimes"].as_array().unwrap().len(), 256, "{}", document["left_out"]);
    for runtime in stats.runtimes() {
        let counters = &runtime.counters;
        let busy = [&counters.rx_frames, &counters.rx_bytes, &counters.tx_frames, &counters.tx_bytes];
        let also = [&counters.grants, &counters.preempted, &counters.core_ns, &counters.late_ns];
        busy.iter().chain(&also).for_each(|counter| counter.add(99_999_999_999));
    }
    let document = stats.to_json();
    assert_is_message(&document);
    assert_eq!(document["runtimes"].as_array().unwrap().len(), 256, "{}", document["left_out"]);
    for id in 256..1_024 {
        stats.add_runtime(runtime(id, Some(region.class_reader())));
    }
    let document = stats.to_json();
    assert_is_message(&document);
    let programs = document["runtimes"].as_array().unwrap().len();
    assert_eq!(document["runtimes_left_out"], json!(1_024 - programs));
}

fn assert_is_message(document: &Value) {
    let bytes = tailwater_shm::control::encode(&ServerMessage::Stats(document.clone()));
    assert!(bytes.len() <= MAX_MESSAGE, "{} bytes", bytes.len());
}

fn runtime(id: u32, classes: Option<ClassReader>) -> Arc<RuntimeStats> {
    Arc::new(RuntimeStats {
        id: RuntimeId(id),
        name: "spin".to_owned(),
        pid: 1,
        ip: Ipv4Addr::LOCALHOST,
        ip6: None,
        mac: MacAddr::default(),
        class: ProgramClass::LatencyCritical,
        kthreads: 4,
        threads: vec![4_000_000; 4],
        guaranteed: 1,
        counters: RuntimeCounters::default(),
        classes,
        queues: None,
        user: 0,
        grant: Counter::default(),
    })
}

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
        class: ProgramClass::LatencyCritical,
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
