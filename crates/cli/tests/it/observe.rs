//! The commands that show an IOKernel with a program.

use serde_json::Value;
use tailwater_testkit::{Program, eventually, has_two_cpus, socket_name, text, until};

use crate::common::{fails_with, iokernel, run, stats, tailwater};

#[test]
fn a_program_is_listed_described_and_counted() {
    if !has_two_cpus() {
        return;
    }
    let socket = socket_name("observed");
    let _iokernel = iokernel(&socket, &[]);
    let at = ["--iokernel", &socket];
    let service = ["run", "--kthreads", "1", "--name", "web", "--iokernel", &socket, "--"];
    let program = env!("CARGO_BIN_EXE_tailwater");
    let _service =
        Program::start(tailwater(&service).args([program, "app", "spin", "--listen", "0.0.0.0:5000"]));
    until("the service is registered", || {
        stats(&socket).is_some_and(|all| all["runtimes"][0]["name"] == "web")
    });
    let ps = text(&run(&[&["ps"], &at[..]].concat()).stdout);
    assert!(ps.contains("web") && ps.contains("service"), "{ps}");
    let info = eventually("the service has started, and waits", || {
        let info = text(&run(&[&["info", "web"], &at[..]].concat()).stdout);
        info.contains("none needed").then_some(info)
    });
    assert!(info.starts_with("web: service, process "), "{info}");
    let refused =
        tailwater(&service).args([program, "app", "spin", "--listen", "0.0.0.0:5000"]).output().unwrap();
    assert!(!refused.status.success());
    let output = run(&[&["info", "web", "--json"], &at[..]].concat());
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(info["last_refusal"]["why"].as_str().unwrap().contains("web"), "{info}");
    assert!(info["programs"][0]["waiting_rings"].is_u64(), "{info}");
    fails_with(&[&["info", "no-such"], &at[..]].concat(), &["no-such", "tailwater ps"]);
    if !std::path::Path::new(program).with_file_name("tailwater-observe").is_file() {
        eprintln!("skipped: no tailwater-observe beside {program} (cargo build -p tailwater-observe)");
        return;
    }
    let metrics = text(&run(&[&["metrics", "--once"], &at[..]].concat()).stdout);
    assert!(metrics.contains("tailwater_program_kthreads{program=\"web\""), "{metrics}");
    until("a service that waits is idle", || {
        let top = text(&run(&[&["top", "--once"], &at[..]].concat()).stdout);
        top.contains("web") && top.contains("service, idle")
    });
}
