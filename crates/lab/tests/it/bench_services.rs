//! `bench services` measures every situation, and each of its services.

use crate::common::bench;
use serde_json::Value;
use tailwater_testkit::has_two_cpus;

#[test]
#[ignore = "a measurement: .ci/full"]
fn a_round_has_every_service_of_every_situation() {
    if !has_two_cpus() {
        return;
    }
    let Some((report, shown)) = bench(&["services", "--rounds", "1", "--seconds", "1"]) else { return };
    let of = |situation: &Value| situation["services"].as_array().unwrap().len();
    let counts: Vec<usize> = report["situations"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(counts, [1, 2, 4, 1, 2, 4, 1, 2, 2], "{shown}");
    // No figure is judged: on a busy machine requests stay unanswered at any load.
    for service in
        report["situations"].as_array().unwrap().iter().flat_map(|all| all["services"].as_array().unwrap())
    {
        assert!(service["load"].as_f64().is_some_and(|load| load > 0.0), "{service}");
        assert!(service["answered"].as_f64().is_some_and(|part| part >= 0.0), "{service}");
        for key in ["p50_us", "p99_us", "win_p999_us"] {
            let figure = service.get(key).unwrap_or_else(|| panic!("no {key} in {service}"));
            assert!(figure.is_null() || figure.as_f64() > Some(0.0), "{service}");
        }
    }
}
