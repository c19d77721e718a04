//! Sessions over lists of cheap experiments.

use serde_json::json;

use super::*;

fn experiment(name: &'static str, runs: u16) -> Experiment {
    let plan = Plan { arguments: vec!["bench", name], runs, rounds: 1, seconds: 6.0 };
    Experiment {
        name,
        kind: Kind::Benchmark,
        title: "a title",
        systems: "",
        needs: "",
        standard: plan.clone(),
        quick: plan,
    }
}

fn quiet() -> anyhow::Result<Vec<CoreNoise>> {
    Ok(vec![CoreNoise { core: 0, stalls_per_s: 1.0, lost_percent: 0.1, longest_us: 70.0 }])
}

/// Measures into a folder; returns the failed names and how often something ran.
fn measure(
    folder: &Path,
    commit: &str,
    again: bool,
    list: &[Experiment],
) -> (anyhow::Result<Vec<&'static str>>, u32) {
    let session =
        Session { commit, machine_name: "test-1", machine: json!({"cores": 1}), folder, quick: false, again };
    let mut ran = 0;
    let mut run = |experiment: &Experiment, _: &Plan| {
        ran += 1;
        match experiment.name {
            "broken" => anyhow::bail!("no memory"),
            "stopped" => Err(Interrupted.into()),
            _ => Ok(json!({"p99_us": f64::from(ran)})),
        }
    };
    let failed = session.measure(list, &mut Hands { run: &mut run, probe: &mut quiet });
    (failed, ran)
}

fn read(folder: &Path, name: &str) -> Envelope {
    Envelope::read(&Envelope::path(folder, name)).unwrap()
}

#[test]
fn a_result_has_the_median_and_the_spread_of_its_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let (failed, ran) = measure(folder.path(), "abc", false, &[experiment("tcp", 3)]);
    assert_eq!((failed.unwrap(), ran), (Vec::new(), 3));
    let result = read(folder.path(), "tcp");
    assert_eq!(result.report, json!({"p99_us": 2.0}));
    assert!(!result.is_disturbed());
    assert_eq!((result.lowest, result.highest), (json!({"p99_us": 1.0}), json!({"p99_us": 3.0})));
    assert_eq!((result.rounds, result.error), (3, None));
    assert_eq!(result.repeat, "tailwater-lab measure --only tcp --again");
}

#[test]
fn a_failed_experiment_is_recorded_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let list = [experiment("broken", 3), experiment("tcp", 1)];
    let (failed, ran) = measure(folder.path(), "abc", false, &list);
    assert_eq!((failed.unwrap(), ran), (vec!["broken"], 2));
    let broken = read(folder.path(), "broken");
    assert_eq!((broken.error.as_deref(), broken.report), (Some("no memory"), Value::Null));
    assert_eq!(read(folder.path(), "tcp").report, json!({"p99_us": 2.0}));
}

#[test]
fn what_has_a_result_of_this_commit_is_not_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let list = [experiment("tcp", 1), experiment("broken", 1)];
    let ran = |commit: &str, again: bool| measure(folder.path(), commit, again, &list).1;
    assert_eq!(ran("abc", false), 2);
    assert_eq!(ran("abc", false), 1, "the failed one alone");
    assert_eq!(ran("abc", true), 2);
    assert_eq!(ran("def", false), 2);
}

#[test]
fn an_interrupted_session_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let list = [experiment("tcp", 1), experiment("stopped", 1), experiment("demo", 1)];
    let (failed, ran) = measure(folder.path(), "abc", false, &list);
    assert!(failed.unwrap_err().is::<Interrupted>());
    assert_eq!(ran, 2);
    assert_eq!(read(folder.path(), "tcp").experiment, "tcp");
    assert!(!Envelope::path(folder.path(), "stopped").exists());
}

#[test]
fn stalls_of_the_host_mark_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session {
        commit: "abc",
        machine_name: "test-1",
        machine: Value::Null,
        folder: folder.path(),
        quick: true,
        again: false,
    };
    let mut run = |_: &Experiment, _: &Plan| Ok(json!({}));
    let mut probe =
        || Ok(vec![CoreNoise { core: 0, stalls_per_s: 300.0, lost_percent: 6.0, longest_us: 900.0 }]);
    session.measure(&[experiment("tcp", 1)], &mut Hands { run: &mut run, probe: &mut probe }).unwrap();
    let result = read(folder.path(), "tcp");
    assert!(result.is_disturbed() && result.quick, "{result:?}");
    assert_eq!(result.repeat, "tailwater-lab measure --quick --only tcp --again");
}
