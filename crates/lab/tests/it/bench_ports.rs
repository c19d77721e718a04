//! `bench ports` measures every variant, in namespaces that end with it.

use std::fs::OpenOptions;
use std::process::{Command, ExitStatus, Stdio};

use crate::common::{bench_until, lab};
use serde_json::Value;
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{Program, children, eventually, has_two_cpus, is_running, until};

/// Returns whether namespaces with veth pairs can be made here; prints why not.
fn has_pairs() -> bool {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => {
            eprintln!("skipped: {why}");
            return false;
        }
    };
    let made = namespace.inside(|| Command::new("ip").args(["link", "add", "type", "veth"]).status());
    let has = made.as_ref().is_ok_and(ExitStatus::success);
    if !has {
        eprintln!("skipped: `ip link add type veth` fails: {made:?}");
    }
    has
}

/// Figures of every variant.
const FIGURES: [&str; 5] = ["rps_1", "rps_64", "p50_us", "p99_us", "win_p99_us"];

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_short_run_has_all_figures_of_every_variant() {
    if !has_two_cpus() || !has_pairs() {
        return;
    }
    // Variants that need devices are absent where these cannot be made.
    let mut variants = vec!["loopback", "veth"];
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => variants.push("tap"),
        Err(why) => eprintln!("without tap: /dev/net/tun: {why}"),
    }
    match tailwater_iokernel::port::xdp::probe() {
        Ok(_) => variants.push("xdp_veth"),
        Err(why) => eprintln!("without xdp_veth: {why}"),
    }
    let list = variants.join(",");
    // Within 50 ms a busy machine may answer nothing.
    let lacks = |report: &Value| {
        let pairs = variants.iter().flat_map(|variant| FIGURES.map(|key| (variant, key)));
        let is_missing =
            |&(variant, key): &(&&str, &str)| report[variant][key].as_f64().unwrap_or(0.0) <= 0.0;
        pairs.into_iter().find(is_missing).map(|(variant, key)| format!("{key} of {variant}"))
    };
    let words = ["ports", "--rounds", "1", "--ms", "50", "--variants", &list];
    let Some((report, shown)) = bench_until(&words, lacks) else { return };
    for variant in ["tap", "xdp_veth", "loopback", "veth"] {
        let figures = &report[variant];
        assert_eq!(figures.is_object(), variants.contains(&variant), "{variant} in {report:#}");
        let number = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
        assert!(figures.is_null() || number("p50_us") <= number("p99_us"), "{report:#}");
        assert!(
            figures.is_null() || figures["p99_range_us"][0] == figures["p99_range_us"][1],
            "one round: {report:#}"
        );
    }
    assert_eq!(report["host"].as_array().map(Vec::len), Some(2), "{report:#}");
    assert!(shown.contains("stalls of over 50 us a second"), "{shown}");
    assert!(report["commit"].is_string() && shown.contains("8,000/s"), "{shown}");
}

#[test]
#[ignore = "a measurement: .ci/full"]
fn namespaces_and_clients_end_with_a_bench_that_is_killed() {
    if !has_two_cpus() || !has_pairs() {
        return;
    }
    let mut command = lab(&["bench", "ports", "--ms", "600000", "--variants", "veth"]);
    let mut bench = Program::spawn(command.stdout(Stdio::null()));
    // Two that hold namespaces, the service and the client.
    let started = eventually("the client is running", || {
        assert!(bench.is_running(), "it ended");
        Some(children(bench.pid())).filter(|started| started.len() >= 4)
    });
    bench.kill();
    until("its processes end", || started.iter().all(|&pid| !is_running(pid)));
}
