//! Planning for a fleet: the example trace, and the answer for a small one.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater_sim::study::Effort;
use tailwater_sim::study::fleet::{Cores, FleetStudy, machines_table, table};
use tailwater_workload::random::{stream, unit_open_closed};

/// The seed of the example in the tree.
const SEED: u64 = 40;

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/fleet.csv")
}

/// Returns a trace of invented services: their load follows the hour with a peak of its own, their
/// largest load within an interval is 1.3 to 3 times the mean, and two of three machines have
/// best-effort work at night.
fn invented(machines: u32, services: u32) -> String {
    let mut prng = stream(SEED, 0);
    let mut between = |low: f64, high: f64| low + (high - low) * unit_open_closed(&mut prng);
    let mut text = format!(
        "# Invented, by the test `fleet` of the crate tailwater-sim from seed {SEED}.\n\
         start,end,machine,service,class,cpu,max_cpu,slo,request\n"
    );
    let kinds = [
        ("web", "p99<500us", "exp:50us"),
        ("cache", "p99.9<200us", "exp:10us"),
        ("rank", "p99<1ms", "lognormal:100us,sigma=1"),
    ];
    for machine in 0..machines {
        for service in 0..services {
            let (kind, slo, request) = kinds[service as usize % kinds.len()];
            let (mean, swing, peak) = (between(0.3, 2.0), between(0.3, 0.8), between(0.0, 24.0));
            for start in (0..24).step_by(3) {
                let phase = (f64::from(start) - peak) / 24.0 * std::f64::consts::TAU;
                let cpu = mean * (1.0 + swing * phase.cos());
                let max_cpu = cpu * between(1.3, 3.0);
                let (from, to) = (start * 3600, (start + 3) * 3600);
                let line = format!(
                    "{from},{to},m{machine},{kind}-{service},,{cpu:.2},{max_cpu:.2},{slo},\"{request}\""
                );
                writeln!(text, "{line}").unwrap();
            }
        }
        if machine % 3 != 2 {
            writeln!(text, "0,21600,m{machine},reports,best-effort,{:.1},,,", between(1.0, 4.0)).unwrap();
        }
    }
    text
}

#[test]
fn the_example_is_the_one_of_its_seed() {
    let made = invented(3, 5);
    if std::env::var_os("TAILWATER_UPDATE").is_some() {
        std::fs::write(example(), &made).unwrap();
    }
    let there = std::fs::read_to_string(example()).unwrap();
    assert!(there == made, "write it anew: TAILWATER_UPDATE=1 cargo test -p tailwater-sim --test it fleet::");
}

/// Returns a study of a trace that a test has written.
fn study(folder: &Path, trace: &str) -> FleetStudy {
    let fleet = folder.join("fleet.csv");
    std::fs::write(&fleet, trace).unwrap();
    FleetStudy {
        fleet,
        costs: "ideal".to_owned(),
        intervals: 2,
        effort: Effort { requests: 2_000, replications: 1, seed: 7, threads: 2 },
        ..FleetStudy::default()
    }
}

/// Two machines; on the first one two services have their peaks at different times.
const SMALL: &str = "\
start,end,machine,service,cpu,max_cpu,class,slo
0,3600,a,web,1.5,3,,p99<500us
3600,7200,a,web,0.4,0.8,,p99<500us
0,3600,a,cache,0.4,0.8,latency-critical,p99<200us
3600,7200,a,cache,1.5,3,latency-critical,p99<200us
0,7200,a,reports,1.5,,best-effort,
0,7200,b,web,0.5,,,p99<500us
";

#[test]
fn a_small_fleet_has_exactly_this_plan() {
    let folder = tempfile::tempdir().unwrap();
    let (study, ticks) = (study(folder.path(), SMALL), AtomicU64::new(0));
    let plan = study.run(&|| _ = ticks.fetch_add(1, Ordering::Relaxed)).unwrap();
    assert_eq!(ticks.into_inner(), study.steps());
    let shown = format!("{}{}", table(&plan), machines_table(&plan));
    assert_eq!(shown, EXPECTED, "\n{shown}");
    let first = plan.rows[0];
    assert!(
        first.lent.value < first.set_aside.value && first.resized.value < first.set_aside.value,
        "{first:?}"
    );
    assert!(plan.sampled.iter().all(|machine| machine.cores[0].worst <= 1.0), "{plan:?}");
    assert!(plan.sampled[0].cores[0].batch >= 1.5, "{plan:?}");
}

/// Returns the cores of the only machine of a trace, with the objectives as given.
fn cores_of(rows: &str) -> Cores {
    let folder = tempfile::tempdir().unwrap();
    let trace = format!("start,end,machine,service,cpu,max_cpu,class,slo\n{rows}");
    study(folder.path(), &trace).run(&|| ()).unwrap().sampled[0].cores[0]
}

#[test]
fn a_load_is_judged_by_the_objective_of_its_own_row() {
    let (loose, tight) = ("0,10,a,web,1,3,,p50<20ms\n", "10,20,a,web,1,3,,p99.9<100us\n");
    let (fewer, more) = (cores_of(loose), cores_of(tight));
    assert!(fewer.set_aside < more.set_aside, "{fewer:?} {more:?}");
    let both = cores_of(&format!("{loose}{tight}"));
    assert_eq!(both.set_aside, more.set_aside, "enough for the tighter objective");
    assert_eq!(both.resized, f64::midpoint(fewer.resized, more.resized), "for each interval its own");
    // The interval of the largest maximum is not the hardest one.
    let tight = "10,20,a,web,1,2.9,,p99.9<100us\n";
    assert_eq!(cores_of(&format!("{loose}{tight}")).set_aside, cores_of(tight).set_aside);
}

#[test]
fn time_without_services_counts_in_all_averages() {
    let web = "0,3600,a,web,1,2,,p99<200us\n";
    let busy = cores_of(web);
    let with_idle = cores_of(&format!("{web}3600,7200,a,reports,2,,best-effort,\n"));
    assert_eq!(with_idle.resized, 1.0 + busy.resized / 2.0);
    // The IOKernel has one of the lent cores.
    let idle = (with_idle.lent - 1.0) / 2.0;
    assert!(with_idle.batch > idle && with_idle.batch < 2.0 * idle, "{with_idle:?}");
}

#[test]
fn bursts_may_be_as_rare_as_a_load_may_be_small() {
    // A run is as long as the other service needs.
    let rare = |cpu: &str| cores_of(&format!("0,10,a,web,1,1,,p50<1ms\n0,10,a,rare,{cpu},4,,p50<1ms\n"));
    let (least, none) = (rare("0.000001"), rare("0.0000009"));
    assert!(least.unjudged == 1 && least.set_aside > none.set_aside, "{least:?} {none:?}");
    assert_eq!(none.unjudged, 0, "{none:?}");
}

#[test]
fn the_number_of_threads_changes_nothing_and_a_sample_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let of = |threads, machines| {
        let study = study(folder.path(), SMALL);
        let study = FleetStudy { effort: Effort { threads, ..study.effort }, machines, ..study };
        study.run(&|| ()).unwrap()
    };
    assert_eq!(format!("{:?}", of(1, 2)), format!("{:?}", of(3, 2)));
    let sampled = of(1, 1);
    assert_eq!((sampled.machines, sampled.sampled.len()), (2, 1));
    assert!(sampled.verdict.contains("from 1 machines"), "{}", sampled.verdict);
}

#[test]
fn what_a_trace_has_wrong_is_said_with_line_and_column() {
    let head = "start,end,machine,service,cpu,max_cpu,class,slo,request\n";
    let row = |text: &str| format!("{head}0,10,a,web,1,,,,\n{text}\n");
    let folder = tempfile::tempdir().unwrap();
    let refused = |trace: &str| format!("{:#}", study(folder.path(), trace).run(&|| ()).unwrap_err());
    for (trace, parts) in [
        (row("10,20,a,web,x,,,,"), ["line 3, column 5", "`x` is no number of cores"]),
        (row("10,20,a,web,-1,,,,"), ["line 3, column 5", "no number of cores"]),
        (row("10,20,a,web,2000,,,,"), ["line 3, column 5", "percentage"]),
        (row("20,20,a,web,1,,,,"), ["line 3, column 2", "not after the start"]),
        (row("soon,20,a,web,1,,,,"), ["line 3, column 1", "no number of seconds"]),
        (row("10,20,a,web,2,1,,,"), ["line 3, column 6", "at least cpu, which is 2"]),
        (row("10,20,a,web,1,,fast,,"), ["line 3, column 7", "latency-critical or best-effort"]),
        (row("10,20,a,web,1,,,fast,"), ["line 3, column 8", "as in p99.9<100us"]),
        (row("10,20,a,web,1,,,,often"), ["line 3, column 9", "often"]),
        (row("10,20,,web,1,,,,"), ["line 3, column 3", "a name is missing"]),
        (row("10,20,a,web"), ["line 3", "4 fields; the first line names 9"]),
        (row("5,20,a,web,1,,,,"), ["line 3", "has line 2 for the same time"]),
        ("start,end,host\n0,1,a\n".to_owned(), ["line 1", "no column `machine`"]),
        (format!("{head}0,10,a,web,1,,best-effort,,\n"), ["no latency-critical service", "trace"]),
    ] {
        let message = refused(&trace);
        assert!(parts.iter().all(|part| message.contains(part)), "{trace}: {message}");
    }
    let long = FleetStudy { burst: "2s".to_owned(), ..FleetStudy::default() };
    assert!(format!("{:#}", long.run(&|| ()).unwrap_err()).contains("at most 1s"));
    let missing = FleetStudy { fleet: "/nonexistent/fleet.csv".into(), ..FleetStudy::default() };
    assert!(format!("{:#}", missing.run(&|| ()).unwrap_err()).contains("cannot read trace"));
    // No number of cores makes a request shorter than itself.
    let tight = refused(&row("10,20,a,web,1,,,p50<1us,"));
    assert!(tight.contains("service `web`") && tight.contains("looser `slo`"), "{tight}");
}

const EXPECTED: &str = "\
objectives      cores set aside  resized  lent  saved
as given                   10.0     7.00  8.00  20.0%
2 times looser             9.00     6.50  7.00  22.2%
4 times looser             9.00     6.50  7.00  22.2%
machine  services  cores set aside  resized  lent    saved  worst latency of limit  batch used  batch left
a               2                9     6.00     6    33.3%                   29.8%        1.50        3.13
b               1                1     1.00     2  -100.0%                   23.6%        0.00        0.49
";
