//! `tailwater run --batch`: any program as a batch job, and that nothing is left of one.
//! `control_groups` has those of processes and groups that exist.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use tailwater_testkit::{Program, eventually, socket_name, text, until};

use crate::common::{fails_with, iokernel, run, stats, tailwater};

/// Starts a shell command as a batch job.
fn job(socket: &str, script: &str) -> Program {
    Program::start(&mut tailwater(&["run", "--batch", "--iokernel", socket, "--", "sh", "-c", script]))
}

/// The cores that the IOKernel lends.
pub fn lent(socket: &str) -> Vec<usize> {
    let stats = eventually("the IOKernel answers", || stats(socket));
    let cores = stats["iokernel"]["managed_cores"].as_array().unwrap();
    cores.iter().map(|core| core.as_u64().unwrap() as usize).collect()
}

pub fn pid(number: i32) -> Pid {
    Pid::from_raw(number).expect("a process")
}

/// Kills a process that a job has started on drop, also if the test panics.
pub struct Guard(OwnedFd);

impl Guard {
    fn of(process: i32) -> Self {
        Self(pidfd_open(pid(process), PidfdFlags::empty()).expect("the process exists"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// Returns the number of the process that a program prints after `prefix`, and kills it at the end.
pub fn guarded(program: &mut Program, prefix: &str) -> (i32, Guard) {
    let process = program.line_after(prefix).parse().unwrap();
    (process, Guard::of(process))
}

/// Whether Linux lets this process change the weight of any session at once: it lets programs
/// without CAP_SYS_ADMIN (bit 21, capabilities(7)) change one in 100 ms, of all on the machine.
fn may_change_any_weight() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 21 != 0
}

/// Field of `/proc/PID/stat` by its number in the manual.
fn stat(process: i32, field: usize) -> String {
    tailwater_testkit::stat(process.cast_unsigned(), field).unwrap()
}

/// Whether a process is in the lowest rank, and its cores.
fn conditions(process: i32) -> (bool, Vec<usize>) {
    let set = sched_getaffinity(Some(pid(process))).unwrap();
    let cores = (0..1_024).filter(|&core| set.is_set(core)).collect();
    // Field 41 is the policy; a sandbox that refuses SCHED_IDLE leaves nice 19 (field 19).
    (stat(process, 41) == "5" || stat(process, 19) == "19", cores)
}

#[test]
fn a_program_and_its_children_run_in_the_lowest_rank_on_the_lent_cores() {
    let socket = socket_name("batch");
    let _iokernel = iokernel(&socket, &[]);
    let mut shell = job(&socket, "sleep 1000 & echo child $!; echo self $$; wait $!; exit 7");
    let (child, _child) = guarded(&mut shell, "child ");
    let (own, _own) = guarded(&mut shell, "self ");
    for process in [own, child] {
        assert_eq!(conditions(process), (true, lent(&socket)));
        assert_eq!(stat(process, 6), own.to_string(), "the session is its own");
    }
    match fs::read_to_string(format!("/proc/{own}/autogroup")) {
        Ok(weight) if may_change_any_weight() => assert!(weight.trim().ends_with("nice 19"), "{weight}"),
        Ok(weight) => eprintln!("not checked without CAP_SYS_ADMIN: the weight of the session, {weight}"),
        Err(error) => eprintln!("not checked: the weight of the session: {error}"),
    }
    kill_process(pid(child), Signal::TERM).unwrap();
    assert_eq!(shell.wait().code(), Some(7));
}

#[test]
fn a_daemon_that_chooses_cores_and_a_session_of_its_own_is_kept_under_the_conditions() {
    let socket = socket_name("batch-kept");
    let _iokernel = iokernel(&socket, &[]);
    // As a daemon: its parent ends, and it leads a session.
    let mut shell = job(&socket, "(setsid sleep 1000 & echo child $!) & wait");
    let (child, _child) = guarded(&mut shell, "child ");
    until("it leads a session", || stat(child, 6) == child.to_string());
    sched_setaffinity(Some(pid(child)), &sched_getaffinity(None).unwrap()).unwrap();
    let lent = lent(&socket);
    until("it is on the lent cores again", || conditions(child) == (true, lent.clone()));
    let weight = || fs::read_to_string(format!("/proc/{child}/autogroup"));
    if weight().is_ok() {
        until("its session has the lowest weight", || weight().unwrap().trim().ends_with("nice 19"));
    }
}

#[test]
fn a_job_in_a_pid_namespace_whose_proc_is_anothers_harms_no_stranger() {
    let around = ["--mount", "--pid", "--mount-proc", "--fork", "--kill-child"];
    if !Command::new("unshare").args(around).arg("true").status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: Linux makes no PID namespace for this user");
    }
    let socket = socket_name("batch-namespace");
    let _iokernel = iokernel(&socket, &[]);
    lent(&socket);
    // The outer namespace stands for the machine. In the inner one the supervisor is process 1,
    // which in `/proc` is the outer shell. The job outlasts two looks.
    let script = r#"
        setsid sleep 1000 & stranger=$!
        state() { cat /proc/$stranger/autogroup; grep Cpus_allowed_list /proc/$stranger/status; }
        until [ "$(cut -d ' ' -f 6 /proc/$stranger/stat)" = $stranger ]; do :; done
        before=$(state)
        unshare --pid --fork --kill-child "$0" run --batch --iokernel "$1" -- sleep 2.5 || exit
        # In the inner namespace process 1 runs, too.
        for way in "" --one-way; do
            inner="$0 run --batch --iokernel $1 --pid 1 $way 2>&1 | grep -q 'another PID namespace'"
            unshare --pid --fork --kill-child sh -c "$inner" || { echo "--pid $way is not refused"; exit 1; }
        done
        [ "$(state)" = "$before" ] || { echo "before: $before; after: $(state)"; exit 1; }
    "#;
    let mut machine = Command::new("unshare");
    machine.args(around).args(["sh", "-c", script, env!("CARGO_BIN_EXE_tailwater"), &socket]);
    let ended = machine.output().unwrap();
    assert!(ended.status.success(), "{}{}", text(&ended.stdout), text(&ended.stderr));
}

#[test]
fn signals_and_the_exit_status_are_passed_and_nothing_outlives_the_job() {
    let socket = socket_name("batch-signals");
    let _iokernel = iokernel(&socket, &[]);
    // The first process ends and leaves one behind, which the supervisor adopts.
    let mut shell = job(&socket, "sleep 1000 & echo child $!");
    let (child, _child) = guarded(&mut shell, "child ");
    until("it is adopted", || stat(child, 4) == shell.pid().to_string());
    shell.signal(Signal::TERM);
    assert_eq!(shell.wait().code(), Some(0), "the program's own status");
    assert!(!Path::new(&format!("/proc/{child}")).exists());
    let mut sleep = job(&socket, "echo self $$; exec sleep 1000");
    let _sleep = guarded(&mut sleep, "self ");
    sleep.signal(Signal::INT);
    assert_eq!(sleep.wait().code(), Some(128 + 2));
    let missing = run(&["run", "--batch", "--iokernel", &socket, "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("/no/such/program"), "{missing:?}");
}

#[test]
fn a_job_is_listed_with_what_it_got_until_its_end() {
    let socket = socket_name("batch-stats");
    let _iokernel = iokernel(&socket, &[]);
    let words = ["run", "--batch", "--name", "burner", "--iokernel", &socket, "--", "sh", "-c"];
    let mut burner = Program::start(tailwater(&words).arg("echo self $$; while :; do :; done"));
    let (process, guard) = guarded(&mut burner, "self ");
    let listed = |stats: &Value| stats["batch_jobs"].as_array().cloned().unwrap_or_default();
    let found = eventually("it has got processor time", || {
        let jobs = listed(&stats(&socket)?);
        jobs.into_iter().find(|job| job["usage"]["core_ns"].as_u64() > Some(0))
    });
    assert_eq!((&found["name"], &found["usage"]["threads"]), (&"burner".into(), &1.into()), "{found}");
    let shown = run(&["stats", "--iokernel", &socket]);
    assert!(text(&shown.stdout).contains("burner"), "{}", text(&shown.stdout));
    // The supervisor is killed: the job goes on under its conditions, and is not listed.
    assert_eq!(found["pid"], process);
    burner.kill();
    until("it is not listed", || stats(&socket).is_some_and(|stats| listed(&stats).is_empty()));
    assert!(conditions(process).0);
    drop(guard);
}

#[test]
fn an_iokernel_notices_a_job_that_computes_on_the_lent_cores() {
    let socket = socket_name("batch-noticed");
    // Other tests' have no neighbours.
    let words = ["iokernel", "--share-cores", "--socket", &socket, "--log", "warn"];
    let _iokernel = Program::start(&mut tailwater(&words));
    let count = || stats(&socket).map(|stats| stats["loop"]["batch_jobs"].as_u64().unwrap());
    until("the IOKernel answers", || count().is_some());
    let mut burner = job(&socket, "echo self $$; while :; do :; done");
    let _burner = guarded(&mut burner, "self ");
    until("the job is noticed", || count() > Some(0));
    burner.signal(Signal::TERM);
    assert_eq!(burner.wait().code(), Some(128 + 15));
}

#[test]
fn a_job_goes_on_when_the_iokernel_is_killed() {
    let socket = socket_name("batch-alone");
    let mut iokernel = iokernel(&socket, &[]);
    let words =
        ["run", "--batch", "--iokernel", &socket, "--", "sh", "-c", "echo self $$; read line; exit 5"];
    // It runs until its input ends, which `Program::start` would leave empty.
    let piped = || Stdio::piped();
    let mut shell = Program::spawn(tailwater(&words).stdin(piped()).stdout(piped()).stderr(piped()));
    let input = shell.take_input();
    let (own, _own) = guarded(&mut shell, "self ");
    let before = conditions(own);
    iokernel.kill();
    assert_eq!(conditions(own), before);
    drop(input);
    assert_eq!(shell.wait().code(), Some(5));
}

#[test]
fn what_cannot_be_a_batch_job_is_named() {
    let socket = socket_name("batch-refused");
    fails_with(&["run", "--batch", "--iokernel", &socket, "--", "true"], &["cores that an IOKernel lends"]);
    let _iokernel = iokernel(&socket, &[]);
    let batch = ["run", "--batch", "--iokernel", &socket];
    fails_with(&[&batch[..], &["--pid", "2147483647"]].concat(), &["no process 2147483647"]);
    fails_with(&[&batch[..], &["--cgroup", "/"]].concat(), &["no control group below the root"]);
    fails_with(&[&batch[..], &["--class", "best-effort", "--", "true"]].concat(), &["--class"]);
}

#[test]
fn a_running_process_can_be_lowered_for_good() {
    let socket = socket_name("batch-one-way");
    let _iokernel = iokernel(&socket, &[]);
    let sleep = Program::start(Command::new("sleep").arg("1000"));
    let number = sleep.pid().cast_signed();
    let lowered = run(&["run", "--batch", "--iokernel", &socket, "--pid", &number.to_string(), "--one-way"]);
    assert!(lowered.status.success(), "{lowered:?}");
    assert_eq!(conditions(number), (true, lent(&socket)));
}
