//! Every subcommand explains itself, and the daemon, services and statistics work together.

use crate::common::{fails_with, iokernel, run, stats, succeeds, tailwater};
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{
    PATIENCE, Program, children, eventually, has_two_cpus, is_installed, socket_name, text, unless_too_busy,
    until,
};

#[test]
fn every_subcommand_has_help_with_examples() {
    for words in [
        &["--help"][..],
        &["demo", "--help"],
        &["iokernel", "--help"],
        &["run", "--help"],
        &["load", "--help"],
        &["compare", "--help"],
        &["stats", "--help"],
        &["ps", "--help"],
        &["info", "--help"],
        &["top", "--help"],
        &["metrics", "--help"],
        &["cores", "--help"],
        &["capture", "--help"],
        &["doctor", "--help"],
        &["report", "--help"],
        &["completions", "--help"],
    ] {
        let output = run(words);
        let help = text(&output.stdout);
        assert!(output.status.success(), "{words:?}");
        assert!(help.contains("Usage:") && help.contains("Example"), "{words:?}:\n{help}");
        assert!(!help.contains("tailwater app"), "the hidden command shows in {words:?}");
    }
}

#[test]
fn misuse_is_explained() {
    for (words, part) in [
        (&["demo", "--loads", "0"][..], "percentage"),
        (&["demo", "--service", "exp:1s"], "mean"),
        (&["load", "127.0.0.1:1"], "--rate"),
        (&["iokernel", "--managed-cores", "x"], "core number"),
        (&["iokernel", "--tap", "tw0"], "--host-ip"),
        (&["iokernel", "--xdp", "eth1", "--tap", "tw0", "--host-ip", "10.77.0.1"], "cannot be used with"),
        (&["capture"], "--write"),
        (&["run"], "PROGRAM"),
        (&["cores", "web", "1@8"], "0, served first, to 7"),
        (&["ps", "--iokernel", ""], "@NAME"),
        (&["run", "--iokernel", "", "--", "true"], "@NAME"),
        (&["run", "--posix", "--network", "10.77.0.0/33", "--", "true"], "10.77.0.0/16"),
        (&["run", "--posix", "--network", "10.77.0.0/16,x", "--", "true"], "10.77.0.0/16"),
        (&["run", "--standalone", "--guaranteed", "1", "--", "true"], "cannot be used with"),
        (&["run", "--batch", "--also-cores", "x", "--", "true"], "core number"),
        (&["run", "--exit-linger", "2h", "--", "true"], "at most 1h"),
        (&["trace", "--last", "0s"], "above 0"),
        (&["load", "127.0.0.1:1", "--slo", "p99=0us"], "above 0"),
        (&["metrics", "--listen", "127.0.0.1"], "127.0.0.1:9757"),
        (&["metrics", "--interval", "5s"], "--textfile"),
        (&["capture", "-w", "x", "--files", "3"], "--rotate-mb"),
        (&["capture", "-w", "-", "--rotate-mb", "5"], "--write"),
        (&["capture", "-w", "x", "--duration", "10"], "add one of ns"),
        (&["load", "127.0.0.1:1", "--rate", "1", "--json", "a.json", "--csv", "a.json"], "two files"),
        (&["run", "--batch", "--also-cores", "1023", "--", "true"], "no core 1023"),
        (&["demo", "--loads", "50,50"], "listed twice"),
        (&["demo", "--batch", "no-such-program"], "no program no-such-program"),
        (&["stats", "--json", "a.json"], "write --json > a.json"),
        (&["publish", "tcp:80=web"], "iokernel --publish"),
        (&["load", "127.0.0.1:1", "--slo", "100us"], "p99.9=200us"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(part), "{words:?}: {}", text(&output.stderr));
    }
    for (words, part) in [
        (&["stats", "--iokernel", "@tailwater-is-not-here"][..], "iokernel --socket @tailwater-is-not-here`"),
        (&["stats", "--iokernel", "/proc/self/status"], "a file and no socket"),
        (
            &["run", "--iokernel", "@tailwater-is-not-here", "--", "./no-such-program"],
            "no file ./no-such-program",
        ),
        (&["load", "127.0.0.1:1", "--rate", "1", "--json", "/nonexistent/a"], "cannot write /nonexistent/a"),
        (&["trace", "--out", "/nonexistent/a"], "cannot write /nonexistent/a"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(part) && !said.contains("waiting"), "{words:?}: {said}");
    }
}

#[test]
fn the_printed_configuration_is_one_that_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let first = run(&["iokernel", "--print-config", "--core", "3", "--managed-cores", "4-6"]);
    std::fs::write(&file, &first.stdout).unwrap();
    let second = run(&["iokernel", "--print-config", "--config", file.to_str().unwrap()]);
    assert_eq!(text(&first.stdout), text(&second.stdout));
    let printed = text(&first.stdout);
    assert!(printed.contains("\ncore = 3\n") && printed.contains("managed-cores = \"4-6\""), "{printed}");
}

#[test]
fn the_version_has_the_commit() {
    let output = run(&["--version"]);
    let line = text(&output.stdout);
    let (version, commit) = line.trim().split_once(" (").expect("a commit in brackets");
    assert!(version.starts_with("tailwater 0.") && commit.len() > 1 && commit.ends_with(')'), "{line}");
}

#[test]
fn a_check_says_line_by_line_what_keeps_an_iokernel_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tailwater.toml");
    let socket = socket_name("checked");
    let check = |config: &str, words: &[&str]| {
        std::fs::write(&file, config).unwrap();
        let file = file.to_str().unwrap();
        let own = ["iokernel", "--check", "--share-cores", "--socket", &socket, "--config", file];
        let output = run(&[&own[..], words].concat());
        (output.status.code(), text(&output.stdout))
    };
    for (config, words, subject, part) in [
        ("cede-grace = 10", &[][..], "configuration", "did you mean `cede-grace-us`?"),
        ("managed_cores = [1]", &["--offline"], "configuration", "did you mean `managed-cores`?"),
        ("core = 1023", &[], "cores", "core = 1023"),
        ("[ports]\nxdp = \"no-such-if\"", &[], "port", "no interface no-such-if"),
        ("[[grant]]\nusers = \"no-such-user-here\"", &[], "grants", "no-such-user-here"),
        ("", &["--takeover"], "takeover", "without --takeover"),
    ] {
        let (code, found) = check(config, words);
        assert_eq!(code, Some(1), "{config}: {found}");
        let line = format!("refused  {subject}: ");
        assert!(found.contains(&line) && found.contains(part), "{config}: {found}");
    }
    let (code, found) = check("core = 1023\n[ports]\nxdp = \"no-such-if\"", &["--offline"]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found.contains("were not looked at"), "{found}");
    if !has_two_cpus() {
        return;
    }
    let (code, found) = check("", &[]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found.contains("would start"), "{found}");
}

#[test]
fn a_check_leaves_an_iokernel_that_runs_as_it_is_and_says_whether_it_would_take_over() {
    if !has_two_cpus() {
        return;
    }
    let socket = socket_name("check-beside");
    let mut running = iokernel(&socket, &[]);
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/busy.toml");
    let check = |words: &[&str]| {
        let own = ["iokernel", "--check", "--share-cores", "--socket", &socket];
        let output = run(&[&own[..], words].concat());
        (output.status.code(), text(&output.stdout))
    };
    let (code, found) = check(&["--config", settings]);
    assert_eq!(code, Some(1), "{found}");
    let process = format!("process {}", running.pid());
    assert!(found.contains("refused  control socket") && found.contains(&process), "{found}");
    let (code, found) = check(&["--config", settings, "--takeover"]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found.contains("would take over"), "{found}");
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.toml");
    std::fs::write(&other, "network = \"10.88.0.0\"").unwrap();
    let (code, found) = check(&["--config", other.to_str().unwrap(), "--takeover"]);
    assert_eq!(code, Some(1), "{found}");
    assert!(found.contains("would not take over") && found.contains("same network"), "{found}");
    assert!(running.is_running() && stats(&socket).is_some());
}

#[test]
fn help_that_cannot_be_printed_and_a_stack_that_is_too_small_are_errors_in_words() {
    for words in [&["--help"][..], &["iokernel", "--help"], &["--version"], &["iokernel", "--print-config"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut command = tailwater(words);
        command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
        let output = Program::spawn(&mut command).finish();
        assert!(!output.status.success(), "{words:?}");
        assert!(text(&output.stderr).contains("No space left"), "{words:?}: {}", text(&output.stderr));
    }
    // The environment is on the stack, too.
    let mut shell = Command::new("sh");
    shell.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    shell.args(["-c", "ulimit -s 64 && exec \"$0\" --help", env!("CARGO_BIN_EXE_tailwater")]);
    let output = tailwater_testkit::run(&mut shell, b"");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("64 KiB") && said.contains("ulimit -s 8192"), "{said}");
}

#[test]
fn without_proc_an_iokernel_and_its_check_end_with_the_remedy() {
    if !is_installed("unshare", "util-linux") {
        return;
    }
    let without = |script: &str, words: &[&str]| {
        let mut command = Command::new("unshare");
        let script = format!("umount -l /proc && {script}");
        command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_tailwater")]).args(words);
        tailwater_testkit::run(&mut command, b"")
    };
    if !without("test ! -e /proc/self", &[]).status.success() {
        return eprintln!("skipped: /proc cannot be taken away here (root, unshare(1), umount(8))");
    }
    let socket = socket_name("no-proc");
    let words = ["iokernel", "--share-cores", "--socket", &socket];
    for more in [&[][..], &["--check"]] {
        let output = without("exec \"$0\" \"$@\"", &[&words[..], more].concat());
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success(), "{more:?}: {said}");
        assert!(said.contains("/proc is not mounted") && said.contains("mount -t proc"), "{more:?}: {said}");
        assert_eq!(said.matches("/proc is not mounted").count(), 1, "{more:?}: {said}");
    }
}

#[test]
fn a_started_service_shows_in_the_statistics_and_everything_ends_when_told() {
    let socket = socket_name("commands");
    let iokernel = iokernel(&socket, &[]);
    let exe = env!("CARGO_BIN_EXE_tailwater");
    let run_it = ["run", "--iokernel", &socket, "--name", "spin-under-test", "--kthreads", "1", "--", exe];
    let mut service = Program::start(tailwater(&run_it).args(["app", "spin", "--listen", "0.0.0.0:5000"]));
    service.line_with("listening on ");
    let ask = |words: &[&str]| succeeds(&[&["stats", "--iokernel", &socket], words].concat());
    let Some(shown) = ask(&[]) else { return };
    let shown = text(&shown.stdout);
    assert!(shown.contains("spin-under-test") && shown.contains("latency-critical"), "{shown}");
    let json = eventually("the IOKernel answers", || stats(&socket));
    assert_eq!(json["runtimes"][0]["name"], "spin-under-test");
    let Some(account) = ask(&["--account"]) else { return };
    let account = text(&account.stdout);
    assert!(account.contains("service") && account.contains("sampled parts"), "{account}");
    let by_ticks = account.lines().find(|line| line.starts_with("kernel by clock ticks: "));
    if let Some(why) = by_ticks {
        eprintln!("skipped the account by tracepoints: {why}");
    }
    let traced = by_ticks.is_none();
    let Some(account) = ask(&["--account", "--json"]) else { return };
    let account: serde_json::Value = serde_json::from_slice(&account.stdout).unwrap();
    assert_eq!(
        (account["takers"].is_array(), account["takers_unknown_because"].is_string()),
        (traced, !traced)
    );
    for shares in account["cores"].as_array().unwrap() {
        let parts = shares.as_object().unwrap().iter();
        let parts = parts.filter(|(name, _)| *name != "core" && *name != "sampling_error");
        let sum: f64 = parts.map(|(_, share)| share.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{shares}");
        assert_eq!(shares["other"].is_number(), traced, "{shares}");
    }
    for program in [service, iokernel] {
        program.signal(Signal::TERM);
        let output = program.finish();
        assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    }
}

/// `tailwater app spin`, started by `tailwater run` with these words.
fn spin(words: &[&str]) -> Command {
    let mut command = tailwater(&["run"]);
    command.args(words).args(["--", env!("CARGO_BIN_EXE_tailwater"), "app", "spin"]);
    command
}

#[test]
fn a_log_that_is_no_terminals_has_neither_colours_nor_debug_forms_and_json_is_json() {
    for format in ["text", "json"] {
        let socket = socket_name("log");
        let words = ["iokernel", "--share-cores", "--socket", &socket, "--log-format", format];
        let mut iokernel = Program::start(&mut tailwater(&words));
        until("the IOKernel answers", || stats(&socket).is_some());
        let capture = ["capture", "--iokernel", &socket, "-w", "-", "--through", "eth0", "--duration", "1s"];
        if fails_with(&capture, &["the ports are: "]).is_none() {
            return;
        }
        let capture = ["capture", "--iokernel", &socket, "-w", "-", "--program", "spin", "--duration", "1s"];
        if succeeds(&capture).is_none() {
            return;
        }
        let _service = Program::start(&mut spin(&["--iokernel", &socket, "--name", "spin"]));
        let last = iokernel.error_line_with("registered");
        let log = iokernel.errors();
        assert!(!log.contains(['\x1b']) && !log.contains("Some(") && !log.contains("None"), "{log}");
        assert!(log.contains("a capture begins") && log.contains("refused a capture"), "{log}");
        if format == "json" {
            let last: serde_json::Value = serde_json::from_str(&last).unwrap();
            assert_eq!((&last["level"], &last["name"]), (&"INFO".into(), &"spin".into()), "{last}");
        } else {
            assert!(last.contains(" INFO registered id=") && last.contains(" name=spin ip=10.77."), "{last}");
        }
    }
}

#[test]
fn the_first_line_of_the_log_says_what_other_programs_get() {
    if !has_two_cpus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let first_line = |settings: &str| {
        std::fs::write(&path, settings).unwrap();
        let words = ["iokernel", "--share-cores", "--log-format", "json", "--socket", &socket_name("ready")];
        let mut iokernel = Program::start(tailwater(&words).arg("--config").arg(&path));
        let line = iokernel.error_line().unwrap_or_default();
        let line: serde_json::Value = serde_json::from_str(&line).expect(&line);
        assert_eq!(line["message"], "ready", "{line}");
        line["other_programs_get"].as_str().expect("words").to_owned()
    };
    // A grant is warned of without root, after this line.
    let shared = first_line("neighbour-share = 7\npriority = \"none\"\n[[grant]]\nusers = \"*\"");
    assert!(shared.contains("7 %") && shared.contains("priority = \"none\""), "{shared}");
    let dedicated = first_line("neighbour-share = 0\npriority = \"none\"");
    assert!(dedicated.starts_with("what is left: ") && !dedicated.contains("real-time"), "{dedicated}");
}

#[test]
fn a_program_that_does_not_register_is_named_after_a_second() {
    let socket = socket_name("unmanaged");
    let words = ["run", "--iokernel", &socket, "--class", "best-effort", "--", "sleep", "1000"];
    let warning = "sleep (process ";
    let mut alone = Program::start(&mut tailwater(&words));
    alone.error_line_with(warning);
    let errors = alone.errors();
    assert!(errors.contains("start one with") && errors.contains(&socket), "{errors}");
    let _iokernel = iokernel(&socket, &[]);
    unless_too_busy(|| {
        let mut beside = Program::start(&mut tailwater(&words));
        beside.error_line_with(warning);
        let errors = beside.errors();
        if !errors.contains("has not heard of it") {
            return Err(errors);
        }
        assert!(errors.contains(&socket), "{errors}");
        assert!(errors.contains(&format!("(process {})", beside.pid())), "{errors}");
        // It has left the lent cores, unless these are all that it may use.
        assert!(errors.contains("kept off the managed cores") || errors.contains("on cores"), "{errors}");
        Ok(())
    });
}

/// Processes of which one argument is `word`, without the holder of an IOKernel's memory, whose
/// command line is the IOKernel's.
fn with_argument(word: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let is_holder = |path: &std::path::PathBuf| {
        std::fs::read(path.join("comm")).is_ok_and(|name| name == b"tailwater-hold\n")
    };
    let programs = processes.filter(|path| !is_holder(path));
    let lines = programs.filter_map(|path| std::fs::read(path.join("cmdline")).ok());
    lines.filter(|line| line.split(|&byte| byte == 0).any(|argument| argument == word.as_bytes())).count()
}

#[test]
fn a_program_that_registers_is_not_warned_of_and_has_no_children_of_tailwater_run() {
    let socket = socket_name("managed");
    let _iokernel = iokernel(&socket, &[]);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let start = Instant::now();
        let mut service = Program::start(&mut spin(&["--iokernel", &socket, "--kthreads", "1"]));
        service.line_with("listening on ");
        let in_time = start.elapsed() < Duration::from_secs(1);
        assert!(children(service.pid()).is_empty(), "the watch is no child of the program's");
        // The arguments of the watch contain the socket, as do the IOKernel's.
        until("the watch has ended", || with_argument(&socket) == 1);
        service.signal(Signal::KILL);
        let errors = text(&service.finish().stderr);
        if in_time {
            return assert_eq!(errors, "");
        }
    }
    eprintln!("skipped: this machine is too busy for a program to register within a second");
}

#[test]
fn a_program_started_before_its_iokernel_listens_waits_for_it_with_one_note() {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let socket = socket_name("late");
        let start = Instant::now();
        let mut service = Program::start(&mut spin(&["--iokernel", &socket, "--kthreads", "1"]));
        service.error_line_with("no IOKernel listens at");
        let _iokernel = iokernel(&socket, &[]);
        if start.elapsed() < Duration::from_secs(1) {
            service.line_with("listening on ");
            let errors = service.errors();
            return assert_eq!(errors.matches("no IOKernel listens at").count(), 1, "{errors}");
        }
    }
    eprintln!("skipped: this machine is too busy for an IOKernel to listen within a second");
}

#[test]
fn a_program_that_is_not_there_is_said_to_be_missing_and_where() {
    let output = run(&["run", "--", "no-such-service"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    let beside =
        std::path::Path::new(env!("CARGO_BIN_EXE_tailwater")).parent().unwrap().display().to_string();
    assert!(message.contains("no program no-such-service") && message.contains(&beside), "{message}");
}

#[test]
fn a_reader_that_closes_the_output_ends_a_command_without_a_message() {
    for words in [
        &["doctor"][..],
        &["doctor", "--json"],
        &["iokernel", "--print-config"],
        &["demo", "--quick"],
        &["load", "--agent", "127.0.0.1:0"],
    ] {
        // Unlike the closed end of a pipe, this holds for copies that a program started by a
        // parallel test may have inherited.
        let (reader, writer) = UnixStream::pair().unwrap();
        reader.shutdown(std::net::Shutdown::Both).unwrap();
        let mut command = tailwater(words);
        let command = command.stdin(Stdio::null()).stdout(OwnedFd::from(writer)).stderr(Stdio::piped());
        let output = Program::spawn(command).finish();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), String::new()), "{words:?}");
    }
}

#[test]
fn the_doctor_puts_back_what_a_killed_iokernel_has_left_and_names_what_it_cannot_use() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let text_of_config =
        format!("[reserve]\nstate-file = {:?}\n[ix]\nstate-file = {:?}\n", file("cpusets"), file("clocks"));
    std::fs::write(file("config.toml"), text_of_config).unwrap();
    let config = file("config.toml").display().to_string();
    let repaired = run(&["doctor", "--repair", "--config", &config]);
    let nothing = ["cpusets: nothing", "clock settings: nothing"];
    let said = text(&repaired.stdout);
    assert!(nothing.iter().all(|part| said.contains(part)), "{said}");
    // None of these files is a cpuset.
    std::fs::write(file("cpusets"), r#"[{"file":"/etc/passwd","before":"","written":[]}]"#).unwrap();
    let refused = run(&["doctor", "--repair", "--config", &config]);
    let message = text(&refused.stderr);
    assert!(
        !refused.status.success() && message.contains("names /etc/passwd, none of the cpusets"),
        "{message}"
    );
    // The control group is gone.
    let gone = r#"[{"file":"/sys/fs/cgroup/tailwater-absent/cpuset.cpus","before":"0","written":["1"]}]"#;
    std::fs::write(file("cpusets"), gone).unwrap();
    let repaired = text(&run(&["doctor", "--repair", "--config", &config]).stdout);
    assert!(repaired.contains("cpusets: 0 put back") && repaired.contains("0 failed"), "{repaired}");
    std::fs::write(file("cpusets"), "garbage").unwrap();
    let refused = run(&["doctor", "--repair", "--config", &config]);
    let (message, done) = (text(&refused.stderr), text(&refused.stdout));
    assert!(!refused.status.success() && message.contains("cpusets: cannot use "), "{message}");
    assert!(done.contains(nothing[1]) && !done.contains("cpusets"), "{done}");
}

#[test]
fn the_doctor_says_what_others_get_beside_the_iokernel_of_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    let config = path.display().to_string();
    let others = |settings: &str| {
        std::fs::write(&path, settings).unwrap();
        let shown = text(&run(&["doctor", "--config", &config]).stdout);
        shown.lines().find(|line| line.contains("other programs: ")).expect("a line").to_owned()
    };
    let shared = others("neighbour-share = 7");
    assert!(shared.contains("7 %") || shared.starts_with("caution"), "{shared}");
    let dedicated = others("neighbour-share = 0\npriority = \"none\"");
    assert!(!dedicated.contains('%') && !dedicated.contains("real-time"), "{dedicated}");
    if has_two_cpus() {
        let ordinary = others("priority = \"none\"");
        assert!(ordinary.starts_with("caution") && ordinary.contains("no real-time rank, as"), "{ordinary}");
        // Which reason comes first depends on the rights of this process.
        let tap = others("[ports]\ntap = \"tw0\"\nhost-ip = \"10.77.0.1\"");
        assert!(tap.starts_with("caution") && tap.contains("no real-time rank"), "{tap}");
    }
    // No machine has this core.
    assert!(others("core = 1023").starts_with("caution"), "{}", others("core = 1023"));
}

#[test]
fn the_doctor_names_every_part_in_words_and_in_json() {
    // What another test does meanwhile may make a part unusable for a moment.
    let (document, shown) = eventually("two looks that agree", || {
        let shown = text(&run(&["doctor"]).stdout);
        let document: serde_json::Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).unwrap();
        let mut pairs = document["parts"].as_array().unwrap().iter().zip(shown.lines());
        let agree = pairs.all(|(part, line)| line.starts_with(part["status"].as_str().unwrap()));
        agree.then_some((document, shown))
    });
    let parts = document["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["name"].as_str().unwrap()).collect();
    for name in [
        "cores",
        "wrfsbase",
        "CPU quota",
        "TAP (optional)",
        "AF_XDP (optional)",
        "locked memory",
        "cpusets (optional)",
        "hyperthreads",
        "other programs",
        "this user",
    ] {
        assert!(names.contains(&name) && shown.contains(&format!(" {name}: ")), "{name}: {shown}");
    }
    assert!(document["supported"].is_boolean() && document["machine"]["cpu_model"].is_string(), "{document}");
}

#[test]
fn a_server_on_tailwater_that_linux_does_not_reach_is_explained() {
    let output = run(&["load", "10.77.255.254:7", "--rate", "1k", "--wait", "100ms"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("--over tailwater") && message.contains("10.77.255.254"), "{message}");
}

#[test]
fn a_second_iokernel_on_the_same_cores_names_the_first_and_shares_them_only_if_told_to() {
    // Claims are by network namespace: in this one are only those of this test.
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if !has_two_cpus() {
        return;
    }
    let start = |words: &[&str]| {
        let socket = socket_name("claims");
        let mut iokernel =
            namespace.inside(|| Program::start(tailwater(&["iokernel", "--socket", &socket]).args(words)));
        (iokernel.error_line().unwrap_or_default(), iokernel)
    };
    let (line, first) = start(&[]);
    assert!(line.contains(" ready "), "{line}");
    let (line, mut second) = start(&[]);
    assert!(line.contains("is used by another IOKernel"), "{line}");
    assert!(line.contains(&format!("process {}:", first.pid())) && line.contains("--share-cores"), "{line}");
    until("the second ends", || !second.is_running());
    assert!(start(&["--share-cores"]).0.contains(" ready "));
    // However the first ends, its cores are free.
    drop(first);
    assert!(start(&[]).0.contains(" ready "));
}

#[test]
fn claims_on_cores_pass_in_a_takeover_and_those_of_others_prevent_it() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    if !has_two_cpus() {
        return;
    }
    let start = |socket: &str, words: &[&str]| {
        let mut iokernel =
            namespace.inside(|| Program::start(tailwater(&["iokernel", "--socket", socket]).args(words)));
        (iokernel.error_line().unwrap_or_default(), iokernel)
    };
    let (socket, other) = (socket_name("passed"), socket_name("other"));
    let (line, mut first) = start(&socket, &[]);
    assert!(line.contains(" ready "), "{line}");
    let (line, mut guest) = start(&other, &["--share-cores"]);
    assert!(line.contains(" ready "), "{line}");
    let (line, refused) = start(&other, &["--takeover"]);
    assert!(line.contains(&format!("used by another IOKernel, process {}:", first.pid())), "{line}");
    drop(refused);
    assert!(guest.is_running() && first.is_running());
    let (line, second) = start(&socket, &["--takeover"]);
    assert!(line.contains(" ready "), "{line}");
    assert!(first.wait().success(), "{}", first.errors());
    let owner = format!("used by another IOKernel, process {}:", second.pid());
    until("the cores are the second one's", || start(&socket_name("third"), &[]).0.contains(&owner));
    // A look at a claim does not use it up.
    for _ in 0..3 {
        let (line, _third) = start(&socket_name("third"), &[]);
        assert!(line.contains("is used by another IOKernel"), "{line}");
    }
}
