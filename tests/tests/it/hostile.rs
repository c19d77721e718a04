//! Programs that are registered and hostile: none stops the IOKernel or another program.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2, write};
use rustix::net::SendFlags;
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Signal, geteuid};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tailwater_iokernel_testing::attack::{Attack, Event};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};
use tailwater_shm::KthreadState;
use tailwater_shm::clock;
use tailwater_shm::control::{self, ClientMessage, ControlError, ServerMessage};
use tailwater_shm::layout::Region;
use tailwater_testkit::futex::Words;
use tailwater_testkit::{
    PATIENCE, Program, binary, children, cpu_numbers, eventually, has_two_cpus, is_installed, is_running,
    run, socket_name, text, until,
};
use tailwater_tests::attack::{Intruder, Offer, Target, as_user, dial};
use tailwater_tests::{Role, StopOnDrop, turn};

/// Users without rights.
const MALLORY: u32 = 65_533;
const BYSTANDER: u32 = 65_532;

#[test]
fn the_memory_of_a_killed_iokernel_outlives_its_descriptors_and_not_for_long() {
    if !has_two_cpus() {
        return;
    }
    let mut target = Target::start();
    let program = Role::start(&target.socket, "echo", "program", &[]);
    let name = |child: &u32| fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    let holder = eventually("the process that has its memory, too", || {
        children(target.program.pid()).into_iter().find(|child| name(child) == "tailwater-hold\n")
    });
    // So Linux closes those of the IOKernel at its end, whatever the memory takes.
    until("it has no descriptor but one of the process", || {
        let files = fs::read_dir(format!("/proc/{holder}/fd"));
        let mut targets = files.into_iter().flatten().flatten().map(|file| fs::read_link(file.path()));
        targets.all(|target| target.is_ok_and(|target| target.to_string_lossy().contains("pidfd")))
    });
    let region = |process: u32| {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.lines().filter(|line| line.contains("tailwater-region")).count()
    };
    assert_eq!((region(holder), region(target.program.pid())), (1, 1));
    target.program.kill();
    until("it has ended, too", || !is_running(holder));
    drop(program);
}

#[test]
fn a_doorbell_that_is_emptied_before_the_iokernel_looks_does_not_stop_it() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let intruder = target.admits("intruder");
    let bell = intruder.doorbell();
    // The flag belongs to the open file, which the IOKernel has as well.
    let flags = fcntl_getfl(bell).unwrap();
    fcntl_setfl(bell, flags - OFlags::NONBLOCK).unwrap();
    let sleeps = || target.stats()["loop"]["sleeps"].as_u64().expect("a number");
    for _ in 0..20 {
        for _ in 0..1_000 {
            write(bell, &1u64.to_ne_bytes()).unwrap();
            // Does not wait if the IOKernel was faster. An eventfd has no position: that of the
            // file.
            let _ = preadv2(bell, &mut [IoSliceMut::new(&mut [0; 8])], u64::MAX, ReadWriteFlags::NOWAIT);
        }
        // It ends each sleep by itself, after a tenth of a second.
        let enough = sleeps() + 2;
        until("it wakes and sleeps again", || sleeps() >= enough);
    }
    target.admits("newcomer");
}

#[test]
fn a_program_that_moves_all_sleepers_it_can_reach_stops_itself_only() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let offer = Offer::ask(&target.socket, &RawSpec::new("intruder").register).unwrap();
    let words: Vec<Words> = offer.files.iter().filter_map(Words::of).collect();
    let (region, _ends) = Region::attach(offer.map()).unwrap();
    let _intruder = offer.take().unwrap();
    let own = &region.kthread(0).parker;
    let began = Arc::new(AtomicU64::new(0));
    let honest = RawRuntime::start(&target.socket, &RawSpec::new("honest"), |_| {
        Box::new(Echo::watched(Arc::clone(&began)))
    })
    .unwrap();
    let parker = &honest.shared.region.kthread(0).parker;
    // Its region, and the board where there is one.
    let (mine, board) = words.split_first().unwrap();
    std::thread::scope(|scope| {
        let ticket = own.ticket();
        let sleeper = scope.spawn(move || own.wait(ticket, Some(PATIENCE)));
        until("the intruder's own kthread is moved", || mine.move_sleepers() > 0);
        own.wake_always();
        for _ in 0..20 {
            until("the honest kthread sleeps", || parker.is_asleep());
            for board in board.iter().filter(|_| parker.is_at_board()) {
                until("the honest kthread is moved off the board", || board.move_sleepers() > 0);
            }
            mine.move_sleepers();
            let before = clock::now();
            honest.submit(0);
            until("the honest kthread runs", || began.load(Ordering::Relaxed) > before);
        }
        assert!(!sleeper.is_finished(), "a wake found the kthread that was moved away");
        words.iter().for_each(Words::free_sleepers);
        sleeper.join().unwrap();
    });
    let stats = target.stats();
    let runtimes = stats["runtimes"].as_array().unwrap();
    let its = runtimes.iter().find(|runtime| runtime["name"] == "honest").unwrap();
    assert_eq!(its["counters"]["lost_wakes"], 0);
}

#[test]
fn a_descriptor_that_takes_an_hour_to_close_does_not_stop_the_control_socket() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // Its peer reads nothing, so closing it waits.
    let (peer, _) = listener.accept().unwrap();
    slow.set_nonblocking(true).unwrap();
    let full = (0..100_000).find_map(|_| slow.write(&[0; 1 << 16]).err()).unwrap();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    set_socket_linger(&slow, Some(Duration::from_secs(3600))).unwrap();
    let connection = dial(&target.socket);
    let sent = control::send(&connection, &ClientMessage::Stats, &[slow.as_fd()]).is_ok();
    // A descriptor that was not sent is not the test's to wait for.
    let kept = (!sent).then_some(slow);
    // Nor is it closed when the connection ends with the message unread.
    drop(connection);
    target.admits("newcomer");
    target.stats();
    drop(peer);
    drop(kept);
}

#[test]
fn idle_connections_of_one_user_lock_nobody_else_out() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let connect = || (0..300).map(|_| dial(&target.socket)).collect::<Vec<_>>();
    let Some(idle) = as_user(MALLORY, connect) else { return };
    target.stats();
    target.admits("newcomer");
    as_user(BYSTANDER, || target.stats());
    // Each ends by itself, if no message comes.
    for connection in idle {
        let end = control::receive::<ServerMessage>(&connection);
        assert!(!matches!(end, Err(ControlError::WouldBlock)), "it is still open");
    }
    as_user(MALLORY, || target.stats());
}

#[test]
fn a_process_number_that_is_used_again_gets_no_stranger_bound_to_cores() {
    if !has_two_cpus() || !is_installed("unshare", "util-linux") {
        return;
    }
    if !geteuid().is_root() {
        eprintln!("skipped: only root can choose the number of the next process");
        return;
    }
    let own_numbers = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    // A container may lack the capability, and its /proc may be read-only.
    let mut probe = Command::new("unshare");
    probe.args(own_numbers).args(["sh", "-c", "echo 100 >/proc/sys/kernel/ns_last_pid"]);
    if !run(&mut probe, b"").status.success() {
        return eprintln!("skipped: the number of the next process cannot be chosen here");
    }
    let _turn = turn();
    let mut attack = Command::new("unshare");
    attack.args(own_numbers);
    let attack = attack.arg(binary("tailwater-tests", "reuse")).arg(socket_name("reuse"));
    let mut attack = Program::start(attack);
    let answer = attack.line().unwrap_or_else(|| panic!("no answer: {}", attack.errors()));
    assert!(answer.contains("ended before it had sent its threads"), "{answer}");
}

#[test]
fn an_impostor_at_the_iokernels_address_gets_no_program() {
    let name = socket_name("impostor");
    let Some(impostor) = as_user(MALLORY, || control::serve(&name, |_| ()).unwrap()) else { return };
    for user in [0, BYSTANDER] {
        let refused = as_user(user, || control::dial(&name).map(drop)).unwrap();
        let why = refused.expect_err("a program attaches to it").to_string();
        assert!(why.contains(&format!("user {MALLORY} listens")), "{why}");
    }
    // Its own programs, and those whose operator has named it, attach.
    assert!(as_user(MALLORY, || control::dial(&name).is_ok()).unwrap());
    let named = format!("{name},user={MALLORY}");
    assert!(as_user(BYSTANDER, || control::dial(&named).is_ok()).unwrap());
    drop(impostor);
    // A process that another test is just starting has all descriptors until it runs its program.
    let honest = eventually("the address is free", || control::serve(&name, |_| ()).ok());
    assert!(as_user(MALLORY, || control::dial(&name).is_ok()).unwrap(), "root's is trusted");
    drop(honest);
}

#[test]
fn the_log_quotes_no_control_characters_and_a_flood_of_refusals_is_counted() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start_command();
    // A field's name, of which 180,000 bytes are in the message.
    let forged = "\\u001b[2J\\u202e\n2026-01-01T00:00:00.000000Z  INFO all is well".repeat(3_000);
    let long = format!(r#"{{"register": {{"{}": 1}}}}"#, forged.replace('\n', "\\n"));
    // As many connections as one user may make at once: those beyond are closed without a word.
    let refusals = 100;
    let flood = || {
        for number in 0..refusals {
            let connection = dial(&target.socket);
            let garbage = if number < 10 { &long } else { r#"{"register": {"\u001b\n": 1}}"# };
            // Fails if the connection was refused already.
            let _ = rustix::net::send(&connection, garbage.as_bytes(), SendFlags::NOSIGNAL);
            let answer = control::receive::<ServerMessage>(&connection);
            // Closed: refused before the message was read, which takes the reason with it.
            let refused =
                matches!(answer, Ok((ServerMessage::Refused { .. }, _)) | Err(ControlError::Closed));
            assert!(refused, "{answer:?}");
        }
    };
    if as_user(MALLORY, flood).is_none() {
        return;
    }
    // Without a line of which the end has not been read.
    let log =
        || target.program.errors().rsplit_once('\n').map_or_else(String::new, |(log, _)| log.to_owned());
    let dropped = |log: &str| {
        ["dropped a connection", "refused a registration"]
            .map(|what| log.matches(what).count())
            .iter()
            .sum::<usize>()
    };
    let left_out = |log: &str| -> usize {
        let counts = log.lines().filter(|line| line.contains("left out of the log"));
        counts.map(|line| line.rsplit_once("lines=").unwrap().1.parse::<usize>().unwrap()).sum()
    };
    until("all refusals are logged or counted", || {
        let log = log();
        dropped(&log) + left_out(&log) == refusals
    });
    let log = log();
    // 20 at once and one a second: all of them would take 80 s.
    assert!(dropped(&log) < refusals, "{} lines", dropped(&log));
    for line in log.lines() {
        assert!(line.len() < 600 && line.bytes().all(|c| (b' '..=b'~').contains(&c)), "{line:?}");
    }
}

#[test]
fn without_descriptors_connections_are_refused_in_words() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start_with_descriptors(48);
    let connections: Vec<_> = (0..60).map(|_| dial(&target.socket)).collect();
    // From the last on: those before it were accepted, and are closed for their silence later.
    let why = connections.iter().rev().find_map(|connection| match control::receive(connection) {
        Ok((ServerMessage::Refused { why }, _)) => Some(why),
        Err(ControlError::Closed) => None,
        other => panic!("{other:?}"),
    });
    assert!(why.as_ref().is_some_and(|why| why.contains("no descriptors left")), "{why:?}");
    drop(connections);
    eventually("a newcomer is admitted", || {
        Intruder::register(&target.socket, &RawSpec::new("newcomer").register).ok()
    });
}

#[test]
#[ignore = "waits for ten seconds of silence: .ci/full slow"]
fn connections_without_a_word_are_closed_and_make_room_for_a_newcomer() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start_with_descriptors(48);
    let connections: Vec<_> = (0..60).map(|_| dial(&target.socket)).collect();
    let is_refused = |connection| match control::receive::<ServerMessage>(connection) {
        Ok((ServerMessage::Refused { why }, _)) if why.contains("no descriptors left") => true,
        Err(ControlError::Closed) => false,
        other => panic!("{other:?}"),
    };
    let refused = connections.iter().filter(|connection| is_refused(*connection)).count();
    assert!((1..60).contains(&refused), "{refused} refused");
    target.admits("newcomer");
}

#[test]
fn the_command_may_open_as_many_descriptors_as_the_system_permits() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start_command();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", target.program.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "soft and hard limit: {line}");
}

#[test]
fn statistics_without_end_are_refused_to_a_user_without_rights() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let ask_until_refused = || {
        eventually("one request too many", || target.try_stats().err());
    };
    if as_user(MALLORY, ask_until_refused).is_none() {
        return;
    }
    as_user(BYSTANDER, || target.stats());
    // Root may ask as often as it likes.
    for _ in 0..50 {
        target.stats();
    }
    until("the user is answered again", || as_user(MALLORY, || target.try_stats().is_ok()) == Some(true));
}

/// Has an attacker attack until the polling thread leaves it alone for a while; returns the
/// statistics.
fn until_left_alone(target: &Target, attack: Attack) -> serde_json::Value {
    let stop = AtomicBool::new(false);
    let throttled = |stats: &serde_json::Value| {
        let programs = stats["runtimes"].as_array().cloned().unwrap_or_default();
        programs.iter().any(|program| program["counters"]["throttled"].as_u64() > Some(0))
    };
    let report = |event| {
        if let Event::Expelled(why) = event {
            panic!("{why}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| attack.run(&target.socket, &stop, report).unwrap());
        // Also after a panic, or the thread would not end.
        let _stop = StopOnDrop(&stop);
        eventually("the attacker waits", || Some(target.stats()).filter(throttled))
    })
}

#[test]
fn senders_of_frames_that_are_refused_wait_and_stay_registered() {
    if !has_two_cpus() {
        return;
    }
    for attack in [Attack::Spoofed, Attack::Broadcasts] {
        let target = Target::start();
        let stats = until_left_alone(&target, attack);
        assert!(stats["loop"]["expelled"].as_u64() == Some(0), "{stats}");
        target.admits("newcomer");
    }
}

/// A control group with a cpuset of its own; removed when dropped.
struct Cpuset(PathBuf);

impl Cpuset {
    /// Makes one for this test, with these cores; returns `None` where that is not possible, and
    /// then prints that the test is skipped.
    fn new(test: &str, cores: &str) -> Option<Self> {
        let make = || -> std::io::Result<Self> {
            // The two versions of control groups (cpuset(7), cgroups(7)).
            let parents = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].map(Path::new);
            let parent = parents.into_iter().find(|parent| parent.join("cgroup.procs").exists());
            let parent = parent.ok_or(ErrorKind::NotFound)?;
            let folder = parent.join(format!("tailwater-{test}-{}", std::process::id()));
            fs::create_dir(&folder)?;
            let cpuset = Self(folder);
            if let Ok(memory) = fs::read_to_string(parent.join("cpuset.mems")) {
                fs::write(cpuset.0.join("cpuset.mems"), memory.trim())?;
            }
            cpuset.set(cores)?;
            Ok(cpuset)
        };
        make().inspect_err(|error| eprintln!("skipped: cannot make a cpuset ({error})")).ok()
    }

    fn set(&self, cores: &str) -> std::io::Result<()> {
        fs::write(self.0.join("cpuset.cpus"), cores)
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // Busy until the last thread in it has gone.
        until("the control group can be removed", || {
            fs::remove_dir(&self.0).err().is_none_or(|error| error.kind() == ErrorKind::NotFound)
        });
    }
}

#[test]
fn a_managed_core_that_leaves_the_cpuset_is_lent_again_when_it_is_back() {
    if !has_two_cpus() {
        return;
    }
    let cores = cpu_numbers();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let both = format!("{first},{last}");
    let Some(cpuset) = Cpuset::new("leaves", &both) else { return };
    let mut target = Target::start_command_with(&["--core", &first.to_string()]);
    let moved = fs::write(cpuset.0.join("cgroup.procs"), target.program.pid().to_string());
    if let Err(error) = moved {
        eprintln!("skipped: cannot move a process into a cpuset ({error})");
        return;
    }
    // Its threads stay outside, so that Linux would let them use the core.
    let began = Arc::new(AtomicU64::new(0));
    let program = RawRuntime::start(&target.socket, &RawSpec::new("program"), |_| {
        Box::new(Echo::watched(Arc::clone(&began)))
    })
    .unwrap();
    let is_parked = || program.shared.region.kthread(0).state.0.load().0 == KthreadState::Parked;
    let runs = || {
        let before = clock::now();
        until("the program is lent a core", || {
            if is_parked() {
                program.submit(0);
            }
            began.load(Ordering::Relaxed) > before
        });
    };
    let absent = |target: &Target| target.stats()["cores"]["absent"].as_u64();
    runs();
    for _ in 0..3 {
        cpuset.set(&first.to_string()).unwrap();
        target.program.error_line_with("does not let the IOKernel use a managed core");
        until("the core is out of the ledger", || absent(&target) == Some(1));
        until("the program has ceded", is_parked);
        let before = clock::now();
        program.submit(0);
        target.admits("newcomer");
        assert!(began.load(Ordering::Relaxed) < before, "it runs on a core that is gone");
        cpuset.set(&both).unwrap();
        target.program.error_line_with("may use a core again");
        until("the core is back", || absent(&target) == Some(0));
        runs();
    }
    // The IOKernel goes on elsewhere without its own core, and returns to it.
    cpuset.set(&last.to_string()).unwrap();
    target.program.error_line_with("use the core it polls on");
    target.admits("another newcomer");
    cpuset.set(&both).unwrap();
    target.program.error_line_with("may use a core again");
    runs();
}

#[test]
fn a_program_that_may_use_no_managed_core_is_told_so_and_one_that_may_no_more_ends_by_a_signal() {
    if !has_two_cpus() {
        return;
    }
    let cores = cpu_numbers();
    let (first, last) = (cores[0].to_string(), cores[cores.len() - 1].to_string());
    let Some(cpuset) = Cpuset::new("lacks", &first) else { return };
    let entrance = cpuset.0.join("cgroup.procs");
    // It lends the last core.
    let target = Target::start_command_with(&["--core", &first]);
    let mut program = Command::new("sh");
    program.args(["-c", "echo $$ > \"$1\" && exec \"$0\" echo"]).arg(binary("tailwater-tests", "role"));
    program.arg(&entrance).env("TAILWATER_IOKERNEL", &target.socket).env("TAILWATER_KTHREADS", "1");
    let output = run(&mut program, b"");
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for part in [&format!("lends core {last}")[..], "cpuset.cpus", "AllowedCPUs", "managed-cores"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    cpuset.set(&format!("{first},{last}")).unwrap();
    let mut service = Role::start(&target.socket, "echo", "service", &[]);
    fs::write(&entrance, service.pid().to_string()).unwrap();
    cpuset.set(&first).unwrap();
    service.signal(Signal::TERM);
    assert_eq!(service.wait().signal(), Some(Signal::TERM.as_raw()));
    target.admits("newcomer");
}

#[test]
fn a_program_that_an_iokernel_may_not_place_is_told_so() {
    if !has_two_cpus() || !geteuid().is_root() || !is_installed("setpriv", "util-linux") {
        return eprintln!("skipped: needs two CPUs, root, and setpriv");
    }
    let role = binary("tailwater-tests", "role");
    // Another user's program, and one without capabilities by which it could place another's.
    let setpriv = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(words);
        command
    };
    let of_nobody = || setpriv(&["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
    let restricted = || setpriv(&["--bounding-set=-sys_nice,-kill", "--"]);
    if !run(of_nobody().args(["test", "-x"]).arg(&role), b"").status.success() {
        return eprintln!("skipped: user 65534 is not there, or may not start {}", role.display());
    }
    let _turn = turn();
    let socket = socket_name("placing");
    let mut iokernel = Program::start(restricted().arg(binary("tailwater-tests", "iokernel")).arg(&socket));
    if iokernel.line().as_deref() != Some("ready") {
        return eprintln!("skipped: {}", iokernel.errors());
    }
    let echo = |mut command: Command| {
        command.arg("echo").env("TAILWATER_IOKERNEL", &socket).env("TAILWATER_KTHREADS", "1");
        command
    };
    let of_role = |mut command: Command| {
        command.arg(&role);
        echo(command)
    };
    let output = run(&mut of_role(of_nobody()), b"");
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    for part in ["user 65534", "may not bind its threads", "same user", "CAP_SYS_NICE"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // In words, not as the message is written in code.
    assert!(!said.contains("Refused") && !said.contains("why:"), "{said}");
    // One of its own user that has more capabilities than it.
    let output = run(&mut echo(Command::new(&role)), b"");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("capabilities that the IOKernel lacks"), "{said}");
    // And one that it may place.
    Program::start(&mut of_role(restricted())).line_after("ready ");
}

#[test]
fn a_program_that_cannot_handle_a_signal_without_a_core_ends_by_it() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let mut waits = Role::start_heard(&target.socket, "await-signal", "waits", "best-effort", &[]);
    // It keeps the only core that is lent.
    let _service = Role::start(&target.socket, "hog", "service", &[]);
    // The thread that waits is given this one, and cannot come back for the next.
    waits.signal(Signal::HUP);
    waits.signal(Signal::TERM);
    assert_eq!(waits.wait().signal(), Some(Signal::TERM.as_raw()), "{}", waits.errors());
    assert!(waits.errors().contains("was lent no core"), "{}", waits.errors());
}

#[test]
fn a_program_that_computes_when_a_signal_arrives_reads_it_afterwards() {
    if !has_two_cpus() {
        return;
    }
    let target = Target::start();
    let one = [("TAILWATER_KTHREADS", "1")];
    let mut computes =
        Role::start_heard(&target.socket, "compute-after-signal", "computes", "best-effort", &one);
    assert!(computes.wait().success(), "{}", computes.errors());
}
