//! `tailwater load` and `tailwater compare` against a server in this process, over the loopback
//! device.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::common::{agent, fails_with, run, succeeds, tailwater};
use hdrhistogram::Histogram;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tailwater_testkit::{Program, is_installed, loopback_address, text, unless_too_busy};
use tailwater_workload::spin::{Reply, Request};

/// A spin server that answers at once, whatever the requested work.
///
/// Linux keeps 256 small datagrams for it (`rmem_default`): the tests that count answers send no
/// more in a run, so that none is lost where the server does not run for long.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        Self::start_late(Duration::ZERO, Arc::default())
    }

    /// Returns a server that answers nothing for `delay` after the first request, and stores the
    /// time of its first answer.
    fn start_late(delay: Duration, first: Arc<Mutex<Option<SystemTime>>>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut bytes, mut asked) = ([0; 64], None);
            while !stopped.load(Relaxed) {
                let Ok((len, client)) = socket.recv_from(&mut bytes) else { continue };
                let Ok(request) = Request::decode(&bytes[..len]) else { continue };
                if asked.get_or_insert_with(Instant::now).elapsed() < delay {
                    continue;
                }
                first.lock().unwrap().get_or_insert_with(SystemTime::now);
                let _ = socket.send_to(&Reply { request, served_ns: 0 }.encode(), client);
            }
        });
        Self { address, stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs `tailwater load` with a timeout that no busy test machine reaches, until it succeeds;
/// `None` if it gets no core for minutes.
#[track_caller]
fn load(server: &Server, words: &[&str]) -> Option<Output> {
    let address = server.address.to_string();
    let mut all = vec!["load", &address, "--warm-up", "100ms", "--arrivals", "const"];
    all.extend(["--timeout", "900s", "--wait", "900s"]);
    all.extend(words);
    succeeds(&all)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_sweep_writes_a_row_per_load_and_all_three_files() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json_file, csv_file, log_file) = (path("a.json"), path("a.csv"), path("a.hlog"));
    let Some(output) = load(
        &server,
        &[
            "--rate",
            "100..300/100",
            "--duration",
            "500ms",
            "--runs",
            "2",
            "--interval",
            "200ms",
            "--json",
            &json_file,
            "--csv",
            &csv_file,
            "--hdr-log",
            &log_file,
        ],
    ) else {
        return;
    };
    // Standard output is no terminal here.
    assert_eq!(text(&output.stderr), "");
    let printed = text(&output.stdout);
    assert!(printed.starts_with("load") && printed.contains("\n300 "), "{printed}");

    let document = json(Path::new(&json_file));
    assert_eq!(document["format"], "tailwater-load 1");
    let points = document["points"].as_array().unwrap();
    assert_eq!(points.iter().map(|p| p["name"].as_str().unwrap()).collect::<Vec<_>>(), ["100", "200", "300"]);
    for (point, rate) in points.iter().zip([100, 200, 300]) {
        assert_eq!(point["report"]["completed"], 2 * rate * 4 / 10);
        assert_eq!(point["runs"].as_array().unwrap().len(), 2);
        assert_eq!(point["runs"][0]["windows"]["length_ns"], 200_000_000);
    }
    assert_ne!(points[0]["runs"][0]["seed"], points[0]["runs"][1]["seed"]);

    let csv = std::fs::read_to_string(&csv_file).unwrap();
    let rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[1].starts_with("\"100\",2,100,"), "{csv}");
    assert!(rows.iter().all(|row| row.split(',').count() == rows[0].split(',').count()), "{csv}");

    let log = std::fs::read_to_string(&log_file).unwrap();
    assert!(log.starts_with("#[Histogram log format version 1.3]\n"), "{log}");
    assert!(log.contains("\nTag=200,"), "{log}");
    // 2 runs of 3 loads, windows of 200 ms over 400 ms, and answers after the end.
    assert!(log.lines().filter(|line| line.starts_with("Tag=")).count() >= 12, "{log}");
}

#[test]
fn a_run_starts_when_its_schedule_does_and_not_when_its_server_is_looked_for() {
    for more in [&[][..], &["--agents", "1"]] {
        let first = Arc::default();
        let server = Server::start_late(Duration::from_millis(400), Arc::clone(&first));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("late.json");
        let words = ["--rate", "1k", "--duration", "300ms", "--json", file.to_str().unwrap()];
        if load(&server, &[&words[..], more].concat()).is_none() {
            return;
        }
        let ended = SystemTime::now();
        let started = json(&file)["points"][0]["runs"][0]["started_unix_s"].as_f64().unwrap();
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(started);
        let answered = first.lock().unwrap().unwrap();
        assert!(answered < started, "{more:?}: {answered:?}, {started:?}");
        assert!(started + Duration::from_millis(300) <= ended, "{more:?}: {started:?}, {ended:?}");
    }
}

#[test]
fn an_hdr_log_holds_every_latency_for_other_readers() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let log_file = folder.path().join("a.hlog");
    let words = ["--rate", "400", "--duration", "600ms", "--hdr-log", log_file.to_str().unwrap()];
    if load(&server, &words).is_none() {
        return;
    }
    let script = r#"
import sys
try:
    from hdrh.log import HistogramLogReader
    from hdrh.histogram import HdrHistogram
except ImportError:
    print("missing"); sys.exit(0)
accumulated = HdrHistogram(1, 60 * 10**9, 3)
reader = HistogramLogReader(sys.argv[1], accumulated)
while True:
    histogram = reader.get_next_interval_histogram()
    if histogram is None:
        break
    accumulated.add(histogram)
print(accumulated.get_total_count())
"#;
    if !is_installed("python3", "python3") {
        return;
    }
    let python = tailwater_testkit::run(Command::new("python3").args(["-c", script]).arg(&log_file), b"");
    match text(&python.stdout).trim() {
        "missing" => println!("skipped: the Python package hdrhistogram is not installed"),
        count => assert_eq!(count, "200", "{}", text(&python.stderr)),
    }
}

#[test]
fn a_search_finds_the_highest_rate_it_may_try_and_says_so() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slo.json");
    let words =
        ["--slo", "p50=600s", "--rate", "50", "--max-rate", "200", "--duration", "200ms", "--repeats", "1"];
    let words = [&words[..], &["--json", file.to_str().unwrap(), "--live"]].concat();
    let Some(output) = load(&server, &words) else { return };
    let printed = text(&output.stdout);
    assert!(printed.contains("highest load within p50=600s: 200/s"), "{printed}");
    assert!(printed.contains("raise --max-rate"), "{printed}");
    let progress = text(&output.stderr);
    assert!(progress.contains("trial  1, bracket     50.0/s: p50"), "{progress}");
    let document = json(&file);
    assert_eq!(document["search"]["load"], 200.0);
    assert_eq!(document["search"]["bound"], "ceiling");
    let purposes: Vec<&str> = document["search"]["trials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["purpose"].as_str().unwrap())
        .collect();
    assert_eq!(purposes, ["bracket", "bracket", "bracket", "confirm"]);
    assert_eq!(document["search"]["point"], "200");
}

#[test]
fn a_limit_that_no_load_keeps_is_reported() {
    let server = Server::start();
    let words = [
        "--slo",
        "p50=1ns",
        "--rate",
        "10",
        "--duration",
        "200ms",
        "--repeats",
        "1",
        "--max-trials",
        "3",
        "--quiet",
    ];
    let Some(output) = load(&server, &words) else { return };
    assert!(text(&output.stdout).contains("no load within p50=1ns"), "{}", text(&output.stdout));
}

#[test]
fn local_agents_share_the_load_and_show_it_live() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.json");
    let words = ["--rate", "100", "--duration", "2s", "--agents", "2", "--live", "--json"];
    let words = [&words[..], &[file.to_str().unwrap()]].concat();
    let Some(output) = load(&server, &words) else { return };
    let document = json(&file);
    let run = &document["points"][0]["runs"][0];
    // Each agent has half of the rate, with equal gaps: 2 * 50 requests a second for 1.9 s.
    assert_eq!(document["points"][0]["report"]["completed"], 190);
    assert_eq!(document["agents"], 2);
    for agent in run["agents"].as_array().unwrap() {
        assert_eq!(agent["offered"], 95);
        assert!(
            agent["failure"].is_null() && agent["start_uncertainty_us"].as_f64().unwrap() > 0.0,
            "{agent}"
        );
    }
    let live = text(&output.stderr);
    assert!(live.contains("p99.9 us"), "{live}");
}

/// Returns a TCP echo server with a thread per connection; its threads end with the connections.
fn echo_server() -> SocketAddr {
    echo_server_at("127.0.0.1")
}

/// As [`echo_server`], at this address of the loopback device.
fn echo_server_at(ip: &str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn sweeps_searches_and_agents_work_with_other_protocols_over_tcp() {
    let address = echo_server().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("echo.json");
    let common = [
        "load",
        &address,
        "--protocol",
        "echo:64",
        "--tcp",
        "--connections",
        "3",
        "--warm-up",
        "100ms",
        "--timeout",
        "900s",
        "--wait",
        "900s",
        "--arrivals",
        "const",
        "--json",
        file.to_str().unwrap(),
    ];
    let words = ["--rate", "500,1k", "--duration", "500ms", "--agents", "2"];
    if succeeds(&[&common[..], &words].concat()).is_none() {
        return;
    }
    let document = json(&file);
    assert_eq!((&document["protocol"], &document["connections"]), (&"echo:64".into(), &3.into()));
    for (point, completed) in document["points"].as_array().unwrap().iter().zip([200, 400]) {
        assert_eq!(point["report"]["completed"], completed, "{point}");
        assert_eq!(point["report"]["oddities"]["wrong"], 0);
    }
    let words =
        ["--slo", "p50=600s", "--rate", "500", "--max-rate", "1k", "--duration", "200ms", "--repeats", "1"];
    if succeeds(&[&common[..], &words].concat()).is_none() {
        return;
    }
    assert_eq!(json(&file)["search"]["load"], 1000.0);
}

/// Returns the command with `words`, started by a shell's `script`, in which it is `"$0" "$@"`.
fn after(script: &str, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tailwater")]).args(words);
    command
}

#[test]
fn the_next_address_of_a_name_is_tried_when_one_refuses() {
    if !is_installed("unshare", "util-linux") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 two.test\n127.0.0.2 two.test\n").unwrap();
    let own = |script: &str, words: &[&str]| {
        let mut command = Command::new("unshare");
        let mount = format!("mount --bind '{}' /etc/hosts && {script}", hosts.display());
        command.args(["--mount", "sh", "-c", &mount, env!("CARGO_BIN_EXE_tailwater")]).args(words);
        tailwater_testkit::run(&mut command, b"")
    };
    let found = text(&own("getent ahosts two.test", &[]).stdout);
    if !found.contains("127.0.0.1") || !found.contains("127.0.0.2") {
        return eprintln!(
            "skipped: no name with two addresses can be made here (root, unshare(1), mount(8))"
        );
    }
    for ip in ["127.0.0.1", "127.0.0.2"] {
        let server = format!("two.test:{}", echo_server_at(ip).port());
        let words =
            ["load", &server, "--protocol", "echo:64", "--tcp", "--rate", "100", "--duration", "200ms"];
        let words = [&words[..], &["--warm-up", "50ms", "--timeout", "900s", "--wait", "900s"]].concat();
        unless_too_busy(|| {
            let output = own("exec \"$0\" \"$@\"", &words);
            if output.status.success() { Ok(()) } else { Err(format!("{ip}: {}", text(&output.stderr))) }
        });
    }
}

#[test]
fn too_few_descriptors_are_raised_or_explained_with_the_remedy() {
    let server = echo_server().to_string();
    let words = ["load", &server, "--protocol", "echo:64", "--tcp", "--connections", "100", "--rate", "100"];
    let words =
        [&words[..], &["--duration", "200ms", "--warm-up", "50ms", "--timeout", "900s", "--wait", "900s"]]
            .concat();
    let output = tailwater_testkit::run(&mut after("ulimit -n 48; exec \"$0\" \"$@\"", &words), b"");
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for part in ["48", "ulimit -n", "LimitNOFILE=", "fewer connections"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    unless_too_busy(|| {
        let output = tailwater_testkit::run(&mut after("ulimit -Sn 48; exec \"$0\" \"$@\"", &words), b"");
        if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
    });
}

#[test]
fn a_list_of_names_is_read_by_the_coordinator_only() {
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("dns:{}", folder.path().join("missing.txt").display());
    let output = run(&["load", "127.0.0.1:1", "--rate", "1k", "--protocol", &missing, "--agents", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("missing.txt"), "{}", text(&output.stderr));
}

#[test]
fn an_agent_serves_one_coordinator_after_the_other() {
    let server = Server::start();
    let (_agent, address) = agent();
    for _ in 0..2 {
        let words = ["--rate", "1k", "--duration", "250ms", "--coordinate", &address];
        let Some(output) = load(&server, &words) else { return };
        assert!(text(&output.stdout).contains("achieved 1000/s"), "{}", text(&output.stdout));
    }
    // The agent finds no server, and the coordinator reports it.
    let free = loopback_address().to_string();
    fails_with(&["load", &free, "--rate", "1k", "--coordinate", &address], &[&address, &free]);
}

#[test]
fn an_agent_killed_in_the_run_fails_the_command_which_reports_the_rest() {
    let server = Server::start();
    let server_address = server.address.to_string();
    unless_too_busy(|| {
        let ((_one, first), (mut two, second)) = (agent(), agent());
        let both = format!("{first},{second}");
        let words =
            ["load", &server_address, "--rate", "1k", "--duration", "10s", "--coordinate", &both, "--live"];
        let mut command = Program::start(&mut tailwater(&words));
        // The first line of the live view shows that the run has begun.
        command.error_line().expect("a live view");
        two.kill();
        let output = command.finish();
        let (rest, printed) = (text(&output.stderr), text(&output.stdout));
        if output.status.success() {
            return Err("the machine is too busy: the agent was killed after the run".to_owned());
        }
        if !printed.contains(&second) {
            return Err(rest);
        }
        assert_eq!(output.status.code(), Some(1), "{rest}");
        assert!(rest.contains(&second) && rest.contains("share of the load is missing"), "{rest}");
        assert!(printed.contains("windows of 100 ms"), "{printed}");
        Ok(())
    });
}

#[test]
fn an_interrupt_of_the_whole_process_group_keeps_what_local_agents_measured() {
    let server = Server::start();
    let server_address = server.address.to_string();
    let words = ["load", &server_address, "--rate", "1k", "--duration", "1h", "--agents", "2", "--live"];
    unless_too_busy(|| {
        // As in a terminal: the command leads a process group, and Ctrl-C goes to the whole group.
        let mut command = Program::start(tailwater(&words).process_group(0));
        command.error_line().expect("a live view");
        let group = Pid::from_child(command.process());
        kill_process_group(group, Signal::INT).unwrap();
        let output = command.finish();
        let (rest, printed) = (text(&output.stderr), text(&output.stdout));
        if output.status.code() != Some(130) || printed.contains("share is missing") {
            return Err(format!("{printed}{rest}"));
        }
        assert!(
            printed.contains("windows of 100 ms") && printed.contains("ended before its plan"),
            "{printed}{rest}"
        );
        Ok(())
    });
}

/// Returns a file as `tailwater load --json` writes it, with `runs` runs of exponential latencies
/// with this mean; `None` if the command gets no core for minutes.
fn result(folder: &Path, name: &str, runs: u64, mean_us: f64, seed: u64) -> Option<String> {
    let mut prng = tailwater_workload::random::stream(seed, 0);
    let server = Server::start();
    let path = folder.join(name).to_str().unwrap().to_owned();
    let runs_word = runs.to_string();
    let words = ["--rate", "100", "--duration", "200ms", "--runs", &runs_word, "--json", &path];
    load(&server, &words)?;
    let mut document = json(Path::new(&path));
    for run in document["points"][0]["runs"].as_array_mut().unwrap() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for _ in 0..2000 {
            let latency_ns = mean_us * 1e3 * tailwater_workload::random::unit_exponential(&mut prng);
            histogram.record(1 + latency_ns as u64).unwrap();
        }
        let latencies: Vec<u64> = histogram
            .iter_recorded()
            .flat_map(|value| [value.value_iterated_to(), value.count_at_value()])
            .collect();
        run["windows"] = serde_json::json!({
            "length_ns": 1_000_000_000,
            "list": [{ "index": 0, "offered": 2000, "completed": 2000, "lost": 0, "late": 0, "latencies_ns": latencies }],
        });
    }
    std::fs::write(&path, document.to_string()).unwrap();
    Some(path)
}

#[test]
fn a_comparison_tells_worse_from_no_difference_and_fails_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, mean_us, seed| result(folder.path(), name, 8, mean_us, seed);
    let Some(fast) = file("fast.json", 20.0, 1) else { return };
    let Some(same) = file("same.json", 20.0, 2) else { return };
    let Some(slow) = file("slow.json", 40.0, 3) else { return };
    let verdict = |a: &str, b: &str, fail_on: &str| {
        let output = run(&["compare", a, b, "--margin", "10%", "--resamples", "500", "--fail-on", fail_on]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, printed) = verdict(&fast, &slow, "never");
    assert!(code == Some(0) && printed.contains("over 8 and 8 runs: worse"), "{printed}");
    let (code, printed) = verdict(&fast, &slow, "worse");
    assert!(code == Some(1) && printed.contains("B is worse at 100"), "{printed}");
    let (code, printed) = verdict(&fast, "/nonexistent.json", "worse");
    assert!(code == Some(2) && printed.contains("/nonexistent.json"), "an error is no verdict: {printed}");
    let (code, printed) = verdict(&slow, &fast, "worse");
    assert!(code == Some(0) && printed.contains("runs: better"), "{printed}");
    let (code, printed) = verdict(&fast, &same, "difference");
    assert!(code == Some(0) && printed.contains("runs: no difference"), "{printed}");
}

#[test]
fn what_is_not_comparable_is_refused_unless_forced_and_warnings_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let Some(good) = result(folder.path(), "good.json", 5, 20.0, 1) else { return };
    let changed = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut document = json(Path::new(&good));
        change(&mut document);
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(&path, document.to_string()).unwrap();
        path
    };
    let compared = |other: &str, more: &[&str]| {
        let output = run(&[&["compare", &good, other, "--resamples", "200"], more].concat());
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let failed = serde_json::json!([
        { "agent": "10.0.0.2:7171", "start_uncertainty_us": 1.0, "offered": 0, "failure": "it closed the connection" }
    ]);
    type Change<'a> = &'a dyn Fn(&mut Value);
    let refused: [(&str, Change<'_>, &str); 5] = [
        ("protocol", &|d| d["protocol"] = "echo:64".into(), "protocol: spin in A, echo:64 in B"),
        ("timeout", &|d| d["points"][0]["plan"]["timeout_ns"] = 1.into(), "timeout: 900s in A, 1ns in B"),
        ("arrivals", &|d| d["points"][0]["plan"]["arrivals"] = "poisson".into(), "arrivals: const in A"),
        (
            "cut",
            &|d| d["points"][0]["runs"][2]["report"]["interrupted"] = true.into(),
            "in B, run 3 was ended",
        ),
        ("agent", &|d| d["points"][0]["runs"][0]["agents"] = failed.clone(), "share of agent 10.0.0.2:7171"),
    ];
    for (name, change, part) in refused {
        let other = changed(name, change);
        let (code, printed) = compared(&other, &[]);
        assert!(
            code == Some(2) && printed.contains(part) && printed.contains("--force"),
            "{name}: {printed}"
        );
        let (code, printed) = compared(&other, &["--force"]);
        let shown = part.strip_prefix("in B, ").unwrap_or(part);
        assert!(code == Some(0) && printed.contains(shown), "{name}: {printed}");
    }
    let other = changed("over", &|d| {
        d["over"] = "tailwater".into();
        d["warnings"] = serde_json::json!(["ended at 8k: no server answered"]);
        d["points"][0]["report"]["warnings"] = serde_json::json!(["the generator ran behind"]);
    });
    let (code, printed) = compared(&other, &["--margin", "0%"]);
    assert_eq!(code, Some(0), "{printed}");
    for part in [
        "difference: over: kernel in A, tailwater in B",
        "warning: B: ended at 8k: no server answered",
        "warning: B: the generator ran behind",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn misuse_is_explained() {
    for (words, part) in [
        (&["load", "127.0.0.1:1", "--rate", "10k..20k"][..], "10k..200k/10k"),
        (&["load", "127.0.0.1:1", "--schedule", "10s@10k+noise=1"], "+noise=SIZE/DURATION"),
        (&["load", "127.0.0.1:1", "--slo", "99.9=200us"], "p99.9=200us"),
        (&["load", "127.0.0.1:1", "--slo", "p99.9=200us", "--schedule", "1s@1k"], "--schedule"),
        (&["load", "127.0.0.1:1", "--rate", "1k", "--interval", "50ms"], "multiple of 100ms"),
        (&["load", "127.0.0.1:1", "--slo", "p99=1ms", "--repeats", "2"], "odd"),
        (&["load", "--agent", "127.0.0.1:0", "--rate", "1k"], "--agent"),
        (&["load", "--agent", "127.0.0.1:0", "--json", "a.json"], "--json"),
        (&["load", "127.0.0.1:1", "--rate", "1k", "--connections", "4"], "add --tcp"),
        (&["load", "127.0.0.1:1", "--rate", "1k", "--protocol", "foo"], "use spin"),
        (&["compare", "a.json"], "B.json"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.json");
    std::fs::write(&other, "{}").unwrap();
    let other = other.to_str().unwrap();
    for (words, code, part) in [
        (&["load", "127.0.0.1:1", "--slo", "p99=1ms", "--rate", "1k,2k"][..], 2, "one --rate"),
        (&["load", "127.0.0.1:1", "--slo", "p99=1ms", "--rate", "20M"], 2, "--max-rate"),
        (&["load", "127.0.0.1:1", "--rate", "1k", "--coordinate", "127.0.0.1:1"], 1, "load --agent"),
        // Its 1 is a verdict.
        (&["compare", other, other], 2, "tailwater load --json"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
}
