use clap::Parser;
use tailwater_loadgen::search::{Judgement, Purpose, Verdict};
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
fn what_is_typed_becomes_plans() {
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
    ] {
        let error = args(&format!("127.0.0.1:1 --rate 1k {words}")).task().unwrap_err().to_string();
        assert!(error.contains(advice), "{words}: {error}");
    }
    for words in [
        "--over port --core 0 --iokernel @x",
        "--over port --tcp --protocol memcached",
        "--over tailwater --agents 2",
    ] {
        args(&format!("127.0.0.1:1 --rate 1k {words}")).task().expect(words);
    }
    for words in ["--protocol http --connections 64", "--tcp --pipeline 1 --service exp:1us", "--flows 4"] {
        args(&format!("127.0.0.1:1 --rate 1k {words}")).task().expect(words);
    }
    for words in ["--connections 0", "--tcp --pipeline 0", "--tcp --pipeline 1025"] {
        let words = format!("load 127.0.0.1:1 --rate 1k {words}");
        assert!(Words::try_parse_from(words.split(' ')).is_err(), "{words}");
    }
}

#[test]
fn a_server_is_an_address_or_a_name_with_a_port() {
    let server = |text: &str| Words::try_parse_from(["load", text, "--rate", "1k"]).map(|w| w.args.server);
    assert_eq!(server("127.0.0.1:7").unwrap(), "127.0.0.1:7".parse().ok());
    assert_eq!(server("[::1]:7").unwrap(), "[::1]:7".parse().ok());
    for without_port in ["127.0.0.1", "localhost", "localhost:", "127.0.0.1:99999"] {
        let error = server(without_port).unwrap_err().to_string();
        assert!(error.contains("for instance 127.0.0.1:5000"), "{error}");
    }
}

#[test]
fn a_search_starts_at_the_rate_given_and_has_shorter_trials() {
    let typed = args("127.0.0.1:1 --slo p99.9=200us --rate 20k --resolution 2%");
    let Task::Search(task) = typed.task().unwrap() else { panic!("no search") };
    assert_eq!((task.plan.from, task.plan.resolution), (Rate::new(20e3).unwrap(), 0.02));
    assert_eq!(typed.plan_at(task.plan.from).unwrap().plan.schedule.to_string(), "3s@20k");
}

#[test]
fn every_run_and_every_agent_has_a_seed_of_its_own() {
    let seeds: Vec<u64> = (0..1000).map(|number| session::derived_seed(1, number)).collect();
    assert_eq!(seeds[0], 1);
    let distinct: std::collections::HashSet<u64> = seeds.iter().copied().collect();
    assert_eq!(distinct.len(), seeds.len());
}

/// A search whose trials are as given: rate, purpose, verdict, p99.9 in microseconds.
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
fn what_a_search_found_is_said_in_words() {
    let met = |rate, us| (rate, Verdict::Met, us);
    let ceiling =
        output::describe_search(&outcome(&[met(1e3, 20.0), met(2e3, 30.0), met(2e3, 40.0)], 1, "2k"));
    assert_eq!(
        ceiling,
        "highest load within p99.9=200us: 2000/s; always within up to 2000/s\n\
         2 of 2 trials there within, p99.9 30.0 to 40.0 us; 3 trials in all\n\
         warning: this is the highest rate that was to be tried: raise --max-rate\n"
    );
    let nothing = output::describe_search(&outcome(&[(1e3, Verdict::Missed, 900.0)], 1, "2k"));
    assert!(nothing.contains("no load within p99.9=200us: the search ended"), "{nothing}");
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
