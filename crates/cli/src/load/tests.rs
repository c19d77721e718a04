use clap::{CommandFactory, Parser};
use tailwater_loadgen::coordinate::fleet::AgentOutcome;
use tailwater_loadgen::search::{Bound, Judgement, Purpose, Search, Verdict};
use tailwater_workload::{LatencyRecorder, Rate};

use super::args::NamedPlan;
use super::*;
use crate::load::document::SearchOutcome;

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    args: LoadArgs,
}

fn args(words: &str) -> LoadArgs {
    Words::parse_from(format!("load {words}").split(' ')).args
}

fn points(words: &str) -> Vec<NamedPlan> {
    match args(words).task().unwrap() {
        Task::Points(points) => points,
        Task::Search(search) => panic!("{search:?}"),
    }
}

#[test]
fn arguments_become_plans() {
    let one = points("127.0.0.1:1 --rate 50k --duration 2s");
    assert_eq!(one[0].name, "50k");
    assert_eq!(one[0].plan.schedule.to_string(), "2s@50k");
    assert!(one[0].plan.intervals);
    let names: Vec<String> = points("127.0.0.1:1 --rate 1k..4k*2,9k").into_iter().map(|p| p.name).collect();
    assert_eq!(names, ["1k", "2k", "4k", "9k"]);
    let noisy = points("127.0.0.1:1 --schedule 3s@1k+noise=10%/1s --seed 5");
    assert_eq!((noisy[0].name.as_str(), noisy[0].plan.schedule.segments().len()), ("3s@1k+noise=10%/1s", 3));
    assert!(args("127.0.0.1:1 --rate 1k --duration 500ms").task().is_err(), "nothing but warm-up");
}

#[test]
fn an_agent_takes_no_option_that_its_coordinator_gives() {
    let mut command = Words::command();
    command.build();
    let agent = command.get_arguments().find(|option| option.get_id() == "agent").unwrap();
    let refused: Vec<_> =
        command.get_arg_conflicts_with(agent).iter().map(|option| option.get_id()).collect();
    for option in command.get_arguments().map(clap::Arg::get_id) {
        let heeded = ["agent", "core", "once", "help"].contains(&option.as_str());
        assert!(heeded != refused.contains(&option), "--agent with --{option}");
    }
}

#[test]
fn an_option_that_would_have_no_effect_is_refused_with_advice() {
    for (words, advice) in [
        ("--connections 64", "add --tcp"),
        ("--pipeline 8 --protocol memcached", "add --tcp"),
        ("--tcp --flows 4", "use --connections"),
        ("--protocol http --flows 1", "use --connections"),
        ("--protocol echo:64 --service exp:1us", "leave it out"),
        ("--iokernel @x", "--over tailwater"),
        ("--over tailwater --core 1", "lends its cores"),
        ("--over port --agents 2", "leave agents out"),
        ("--core 0,1", "with --agents"),
        ("--coordinate 127.0.0.1:2 --core 0", "--agent`"),
        ("--no-preload", "memcached and rocks"),
        ("--protocol echo --no-preload", "memcached and rocks"),
        ("--interval 200ms", "--hdr-log"),
    ] {
        let error = args(&format!("127.0.0.1:1 --rate 1k {words}")).task().unwrap_err().to_string();
        assert!(error.contains(advice), "{words}: {error}");
    }
    for words in [
        "--over port --core 0 --iokernel @x",
        "--over port --tcp --protocol memcached",
        "--over tailwater --agents 2",
        "--agents 2 --core 0,1",
        "--protocol rocks --no-preload",
        "--interval 200ms --json x",
        "--interval 200ms --hdr-log x",
    ] {
        args(&format!("127.0.0.1:1 --rate 1k {words}")).task().expect(words);
    }
    for words in ["--protocol http --connections 64", "--tcp --pipeline 1 --service exp:1us", "--flows 4"] {
        args(&format!("127.0.0.1:1 --rate 1k {words}")).task().expect(words);
    }
    for words in ["--max-rate 2M", "--resolution 2%", "--repeats 5", "--max-trials 9"] {
        let typed = |rest: &str| {
            Words::try_parse_from(format!("load 127.0.0.1:1 --rate 1k {words}{rest}").split(' ')).map(|_| ())
        };
        assert!(typed("").unwrap_err().to_string().contains("--slo"), "{words}");
        typed(" --slo p99=1ms").expect(words);
    }
    for words in ["--connections 0", "--tcp --pipeline 0", "--tcp --pipeline 1025"] {
        let words = format!("load 127.0.0.1:1 --rate 1k {words}");
        assert!(Words::try_parse_from(words.split(' ')).is_err(), "{words}");
    }
}

#[test]
fn a_server_is_an_address_or_a_name_with_a_port() {
    let server = |text: &str| {
        let words = Words::try_parse_from(["load", text, "--rate", "1k"]);
        words.map(|words| words.args.server.map(|server| server.addresses).unwrap_or_default())
    };
    assert_eq!(server("127.0.0.1:7").unwrap(), ["127.0.0.1:7".parse().unwrap()]);
    assert_eq!(server("[::1]:7").unwrap(), ["[::1]:7".parse().unwrap()]);
    let named = args("localhost:80 --rate 1k --protocol http:/").server.unwrap();
    let address = named.addresses[0];
    assert_eq!((named.authority.as_str(), address.port()), ("localhost:80", 80), "the name stays");
    for not_a_port in ["127.0.0.1:65536", "[::1]:99999", "localhost:0"] {
        let error = server(not_a_port).unwrap_err().to_string();
        assert!(error.contains("is not a port: ports are numbers from 1 to 65535"), "{error}");
    }
    for without_port in ["127.0.0.1", "localhost", "localhost:", "127.0.0.1:99999"] {
        let error = server(without_port).unwrap_err().to_string();
        assert!(error.contains("for instance 127.0.0.1:5000"), "{error}");
    }
}

#[test]
fn a_load_without_length_is_refused_in_words() {
    let words = "load 127.0.0.1:1 --rate 1k --duration 0s";
    let error = Words::try_parse_from(words.split(' ')).unwrap_err().to_string();
    assert!(error.contains("a load of `0s` has no request: write a longer one"), "{error}");
}

#[test]
fn a_search_starts_at_the_rate_given_and_has_shorter_trials() {
    let typed = args("127.0.0.1:1 --slo p99.9=200us --rate 20k --resolution 2%");
    let Task::Search(task) = typed.task().unwrap() else { panic!("no search") };
    assert_eq!((task.plan.from, task.plan.resolution), (Rate::new(20e3).unwrap(), 0.02));
    assert_eq!(typed.plan_at(task.plan.from).unwrap().plan.schedule.to_string(), "3s@20k");
}

#[test]
fn a_limit_on_windows_that_agents_do_not_keep_is_refused() {
    let search = |words: &str| args(&format!("127.0.0.1:1 --slo win-p99.9=200us {words}")).task();
    let error = search("--agents 2 --duration 7min").unwrap_err().to_string();
    assert!(error.contains("6 minutes"), "{error}");
    search("--agents 2 --duration 5min").unwrap();
    search("--duration 7min").unwrap();
}

#[test]
fn a_margin_may_be_zero_and_a_resolution_may_not() {
    assert_eq!((parse_margin("0%"), parse_percent("5%")), (Ok(0.0), Ok(0.05)));
    for (text, read) in [
        ("0%", parse_percent as fn(&str) -> _),
        ("-1%", parse_margin),
        ("NaN%", parse_margin),
        ("5", parse_margin),
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

/// Returns a run of `plan` in which every request was answered within 10 us.
fn answered(plan: &Plan, agents: Vec<AgentOutcome>) -> session::Done {
    let mut recorder = LatencyRecorder::with_intervals(0, 100_000_000);
    (0..1000u64).for_each(|i| recorder.record(i * 1_000_000, 10_000));
    let mut measurement = tailwater_loadgen::Generator::new(plan.clone(), 1, 0).unwrap().finish(1);
    measurement.summary = recorder.finish(1_000_000_000);
    session::Done { measurement, seed: 1, started: std::time::SystemTime::now(), agents }
}

/// Searches with `trial`, which gets the trial's number.
fn searched(mut trial: impl FnMut(&Plan, u64) -> anyhow::Result<session::Done>) -> anyhow::Result<Measured> {
    let typed = args("127.0.0.1:1 --slo p99.9=200us --rate 1k");
    let Task::Search(task) = typed.task().unwrap() else { panic!("no search") };
    search::search(&typed, 0, &task, &Progress::new(false, true), &mut trial, &|| false)
}

#[test]
fn a_trial_that_cannot_be_made_ends_the_search_and_keeps_what_it_found() {
    let fails_at = |fatal: u64| {
        searched(|plan, number| {
            anyhow::ensure!(number < fatal, "no server answered");
            Ok(answered(plan, Vec::new()))
        })
    };
    let measured = fails_at(3).unwrap();
    let found = measured.document.search.as_ref().unwrap();
    assert_eq!((found.load, found.bound, found.trials.len()), (Rate::new(4e3).ok(), Bound::Trials, 3));
    assert_eq!(measured.document.points.len(), 3);
    let [warning] = &measured.document.warnings[..] else { panic!("{:?}", measured.document.warnings) };
    assert!(warning.contains("8k") && warning.contains("no server answered"), "{warning}");
    assert!(measured.ended.unwrap().to_string().contains("no server answered"));
    assert!(fails_at(0).is_err(), "there is nothing to keep");
}

#[test]
fn a_trial_without_an_agents_share_is_no_vote() {
    let measured = searched(|plan, number| {
        let failure = (number == 2).then(|| "it closed the connection".to_owned());
        let agent = AgentOutcome {
            agent: "10.0.0.2:7171".to_owned(),
            start_uncertainty_us: 1.0,
            offered: 1,
            failure,
        };
        Ok(answered(plan, vec![agent]))
    })
    .unwrap();
    let found = measured.document.search.as_ref().unwrap();
    assert_eq!((found.load, found.trials.len()), (Rate::new(2e3).ok(), 2));
    assert!(measured.document.warnings[0].contains("10.0.0.2:7171"), "{:?}", measured.document.warnings);
    assert!(measured.ended.is_some());
}

#[test]
fn every_run_and_every_agent_has_a_seed_of_its_own() {
    let seeds: Vec<u64> = (0..1000).map(|number| session::derived_seed(1, number)).collect();
    assert_eq!(seeds[0], 1);
    let distinct: std::collections::HashSet<u64> = seeds.iter().copied().collect();
    assert_eq!(distinct.len(), seeds.len());
}

/// Returns a search with these trials: rate, verdict, p99.9 in microseconds.
fn outcome(trials: &[(f64, Verdict, f64)], repeats: u32, max_rate: &str) -> SearchOutcome {
    let words = format!(
        "127.0.0.1:1 --slo p99.9=200us --repeats {repeats} --max-rate {max_rate} --max-trials {}",
        trials.len().max(1)
    );
    let Task::Search(task) = args(&words).task().unwrap() else { panic!("no search") };
    let mut search = Search::new(task.plan);
    for &(rate, verdict, us) in trials {
        assert_eq!(search.next_rate().map(|(rate, _)| rate.per_second()), Some(rate));
        search.record(Judgement { verdict, measured_us: vec![Some(us)] });
    }
    SearchOutcome::new(&task.slo, task.plan, search.found(), &[])
}

#[test]
fn the_outcome_of_a_search_is_described_in_words() {
    let met = |rate, us| (rate, Verdict::Met, us);
    let ceiling =
        output::describe_search(&outcome(&[met(1e3, 20.0), met(2e3, 30.0), met(2e3, 40.0)], 1, "2k"));
    for part in ["p99.9=200us: 2000/s", "2 of 2 trials", "30.0 to 40.0 us", "3 trials", "raise --max-rate"] {
        assert!(ceiling.contains(part), "{part}: {ceiling}");
    }
    let nothing = output::describe_search(&outcome(&[(1e3, Verdict::Missed, 900.0)], 1, "2k"));
    assert!(nothing.contains("no load within p99.9=200us"), "{nothing}");
}

#[test]
fn a_trial_is_one_line() {
    let slo = "p50=20us,p99.9=200us".parse().unwrap();
    let judgement = Judgement { verdict: Verdict::GeneratorBehind, measured_us: vec![Some(12.34), None] };
    let line = live::describe_trial(7, Rate::new(5e4).unwrap(), Purpose::Bisect, &slo, &judgement);
    assert_eq!(
        line,
        "trial  7, bisect     50000/s: p50 12.3 us, p99.9 lost: over, and the generator ran behind"
    );
}

#[test]
fn a_point_adds_up_its_runs() {
    let typed = args("127.0.0.1:1 --rate 1k --duration 1s");
    let named = typed.plan_at(Rate::new(1e3).unwrap()).unwrap();
    let mut point = Point::new(&named.name, &named.plan);
    for run in 0..2 {
        let mut recorder = LatencyRecorder::with_intervals(0, 100_000_000);
        (0..10u64).for_each(|i| recorder.record(i * 100_000_000, (1 + run) * 10_000));
        let mut generator = tailwater_loadgen::Generator::new(named.plan.clone(), 1, 0).unwrap().finish(1);
        generator.summary = recorder.finish(1_000_000_000);
        point.add(
            session::Done {
                measurement: generator,
                seed: run,
                started: std::time::SystemTime::now(),
                agents: Vec::new(),
            },
            500_000_000,
        );
    }
    let report = point.report.as_ref().unwrap();
    assert_eq!((report.figures.completed, report.figures.duration_s), (20, 2.0));
    assert_eq!(point.runs[0].windows.list.len(), 2);
    assert_eq!(point.offered_rps(), 1000.0);
}
