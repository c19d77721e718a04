//! Exclusive threads on cores of their own, and ordinary threads that are kept off these: real
//! control groups (version 2), which the tests make and remove.

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tailwater_iokernel::Config;
use tailwater_iokernel::config::PolicyName;
use tailwater_testkit::{Program, binary, cpu_numbers, has_cpus, run, socket_name, text, until};
use tailwater_tests::{Bench, Role, start_iokernel, turn};

/// Where Linux mounts control groups.
const ROOT: &str = "/sys/fs/cgroup";
const TWO_KTHREADS: (&str, &str) = ("TAILWATER_KTHREADS", "2");

/// Returns the cores to lend: one for the exclusive thread, one for others.
fn lent() -> Vec<u16> {
    let cpus = cpu_numbers();
    cpus[cpus.len() - 2..].to_vec()
}

fn lend_two(config: &mut Config) {
    config.policy = PolicyName::Arbiter;
    config.managed_cores = Some(lent());
}

/// Returns the core that an exclusive thread was granted, by the next line of its program.
fn core_of(alone: &mut Role) -> u16 {
    let line = alone.line().unwrap_or_default();
    line.strip_prefix("on ").and_then(|core| core.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// Ends the program of an exclusive thread, and checks that this ran on one core, alone.
fn check_end(mut alone: Role) {
    alone.close_input();
    let line = alone.line().unwrap_or_default();
    let looks = line.strip_prefix("moved 0 shared 0 looks ").and_then(|looks| looks.parse::<u64>().ok());
    assert!(looks.is_some_and(|looks| looks > 0), "{line}");
    assert!(alone.succeeded());
}

#[test]
fn an_exclusive_thread_has_the_core_that_it_is_granted_to_itself() {
    if !has_cpus(3) {
        return;
    }
    let bench = Bench::start(lend_two, vec![]);
    let mut alone = bench.child_with("alone", "alone", "latency-critical", &[TWO_KTHREADS]);
    let core = core_of(&mut alone);
    assert!(lent().contains(&core), "{core}");
    // Each wants a core: they get the other one in turn, whenever that is free.
    let mut batches = ["one", "other"].map(|name| bench.child("burn", name, "best-effort"));
    for _ in 0..5 {
        let held = batches.each_ref().map(|batch| bench.cores_of(batch));
        assert!(held.iter().sum::<u64>() <= 1, "the exclusive thread's core was lent: {:#}", bench.stats());
        assert!(batches[0].line().is_some_and(|line| line.starts_with("rounds ")));
    }
    check_end(alone);
    until("both batch jobs have a core", || batches.iter().all(|batch| bench.cores_of(batch) == 1));
}

/// A control group with an ordinary process.
pub(super) struct Group {
    name: String,
    folder: PathBuf,
    process: Option<Program>,
    /// The groups at its level had no cpusets before.
    enabled: bool,
}

impl Group {
    /// Makes a group whose cpuset is `cpus`, or prints why the test is skipped.
    pub(super) fn make(cpus: &str) -> Option<Self> {
        let skipped = |why: &str| eprintln!("skipped: {why}");
        if !has_cpus(3) {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skipped("needs root to change cpusets");
            return None;
        }
        if let Err(why) = tailwater_host::cpusets() {
            skipped(&why);
            return None;
        }
        let root = Path::new(ROOT);
        let list = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
        let has_cpusets = |file| list(file).split_whitespace().any(|controller| controller == "cpuset");
        if !has_cpusets("cgroup.controllers") {
            skipped("no control groups of version 2 with cpusets at /sys/fs/cgroup");
            return None;
        }
        let enabled = !has_cpusets("cgroup.subtree_control");
        if enabled && let Err(error) = fs::write(root.join("cgroup.subtree_control"), "+cpuset") {
            skipped(&format!("cpusets cannot be enabled: {error}"));
            return None;
        }
        let name = format!("/tailwater-test-{}", std::process::id());
        let folder = root.join(&name[1..]);
        let mut group = Self { name, folder, process: None, enabled };
        fs::create_dir(&group.folder).expect("a control group");
        group.confine(cpus);
        let process = Program::start(Command::new("sleep").arg("100000"));
        group.add(process.pid());
        group.process = Some(process);
        Some(group)
    }

    /// Moves a process into it.
    pub(super) fn add(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("it joins");
    }

    /// Gives it another cpuset.
    pub(super) fn confine(&self, cpus: &str) {
        fs::write(self.folder.join("cpuset.cpus"), format!("{cpus}\n")).expect("a cpuset");
    }

    /// Returns its cpuset as it is set, and the CPUs that its threads have by it.
    pub(super) fn cpus(&self) -> (String, String) {
        let read = |name| fs::read_to_string(self.folder.join(name)).expect("a cpuset").trim().to_owned();
        (read("cpuset.cpus"), read("cpuset.cpus.effective"))
    }

    /// Returns whether its process may use a core.
    fn may_use(&self, core: u16) -> bool {
        let pid = self.process.as_ref().and_then(|process| Pid::from_raw(process.pid().cast_signed()));
        sched_getaffinity(pid).expect("it runs").is_set(core.into())
    }

    /// Waits until everything is as it was when [`cpus`](Self::cpus) returned `before`. In place of
    /// no cpuset, which Linux refuses for a group with processes, it may have one of all cores.
    fn await_open(&self, before: &(String, String)) {
        let possible = fs::read_to_string("/sys/devices/system/cpu/possible").expect("a list of cores");
        until("all is as before", || {
            let (cpus, effective) = self.cpus();
            let is_set = cpus == before.0 || (before.0.is_empty() && cpus == possible.trim());
            is_set && effective == before.1 && lent().iter().all(|&core| self.may_use(core))
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.process.take());
        let removed = fs::remove_dir(&self.folder);
        if self.enabled {
            let _ = fs::write(Path::new(ROOT).join("cgroup.subtree_control"), "-cpuset");
        }
        assert!(std::thread::panicking() || removed.is_ok(), "{}: {removed:?}", self.name);
    }
}

#[test]
fn ordinary_threads_are_kept_off_while_the_exclusive_thread_runs_and_until_the_iokernel_ends() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let state_file = folder.path().join("cpusets");
    let Some(group) = Group::make("") else { return };
    let before = group.cpus();
    let mut bench = Bench::start_beside(
        |config| {
            lend_two(config);
            config.reserve.keep_off = vec![group.name.clone()];
            config.reserve.state_file.clone_from(&state_file);
        },
        vec![],
    );
    let reserved = || bench.stats()["cores"]["reserved"].as_u64();
    assert_eq!(reserved(), Some(0));
    let mut alone = bench.child_with("alone", "first", "latency-critical", &[TWO_KTHREADS]);
    let core = core_of(&mut alone);
    until(&format!("ordinary threads are kept off core {core}"), || !group.may_use(core));
    assert_eq!(reserved(), Some(1));
    // The other core is lent by load, and stays open.
    assert!(lent().iter().all(|&lent| lent == core || group.may_use(lent)), "{:?}", group.cpus());
    check_end(alone);
    group.await_open(&before);
    let mut alone = bench.child_with("alone", "second", "latency-critical", &[TWO_KTHREADS]);
    let core = core_of(&mut alone);
    until(&format!("ordinary threads are kept off core {core}"), || !group.may_use(core));
    bench.stop();
    group.await_open(&before);
    assert!(!state_file.exists());
}

/// Starts an IOKernel that lends two cores, with these further settings.
fn iokernel(socket: &str, settings: &[String]) -> Program {
    let cores: Vec<String> = lent().iter().map(|core| format!("core={core}")).collect();
    let settings: Vec<&str> =
        ["arbiter"].into_iter().chain(cores.iter().chain(settings).map(String::as_str)).collect();
    start_iokernel(socket, &settings)
}

/// Has an IOKernel keep the group's threads off a core, and kills it; checks that they still are.
fn leave_limited(group: &Group, state_file: &Path) {
    let socket = socket_name("exclusive");
    let settings = [format!("keep-off={}", group.name), format!("state-file={}", state_file.display())];
    let mut iokernel = iokernel(&socket, &settings);
    let mut alone = Role::start(&socket, "alone", "alone", &[TWO_KTHREADS]);
    let core = core_of(&mut alone);
    until(&format!("ordinary threads are kept off core {core}"), || !group.may_use(core));
    iokernel.kill();
    alone.kill();
    assert!(!group.may_use(core) && state_file.exists(), "{:?}", group.cpus());
}

#[test]
fn what_a_killed_iokernel_has_left_is_put_back_by_the_next_one_and_by_the_doctor() {
    let _turn = turn();
    let folder = tempfile::tempdir().expect("a folder");
    let state_file = folder.path().join("cpusets");
    let all: Vec<String> = cpu_numbers().iter().map(u16::to_string).collect();
    // A group that has all cores by those above, and one with cores of its own.
    for of_group in ["", &all.join(",")] {
        let Some(group) = Group::make(of_group) else { return };
        let before = group.cpus();
        leave_limited(&group, &state_file);
        // Whatever its own settings are.
        let state = format!("state-file={}", state_file.display());
        let next = iokernel(&socket_name("exclusive"), &[state]);
        group.await_open(&before);
        // Removed after the cpusets are put back.
        until("the record is gone", || !state_file.exists());
        drop(next);

        leave_limited(&group, &state_file);
        let config = folder.path().join("config.toml");
        let text_of = format!("[reserve]\nstate-file = {state_file:?}\n");
        fs::write(&config, text_of).expect("a configuration");
        let mut doctor = Command::new(binary("tailwater-cli", "tailwater"));
        let output = run(doctor.args(["doctor", "--repair", "--config"]).arg(&config), b"");
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && shown.contains("cpusets"), "{shown}");
        group.await_open(&before);
        assert!(!state_file.exists(), "{shown}");
    }
}
