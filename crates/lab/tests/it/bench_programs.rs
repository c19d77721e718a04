//! `bench programs` measures a batch job that was not written for Tailwater on both systems.

use crate::common::bench;
use tailwater_testkit::has_two_cpus;

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_compiler_is_measured_beside_a_service_and_without_traffic() {
    if !has_two_cpus() {
        return;
    }
    let measured = ["programs", "--only", "batch,idle", "--jobs", "cc,xz-1"];
    let words = [&measured[..], &["--loads", "30", "--rounds", "1", "--seconds", "1"]].concat();
    let Some((report, shown)) = bench(&words) else { return };
    let jobs = report["beside"].as_array().unwrap();
    if jobs.is_empty() {
        return eprintln!("skipped: neither cc nor xz is installed: {shown}");
    }
    for job in jobs {
        // Tails of a busy machine may have no values.
        for system in ["tailwater", "linux"] {
            assert!(job[system]["job_rate"].as_f64().is_some_and(|rate| rate > 0.0), "{job}");
            assert!(job[system].get("win_p999_us").is_some(), "{job}");
        }
        assert!(job["job_over_linux"].is_number() && job["load"] == 30.0, "{job}");
    }
    let idle = report["idle"].as_array().unwrap();
    assert_eq!(idle.len(), jobs.len());
    assert!(idle.iter().all(|job| job["iokernel_cpu_percent"].is_number()), "{report}");
    assert!(shown.contains("without traffic"), "{shown}");
}
