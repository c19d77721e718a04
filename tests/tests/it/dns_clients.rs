//! The DNS server over TAP, queried by third-party client programs. Each test is skipped, with a
//! message, if its program is not installed.

use std::fmt::Write as _;
use std::process::Command;
use tailwater_testkit::run;
use tailwater_tests::clients::{text, with};
use tailwater_tests::tap::bench_with_tap;
use tailwater_tests::{Bench, Role};

/// Number of addresses of `big.example.`, too many for a datagram.
const BIG: usize = 200;

fn zone() -> String {
    let mut text =
        "$TTL 300\n@ SOA ns h 7 3600 600 86400 60\n NS ns\n MX 5 ns\nns A 10.77.0.2\nns AAAA 2001:db8::2\n\
        www CNAME ns\n*.wild TXT \"from a wildcard\"\nsub NS ns.sub\nns.sub A 192.0.2.53\n"
            .to_owned();
    for i in 0..BIG {
        writeln!(text, "big A 10.0.0.{i}\nhost{i} A 10.1.0.{i}").expect("memory");
    }
    text
}

/// Returns a server of the zone over TAP, and the folder that its file is in.
fn server(bench: &Bench) -> (Role, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("example.zone");
    std::fs::write(&file, zone()).expect("the folder is ours");
    let role =
        bench.child_with("dns", "dns", "latency-critical", &[("ZONE", file.to_str().expect("a path"))]);
    (role, folder)
}

/// Returns a client's output for a question.
fn ask(program: &str, server: &Role, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.arg(format!("@{}", server.ip)).args(["+time=30"]).args(arguments);
    let output = run(&mut command, b"");
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Questions to dig or kdig, which print alike: arguments, and what the answer holds.
const QUESTIONS: &[(&[&str], &[&str])] = &[
    (&["ns.example", "A"], &["status: NOERROR", "10.77.0.2"]),
    (&["ns.example", "AAAA", "+tcp"], &["status: NOERROR", "2001:db8::2"]),
    (&["www.example", "A"], &["status: NOERROR", "CNAME", "ns.example.", "10.77.0.2"]),
    (&["x.wild.example", "TXT"], &["status: NOERROR", "\"from a wildcard\""]),
    (&["example", "MX"], &["status: NOERROR", "5 ns.example.", "10.77.0.2"]),
    (&["no.example", "A"], &["status: NXDOMAIN", "SOA", "h.example. 7 3600 600 86400 60"]),
    (&["x.sub.example", "A"], &["status: NOERROR", "ns.sub.example.", "192.0.2.53"]),
    (&["elsewhere.org", "A"], &["status: REFUSED"]),
    (&["ns.example", "A", "+noedns"], &["status: NOERROR", "10.77.0.2"]),
];

fn ask_all(program: &str) {
    let bench = bench_with_tap(1500);
    let (server, _folder) = server(&bench);
    for (arguments, wanted) in QUESTIONS {
        let said = ask(program, &server, arguments);
        for what in *wanted {
            assert!(said.contains(what), "{program} {arguments:?} without {what}:\n{said}");
        }
        assert!(!said.contains("malformed") && !said.contains("WARNING: EDNS"), "{said}");
    }
    // The first query is over UDP, which truncates the answer; the client repeats it over TCP.
    let said = ask(program, &server, &["big.example", "A", "+short"]);
    assert_eq!(said.lines().filter(|line| line.starts_with("10.0.0.")).count(), BIG, "{said}");
}

#[test]
fn dig_gets_its_answers() {
    with("dig", "bind9-dnsutils", || ask_all("dig"));
}

#[test]
fn kdig_gets_its_answers() {
    with("kdig", "knot-dnsutils", || ask_all("kdig"));
}

#[test]
fn many_queries_of_dig_share_a_connection() {
    with("dig", "bind9-dnsutils", || {
        let bench = bench_with_tap(1500);
        let (server, _folder) = server(&bench);
        let mut arguments = vec!["+tcp", "+keepopen", "+short"];
        let names: Vec<_> = (0..BIG).map(|i| format!("host{i}.example")).collect();
        arguments.extend(names.iter().map(String::as_str));
        let said = ask("dig", &server, &arguments);
        let wanted: Vec<_> = (0..BIG).map(|i| format!("10.1.0.{i}")).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
    });
}

#[test]
fn dnsperf_loses_nothing() {
    with("dnsperf", "dnsperf", || {
        let bench = bench_with_tap(1500);
        let (server, folder) = server(&bench);
        let queries = folder.path().join("queries");
        let mut lines = String::new();
        for i in 0..BIG {
            writeln!(lines, "host{i}.example A\nno{i}.example A\nx{i}.wild.example TXT").expect("memory");
        }
        std::fs::write(&queries, lines).expect("the folder is ours");
        for mode in ["udp", "tcp"] {
            let mut command = Command::new("dnsperf");
            // Each query of the file five times.
            command
                .args([
                    "-m",
                    mode,
                    "-s",
                    &server.ip.to_string(),
                    "-n",
                    "5",
                    "-t",
                    "60",
                    "-c",
                    "4",
                    "-e",
                    "-d",
                ])
                .arg(&queries);
            let output = run(&mut command, b"");
            let said = text(&output);
            println!("{said}");
            assert!(output.status.success(), "{said}");
            let number = |what: &str| -> usize {
                let line = said.lines().find(|line| line.trim_start().starts_with(what));
                let word =
                    line.and_then(|line| line[line.find(what)? + what.len()..].split_whitespace().next());
                word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{what} in {said}"))
            };
            assert_eq!(number("Queries completed:"), 5 * 3 * BIG, "{said}");
            assert_eq!(number("Queries lost:"), 0, "{said}");
        }
    });
}
