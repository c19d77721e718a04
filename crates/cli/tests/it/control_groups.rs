//! `tailwater run --batch --pid` and `--cgroup`: real control groups of the version that the
//! machine has, which the tests make and remove. `.ci/full machine` runs them with version 2.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};
use rustix::thread::sched_getaffinity;
use serde_json::Value;
use tailwater_testkit::{Program, is_installed, run as run_command, socket_name, text, until};

use crate::batch::{guarded, lent, pid};
use crate::common::{fails_with, iokernel, run, stats, tailwater};

/// Where Linux mounts control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Returns whether they are of version 2.
fn is_second() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// Returns the mount points: in version 1 each controller has one.
fn points() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if is_second() { vec![root.to_owned()] } else { vec![root.join("cpu"), root.join("cpuset")] }
}

/// Returns the folders of a group.
fn folders(name: &str) -> Vec<PathBuf> {
    points().iter().map(|point| point.join(&name[1..])).collect()
}

/// Prints why the test `test` of control groups is skipped, if it is.
fn has_groups(test: &str) -> bool {
    let controllers = fs::read_to_string(Path::new(ROOT).join("cgroup.subtree_control")).unwrap_or_default();
    let has = |controller: &str| controllers.split_whitespace().any(|one| one == controller);
    let is_one = points().iter().all(|point| point.join("tasks").exists());
    // A container may have them read-only. The name is no batch job's, which a repair would remove.
    let probe = points()[0].join(format!("tailwater-probe-{test}-{}", std::process::id()));
    let why = match (geteuid().is_root(), (has("cpu") && has("cpuset")) || is_one) {
        (false, _) => "needs root to change control groups".to_owned(),
        (_, false) => "no control groups with the controllers cpu and cpuset".to_owned(),
        _ => match fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
            Ok(()) => return true,
            Err(error) => format!("cannot make the control group {}: {error}", probe.display()),
        },
    };
    eprintln!("skipped: {why}");
    false
}

/// Returns the groups of a process by controller.
fn groups(process: i32) -> HashSet<String> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Returns whether a process may use these cores and no other.
fn is_on(process: i32, cores: &[usize]) -> bool {
    let set = sched_getaffinity(Some(pid(process))).unwrap();
    (0..1_024).all(|core| set.is_set(core) == cores.contains(&core))
}

/// A control group, removed at the end; in version 1 one for each controller.
struct Group {
    /// As `/proc/PID/cgroup` has it.
    name: String,
    folders: Vec<PathBuf>,
}

impl Group {
    /// Makes one for a test.
    fn make(name: &str) -> Self {
        Self::at(format!("/tailwater-batch-test-{name}-{}.slice", std::process::id()))
    }

    /// Makes one in this one. In version 2 this one takes no process then if the machine has the
    /// memory controller, and in any case once the inner one has a process.
    fn within(&self, name: &str) -> Self {
        for controller in ["+cpu", "+cpuset", "+memory", "+pids"] {
            for folder in &self.folders {
                // Version 1 has no such file.
                let _ = fs::write(folder.join("cgroup.subtree_control"), controller);
            }
        }
        Self::at(format!("{}/{name}", self.name))
    }

    fn at(name: String) -> Self {
        // Its end removes what was made before a panic.
        let group = Self { folders: folders(&name), name };
        group.create();
        group
    }

    fn create(&self) {
        for folder in &self.folders {
            fs::create_dir(folder).unwrap();
            // In version 1 it takes no process without.
            for file in ["cpuset.mems", "cpuset.cpus"].into_iter().filter(|_| !is_second()) {
                if let Ok(all) = fs::read_to_string(folder.with_file_name(file)) {
                    fs::write(folder.join(file), all).unwrap();
                }
            }
        }
    }

    /// Returns the file of this name.
    fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|path| path.exists())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name).unwrap()).unwrap().trim().to_owned()
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(self.file(name).unwrap(), value).unwrap();
    }

    /// Moves a process there.
    fn take(&self, process: i32) {
        self.folders.iter().for_each(|folder| {
            fs::write(folder.join("cgroup.procs"), process.to_string()).unwrap();
        });
    }

    /// Starts a process there.
    fn sleeper(&self) -> Program {
        let process = Program::start(Command::new("sleep").arg("1000"));
        self.take(process.pid().cast_signed());
        process
    }

    /// Returns whether a process is there.
    fn has(&self, process: i32) -> bool {
        let number = process.to_string();
        let lists = self.folders.iter().map(|folder| fs::read_to_string(folder.join("cgroup.procs")));
        lists.into_iter().all(|list| list.is_ok_and(|list| list.lines().any(|line| line == number)))
    }

    /// Returns a file of the record that a supervisor keeps of the group.
    fn record(&self, end: &str) -> PathBuf {
        let name = self.name[1..].replace('/', "+");
        PathBuf::from(format!("/run/tailwater-batch-{name}{end}"))
    }

    fn remove(&self) {
        for folder in &self.folders {
            until("the group is removed", || fs::remove_dir(folder).is_ok() || !folder.exists());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
        // A supervisor leaves the lock of a group's record. No other group has this name.
        let _ = fs::remove_file(self.record(".json.lock"));
    }
}

/// Starts `run --batch` for something that exists: `--pid` or `--cgroup`, and what.
fn hold(socket: &str, what: [&str; 2]) -> Program {
    Program::start(tailwater(&["run", "--batch", "--iokernel", socket]).args(what))
}

/// As [`hold`], until a process is on the lent cores.
fn hold_process(socket: &str, process: i32) -> Program {
    let holder = hold(socket, ["--pid", &process.to_string()]);
    let (before, lent) = (groups(std::process::id().cast_signed()), lent(socket));
    until("it is in a group of its own", || groups(process) != before && is_on(process, &lent));
    holder
}

/// Returns the name of the group that a process has for itself.
fn scope_of(process: i32) -> String {
    let line = groups(process).into_iter().find(|line| line.contains(".tailwater-batch-")).unwrap();
    line.splitn(3, ':').last().unwrap().to_owned()
}

/// Returns what a job got, by one of its fields, once its supervisor answers.
fn listed(socket: &str, field: &str, value: &Value) -> Option<Value> {
    let jobs = stats(socket)?["batch_jobs"].as_array()?.clone();
    Some(jobs.iter().find(|job| job[field] == *value)?["usage"].clone())
}

/// Ends a supervisor by a signal.
fn end(mut holder: Program) {
    holder.signal(Signal::TERM);
    assert!(holder.wait().success());
}

#[test]
fn a_running_process_is_a_batch_job_until_the_supervisor_ends_or_a_repair() {
    if !has_groups("pid") {
        return;
    }
    let socket = socket_name("batch-pid");
    let _iokernel = iokernel(&socket, &[]);
    let mut shell = Program::start(Command::new("sh").args(["-c", "sleep 1000 & echo child $!; wait"]));
    let (child, _child) = guarded(&mut shell, "child ");
    let number = shell.pid().cast_signed();
    let before = (groups(number), sched_getaffinity(Some(pid(number))).unwrap());
    let lent = lent(&socket);
    let is_in = |process| groups(process) != before.0 && is_on(process, &lent);
    let is_back =
        |process| groups(process) == before.0 && sched_getaffinity(Some(pid(process))).unwrap() == before.1;
    let words = ["--pid", &number.to_string()];
    let holder = hold(&socket, words);
    until("both are in the group", || is_in(number) && is_in(child));
    end(holder);
    assert!(is_back(number) && is_back(child));
    let mut holder = hold(&socket, words);
    until("both are in the group", || is_in(number) && is_in(child));
    holder.kill();
    run(&["doctor", "--repair"]);
    // The repair of another test may be the one that does it, and has not finished.
    until("both are back", || is_back(number) && is_back(child));
}

#[test]
fn a_control_group_is_a_batch_job_until_the_supervisor_ends_or_a_repair() {
    if !has_groups("group") {
        return;
    }
    let socket = socket_name("batch-group");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("group");
    let _process = group.sleeper();
    // A weight of its own, which Linux forgets when the group is no longer idle.
    let weight = ["cpu.weight", "cpu.shares"].into_iter().find(|name| group.file(name).is_some()).unwrap();
    group.set(weight, "512");
    // Linux takes no list of cores away from a group with processes: it has all afterwards.
    let cores = if is_second() { "cpuset.cpus.effective" } else { "cpuset.cpus" };
    let settings = || [weight, "cpu.idle", cores].map(|file| group.read(file));
    let before = settings();
    let words = ["run", "--batch", "--iokernel", &socket, "--cgroup", &group.name];
    let holder = hold(&socket, ["--cgroup", &group.name]);
    until("the group is a batch job", || group.read("cpu.idle") == "1");
    fails_with(&words, &["already"]);
    end(holder);
    assert_eq!(settings(), before);
    let mut holder = hold(&socket, ["--cgroup", &group.name]);
    until("the group is a batch job", || group.read("cpu.idle") == "1");
    holder.kill();
    run(&["doctor", "--repair"]);
    // The repair of another test may be the one that does it, and has not finished.
    until("the settings are as before", || settings() == before);
}

#[test]
fn a_process_takes_the_limits_of_its_group_along() {
    if !has_groups("limits") {
        return;
    }
    let socket = socket_name("batch-limits");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("limits");
    let limits = [
        ("cpu.max", "50000 100000"),
        ("memory.max", "1073741824"),
        ("memory.high", "1073741824"),
        ("pids.max", "77"),
        ("cpu.cfs_quota_us", "50000"),
    ];
    let limits: Vec<_> = limits.into_iter().filter(|(name, _)| group.file(name).is_some()).collect();
    assert!(!limits.is_empty());
    limits.iter().for_each(|(name, limit)| group.set(name, limit));
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let holder = hold_process(&socket, number);
    let scope = scope_of(number);
    assert!(scope.starts_with(&group.name), "{scope}");
    let scope = folders(&scope);
    for (name, limit) in limits {
        let file = scope.iter().map(|folder| folder.join(name)).find(|file| file.exists());
        assert_eq!(fs::read_to_string(file.unwrap()).unwrap().trim(), limit, "{name}");
    }
    end(holder);
    assert!(group.has(number));
    assert!(scope.iter().all(|folder| !folder.exists()));
}

#[test]
fn what_may_use_none_of_the_lent_cores_is_refused_and_left_as_it_is() {
    if !has_groups("elsewhere") {
        return;
    }
    let socket = socket_name("batch-elsewhere");
    let _iokernel = iokernel(&socket, &[]);
    let lent = lent(&socket);
    let all = sched_getaffinity(None).unwrap();
    let other = (0..1_024).find(|core| all.is_set(*core) && !lent.contains(core)).expect("the IOKernel's");
    let around = Group::make("elsewhere");
    around.set("cpuset.cpus", &other.to_string());
    let group = around.within("inner");
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let settings = || (groups(number), group.read("cpu.idle"), group.read("cpuset.cpus"));
    let before = settings();
    for what in [["--pid", &number.to_string()], ["--cgroup", &group.name]] {
        fails_with(&[&["run", "--batch", "--iokernel", &socket], &what[..]].concat(), &["inner"]);
        assert_eq!(settings(), before, "{what:?}");
        assert!(is_on(number, &[other]));
    }
}

#[test]
fn processes_whose_group_was_removed_meanwhile_are_put_back_all_the_same() {
    if !has_groups("removed") {
        return;
    }
    let socket = socket_name("batch-removed");
    let _iokernel = iokernel(&socket, &[]);
    let around = Group::make("removed");
    let group = around.within("inner");
    if group.file("pids.max").is_some() {
        group.set("pids.max", "77");
    }
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let holder = hold_process(&socket, number);
    // As systemd does with one that has become empty.
    group.remove();
    end(holder);
    assert!(group.file("pids.max").is_none() || group.read("pids.max") == "77", "its limits hold");
    // In version 2 a group with groups takes no process.
    let back = if is_second() { &group } else { &around };
    assert!(back.has(number), "{:?}", groups(number));
    assert!(!is_on(number, &lent(&socket)));
    drop(process);
}

#[test]
fn a_process_whose_group_takes_none_any_more_is_put_back_within_it() {
    if !has_groups("crowded") {
        return;
    }
    let socket = socket_name("batch-crowded");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("crowded");
    let name = format!("{}/tailwater-returned", group.name);
    // Not made yet. Its end is behind that of the process.
    let leaf = Group { folders: folders(&name), name };
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let holder = hold_process(&socket, number);
    // As of a service that gives its processes groups of their own.
    let inner = group.within("inner");
    let _other = inner.sleeper();
    end(holder);
    let back = if is_second() { &leaf } else { &group };
    assert!(back.has(number), "{:?}", groups(number));
    assert!(!is_on(number, &lent(&socket)));
    drop(process);
}

#[test]
fn a_process_that_is_moved_elsewhere_stays_there_and_the_job_ends() {
    if !has_groups("moved") {
        return;
    }
    let socket = socket_name("batch-moved");
    let _iokernel = iokernel(&socket, &[]);
    let (group, other) = (Group::make("moved"), Group::make("moved-to"));
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let mut holder = hold_process(&socket, number);
    other.take(number);
    assert!(holder.wait().success(), "its last process has left");
    assert!(other.has(number) && !is_on(number, &lent(&socket)));
    drop(process);
}

#[test]
fn groups_that_a_job_makes_for_itself_end_with_it() {
    if !has_groups("nested") {
        return;
    }
    let socket = socket_name("batch-nested");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("nested");
    let process = group.sleeper();
    let number = process.pid().cast_signed();
    let holder = hold_process(&socket, number);
    let inner = Group::at(format!("{}/inner", scope_of(number)));
    inner.take(number);
    let usage = || listed(&socket, "pid", &number.into());
    until("its process is listed", || usage().is_some_and(|usage| usage["processes"] == 1));
    end(holder);
    assert!(group.has(number), "{:?}", groups(number));
    assert!(inner.folders.iter().all(|folder| !folder.exists()));
    drop(process);
}

#[test]
fn processes_of_groups_in_a_group_are_its_own() {
    if !has_groups("pod") {
        return;
    }
    let socket = socket_name("batch-pod");
    let _iokernel = iokernel(&socket, &[]);
    let pod = Group::make("pod");
    let container = pod.within("container");
    let mut burner = Program::start(Command::new("sh").args(["-c", "echo self $$; while :; do :; done"]));
    let (number, guard) = guarded(&mut burner, "self ");
    container.take(number);
    let lent = lent(&socket);
    if !is_second() {
        // There a group has the cores of those within it.
        container.set("cpuset.cpus", &lent[0].to_string());
    }
    let holder = hold(&socket, ["--cgroup", &pod.name]);
    let usage = || listed(&socket, "group", &pod.name.as_str().into());
    until("its time is told by core", || {
        usage().is_some_and(|usage| {
            usage["processes"] == 1 && usage["by_core_ns"].as_object().is_some_and(|cores| !cores.is_empty())
        })
    });
    assert!(is_on(number, &lent));
    end(holder);
    drop(guard);
}

#[test]
fn a_group_that_is_made_again_is_no_job() {
    if !has_groups("again") {
        return;
    }
    let socket = socket_name("batch-again");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("again");
    let mut holder = hold(&socket, ["--cgroup", &group.name]);
    until("the group is a batch job", || listed(&socket, "group", &group.name.as_str().into()).is_some());
    // As of a service that is started again, sooner than the supervisor looks.
    group.remove();
    group.create();
    assert!(holder.wait().success());
    assert_eq!(group.read("cpu.idle"), "0");
    assert!(!group.record(".json").exists(), "nothing is to be put back");
}

#[test]
fn a_process_of_a_container_is_no_job_but_its_group_is() {
    if !has_groups("container") {
        return;
    }
    if !is_second() {
        return eprintln!("skipped: a container's filter of devices is no control group's of version 1");
    }
    let socket = socket_name("batch-container");
    let _iokernel = iokernel(&socket, &[]);
    let group = Group::make("container");
    let enter = format!(
        "echo $$ > {}; exec unshare --cgroup sleep 1000",
        group.file("cgroup.procs").unwrap().display()
    );
    let process = Program::start(Command::new("sh").args(["-c", &enter]));
    let number = process.pid().cast_signed();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/cgroup")).unwrap();
    until("it has a namespace", || namespace(&number.to_string()) != namespace("self"));
    let words = ["run", "--batch", "--iokernel", &socket, "--pid", &number.to_string()];
    fails_with(&words, &["container", &format!("--cgroup {}", group.name)]);
    assert!(group.has(number));
    let holder = hold(&socket, ["--cgroup", &group.name]);
    let lent = lent(&socket);
    until("its group is a batch job", || is_on(number, &lent));
    end(holder);
    drop(process);
}

/// Runs a command as a user without rights; returns whether it succeeded and what it says.
fn of_user(words: &[&str]) -> (bool, String) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).args(words);
    let output = run_command(&mut command, b"");
    (output.status.success(), text(&output.stderr))
}

#[test]
fn a_user_to_whom_a_group_is_delegated_needs_root_and_its_groups_are_left_alone() {
    let program = env!("CARGO_BIN_EXE_tailwater");
    if !has_groups("user") || !is_installed("setpriv", "util-linux") {
        return;
    }
    if !of_user(&["test", "-x", program]).0 {
        return eprintln!("skipped: user 65534 is not there, or may not start {program}");
    }
    let socket = socket_name("batch-user");
    let _iokernel = iokernel(&socket, &[]);
    lent(&socket);
    let group = Group::make("user");
    for folder in &group.folders {
        for file in ["", "cgroup.procs", "cgroup.subtree_control"].map(|name| folder.join(name)) {
            let _ = std::os::unix::fs::chown(file, Some(65_534), Some(65_534));
        }
    }
    let process = group.sleeper();
    let number = process.pid().to_string();
    for (what, why) in [(["--pid", &number], "Run this as root"), (["--cgroup", &group.name], "needs root")] {
        let batch = [program, "run", "--batch", "--iokernel", &socket];
        let (succeeded, said) = of_user(&[&batch[..], &what[..]].concat());
        assert!(!succeeded && said.contains(why), "{what:?}: {said}");
    }
    // As that of a supervisor which has ended: what `repair` would give back and remove.
    let forged = group.folders[0].join("x.tailwater-batch-2147483647-1");
    assert_eq!(of_user(&["mkdir", &forged.to_string_lossy()]), (true, String::new()));
    run(&["doctor", "--repair"]);
    assert!(fs::remove_dir(forged).is_ok(), "it is there");
    drop(process);
}
