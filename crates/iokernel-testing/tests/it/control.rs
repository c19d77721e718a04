//! The control socket from outside, and sleep: refusals, statistics, doorbells, an idle machine.

use crate::common::{Running, alone, ask, config, endpoint, eventually};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use tailwater_iokernel::config::{PolicyName, Priority};
use tailwater_iokernel::{Config, IoKernel};
use tailwater_iokernel_testing::roles::{Burn, Echo};
use tailwater_iokernel_testing::{RawError, RawRuntime, RawSpec, register, stats};
use tailwater_shm::control::{self, ClientMessage, ControlError, CoreRequest, Register, ServerMessage};
use tailwater_shm::layout::RegionSpec;
use tailwater_shm::priority::{Rank, set_rank};

#[track_caller]
fn refusal(socket: &str, change: impl FnOnce(&mut Register)) -> String {
    let mut request = RawSpec::new("newcomer").register;
    change(&mut request);
    match register(socket, &request) {
        Err(RawError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn refusals_say_what_is_wrong_in_words() {
    let (iokernel, _station) = Running::with_station(config());
    let socket = &iokernel.socket;
    let taken = RawRuntime::start(socket, &RawSpec::new("taken"), |_| Box::<Echo>::default()).unwrap();
    let ip = taken.ip();
    for (words, why) in [
        ("version", refusal(socket, |w| w.version += 1)),
        ("printable", refusal(socket, |w| w.name = "\u{7}".to_owned())),
        ("registered already", refusal(socket, |w| w.name = "taken".to_owned())),
        ("max-kthreads", refusal(socket, |w| w.kthreads = 1000)),
        ("guaranteed", refusal(socket, |w| (w.kthreads, w.guaranteed) = (2, 2))),
        ("not a host address", refusal(socket, |w| w.ip = Some([192, 168, 0, 1].into()))),
        ("port station", refusal(socket, |w| w.ip = Some(crate::common::STATION.ip))),
        ("taken", refusal(socket, |w| w.ip = Some(ip))),
        ("max-ring-bytes", refusal(socket, |w| w.ring_bytes = 1 << 24)),
    ] {
        assert!(why.contains(words), "{words:?} is not in: {why}");
    }
    assert_eq!(iokernel.stats.polling.refused.get(), 9);
}

#[test]
fn threads_of_another_process_are_refused_and_the_place_is_free_again() {
    let iokernel = Running::start(config(), Vec::new());
    for tids in [vec![1], vec![], vec![-1], vec![i32::MAX]] {
        let (connection, _, _) = register(&iokernel.socket, &RawSpec::new("liar").register).unwrap();
        control::send(&connection, &ClientMessage::Kthreads { tids: tids.clone() }, &[]).unwrap();
        let (answer, _) = control::receive::<ServerMessage>(&connection).unwrap();
        let ServerMessage::Refused { why } = answer else { panic!("{tids:?} accepted: {answer:?}") };
        assert!(why.contains("thread"), "{why}");
    }
}

#[test]
fn memory_is_taken_for_accepted_kthreads_only_and_within_its_limit() {
    let one = RawSpec::new("first").register;
    let len = RegionSpec::new(one.kthreads, one.ring_bytes).unwrap().region_len() as u64;
    let limit = (len * 2).max(1 << 20);
    let iokernel = Running::start(Config { max_region_bytes: Some(limit), ..config() }, Vec::new());
    let (connection, _, files) = register(&iokernel.socket, &one).unwrap();
    let taken = || rustix::fs::fstat(&files[0]).unwrap().st_blocks as u64 * 512;
    assert!(taken() < len / 2, "{} of {len} bytes before any kthread", taken());
    let mut offers = Vec::new();
    let why = loop {
        let name = format!("more {}", offers.len());
        match register(&iokernel.socket, &RawSpec::new(&name).register) {
            Ok(offer) => offers.push(offer),
            Err(RawError::Refused(why)) => break why,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(offers.len() as u64, limit / len - 1);
    assert!(why.contains("max-region-bytes") && why.contains(&limit.to_string()), "{why}");
    let (out, tid) = std::sync::mpsc::channel();
    let (_alive, until_dropped) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        out.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let _ = until_dropped.recv();
    });
    let tids = vec![tid.recv().unwrap()];
    control::send(&connection, &ClientMessage::Kthreads { tids }, &[]).unwrap();
    let (answer, _) = control::receive::<ServerMessage>(&connection).unwrap();
    assert_eq!(answer, ServerMessage::Ready);
    assert!(taken() >= len, "{} of {len} bytes at a registered runtime", taken());
}

#[test]
fn a_place_that_was_offered_and_not_taken_is_free_again() {
    let iokernel = Running::start(config(), Vec::new());
    // Each offer is dropped at once, and the next is refused until the IOKernel has noticed.
    for _ in 0..20 {
        eventually("the name is free again", || {
            register(&iokernel.socket, &RawSpec::new("hesitant").register).is_ok()
        });
    }
}

#[test]
fn garbage_on_the_control_socket_is_answered_and_harms_nobody() {
    let (iokernel, station) = Running::with_station(config());
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    for garbage in [&b"{"[..], b"\xff\xfe", b"{\"register\":{}}", &[b'x'; 200_000]] {
        let connection = control::dial(&iokernel.socket).unwrap();
        rustix::net::send(&connection, garbage, rustix::net::SendFlags::empty()).unwrap();
        assert!(matches!(control::receive(&connection).unwrap().0, ServerMessage::Refused { .. }));
        let connection = control::dial(&iokernel.socket).unwrap();
        control::send(&connection, &ClientMessage::Kthreads { tids: vec![1] }, &[]).unwrap();
        assert!(matches!(control::receive(&connection).unwrap().0, ServerMessage::Refused { .. }));
    }
    ask(&station, endpoint(&service), 1);
}

#[test]
fn a_registered_runtime_that_breaks_the_conversation_is_told_and_ended() {
    let iokernel = Running::start(config(), Vec::new());
    let (connection, _, _files) = register(&iokernel.socket, &RawSpec::new("odd").register).unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    control::send(&connection, &ClientMessage::Kthreads { tids: vec![tid] }, &[]).unwrap();
    assert_eq!(control::receive::<ServerMessage>(&connection).unwrap().0, ServerMessage::Ready);
    control::send(&connection, &ClientMessage::Kthreads { tids: vec![tid] }, &[]).unwrap();
    let (answer, _) = control::receive::<ServerMessage>(&connection).unwrap();
    assert!(matches!(answer, ServerMessage::Refused { .. }), "{answer:?}");
    eventually("it is gone", || iokernel.stats.runtimes().is_empty());
    // This thread was a kthread for a moment; restore its affinity.
    let mut all = rustix::thread::CpuSet::new();
    (0..1024).for_each(|core| all.set(core));
    rustix::thread::sched_setaffinity(None, &all).unwrap();
}

#[test]
fn cores_are_requested_for_a_program_over_the_control_socket() {
    let arbiter = Config { policy: PolicyName::Arbiter, ..config() };
    for (config, refused) in [(arbiter, None), (config(), Some("policy = \"arbiter\""))] {
        let iokernel = Running::start(config, Vec::new());
        let spec = RawSpec::new("service");
        let _service = RawRuntime::start(&iokernel.socket, &spec, |_| Box::<Echo>::default()).unwrap();
        let request = |runtime: &str, cores: u8| {
            let client = control::dial(&iokernel.socket).unwrap();
            let cores = [0, 0, cores, 0, 0, 0, 0, 0];
            let request = CoreRequest { runtime: runtime.to_owned(), cores };
            control::send(&client, &ClientMessage::RequestCores(request), &[]).unwrap();
            control::receive::<ServerMessage>(&client).unwrap().0
        };
        if let Some(words) = refused {
            let ServerMessage::Refused { why } = request("service", 1) else { panic!("it was accepted") };
            assert!(why.contains(words), "{why}");
            continue;
        }
        let ServerMessage::Refused { why } = request("another", 1) else { panic!("it was accepted") };
        assert!(why.contains("no program \"another\""), "{why}");
        let long = "\u{7f}".repeat(control::MAX_MESSAGE / 2);
        let ServerMessage::Refused { why } = request(&long, 1) else { panic!("it was accepted") };
        assert!(why.contains("is registered") && why.len() < 2_000, "{why}");
        for cores in [1, 0] {
            let limit = spec.register.kthreads;
            assert_eq!(request("service", cores), ServerMessage::CoresRequested { limit });
            eventually("the request is divided", || {
                let counters = &stats(&iokernel.socket).unwrap()["runtimes"][0]["counters"];
                counters["granted_cores"] == cores
            });
        }
    }
}

#[test]
fn statistics_name_the_runtimes_and_what_they_did() {
    let (iokernel, station) = Running::with_station(config());
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    ask(&station, endpoint(&service), 1);
    let document = stats(&iokernel.socket).unwrap();
    assert_eq!(document["runtimes"][0]["name"], "service");
    assert_eq!(document["runtimes"][0]["counters"]["rx_frames"], 1);
    assert_eq!(document["ports"][0]["name"], "station");
    assert!(document["iokernel"]["managed_cores"][0].is_u64());
}

#[test]
fn a_second_iokernel_on_the_same_socket_is_refused_with_the_remedy() {
    let iokernel = Running::start(config(), Vec::new());
    let second = Config { socket: iokernel.socket.clone(), ..config() };
    let error = IoKernel::new(second, Vec::new()).err().expect("two IOKernels share a socket").to_string();
    assert!(error.contains("another IOKernel"), "{error}");
}

/// Returns whether the kernel counts the time of threads (`CONFIG_SCHED_INFO`); if not, prints
/// what is skipped.
fn counts_time(skipped: &str) -> bool {
    // The third number counts the turns of this thread, of which this is one.
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat")
        .is_ok_and(|text| text.trim().rsplit(' ').next() != Some("0"));
    if !counts {
        eprintln!("skipped: {skipped}, which needs /proc/PID/schedstat");
    }
    counts
}

/// Processor time of a thread of this process.
fn thread_time(tid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn an_idle_iokernel_sleeps_and_a_doorbell_or_a_frame_wakes_it() {
    let (iokernel, station) = Running::with_station(config());
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let asleep = || service.shared.region.asleep().load(std::sync::atomic::Ordering::Relaxed) != 0;
    for number in 0..10 {
        eventually("it sleeps", asleep);
        ask(&station, endpoint(&service), number);
    }
    for round in 0..10 {
        eventually("it sleeps", asleep);
        let before = iokernel.counter("service", |c| c.grants.get());
        service.submit(0);
        eventually("the submitted work gets a core", || {
            iokernel.counter("service", |c| c.grants.get()) > before
        });
        assert!(iokernel.stats.polling.sleeps.get() > round);
    }
    eventually("it sleeps", asleep);
    if !counts_time("the time of an idle IOKernel") {
        return;
    }
    // At most ten wakes a second, of some microseconds each. One idle half second is enough: where
    // the host stops the machine, that time counts as the thread's.
    eventually("an IOKernel without work uses less than a hundredth of a core", || {
        let (before, began) = (thread_time(iokernel.tid), Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        (thread_time(iokernel.tid) - before) * 100 < began.elapsed()
    });
}

#[test]
fn the_iokernel_sleeps_beside_a_batch_job_and_a_frame_for_a_service_wakes_it() {
    let (iokernel, station) = Running::with_station(config());
    let steps = Arc::new(AtomicU64::new(0));
    let batch = RawRuntime::start(&iokernel.socket, &RawSpec::new("batch").best_effort(), |_| {
        Box::new(Burn { steps: Arc::clone(&steps) })
    })
    .unwrap();
    batch.submit(0);
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let runs = || iokernel.counter("batch", |c| c.cores.get()) == 1;
    let asleep = || batch.shared.region.asleep().load(Ordering::Relaxed) != 0;
    for number in 0..10 {
        eventually("it sleeps while the batch job has the core", || runs() && asleep());
        let before = steps.load(Ordering::Relaxed);
        eventually("the batch job runs", || steps.load(Ordering::Relaxed) > before);
        ask(&station, endpoint(&service), number);
    }
    assert!(iokernel.stats.cores.preemptions.get() > 0);
    eventually("it sleeps while the batch job has the core", || runs() && asleep());
    if !counts_time("the time of an IOKernel beside a batch job") {
        return;
    }
    // The looks that no doorbell calls for are a hundred a second. One quiet half second is enough.
    eventually("an IOKernel beside a batch job uses less than a tenth of a core", || {
        let (before, began) = (thread_time(iokernel.tid), Instant::now());
        std::thread::sleep(Duration::from_millis(500));
        (thread_time(iokernel.tid) - before) * 10 < began.elapsed()
    });
}

/// Returns whether Linux lets a thread of this process go behind all others and back, and the
/// IOKernel do the same to threads of other programs.
fn may_lower() -> bool {
    let held = rustix::thread::capabilities(None).unwrap().effective;
    let there_and_back = || set_rank(0, Rank::Behind) && set_rank(0, Rank::Ordinary);
    held.contains(CapabilitySet::SYS_NICE) && std::thread::spawn(there_and_back).join().unwrap()
}

/// Returns the threads of this process that run behind all ordinary ones.
fn threads_behind() -> BTreeSet<OsString> {
    let behind = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("stat")).ok()?;
        // proc_pid_stat(5): after the name the fields from the third on; 19 is the nice value, 41
        // the policy.
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        Some(fields[41 - 3] == "5" || fields[19 - 3] == "19")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter(|task| behind(task.path()) == Some(true)).map(|task| task.file_name()).collect()
}

/// Starts an IOKernel that shares the machine, and a batch job; waits until its kthread runs behind
/// ordinary threads. Returns all three.
fn batch_job_behind() -> (Running, RawRuntime, OsString) {
    let iokernel = Running::start(Config { neighbour_share: 10, ..config() }, Vec::new());
    let before = threads_behind();
    let batch = RawRuntime::start(&iokernel.socket, &RawSpec::new("batch").best_effort(), |_| {
        Box::new(Burn { steps: Arc::default() })
    })
    .unwrap();
    batch.submit(0);
    let kthread = || threads_behind().difference(&before).next().cloned();
    let kthread = tailwater_testkit::eventually("its kthread runs behind ordinary threads", kthread);
    (iokernel, batch, kthread)
}

#[test]
fn a_batch_job_runs_behind_ordinary_threads_while_the_iokernel_sleeps_beside_it() {
    if !may_lower() {
        return eprintln!("skipped: Linux does not let threads go behind others and back");
    }
    let (iokernel, batch, kthread) = batch_job_behind();
    drop(iokernel);
    eventually("it is an ordinary thread without an IOKernel", || !threads_behind().contains(&kthread));
    drop(batch);
}

#[test]
fn without_the_privilege_a_batch_job_runs_behind_ordinary_threads_at_all_times() {
    // The capability is one of this thread and of those that it starts.
    std::thread::spawn(|| {
        let mut held = rustix::thread::capabilities(None).unwrap();
        held.effective.remove(CapabilitySet::SYS_NICE);
        held.permitted.remove(CapabilitySet::SYS_NICE);
        rustix::thread::set_capabilities(None, held).unwrap();
        drop(batch_job_behind());
    })
    .join()
    .unwrap();
}

/// Returns unshare(1) for a command in a PID namespace of its own with its own `/proc`.
fn pid_namespace() -> Command {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    unshare
}

#[test]
fn a_batch_job_whose_session_has_no_number_here_is_registered() {
    // As in a container that `docker exec` enters: getsid(2) is 0, for the leader is outside.
    if !pid_namespace().arg("true").status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: unshare(1) makes no PID namespace here");
    }
    let test = "control::a_batch_job_runs_behind_ordinary_threads_while_the_iokernel_sleeps_beside_it";
    let mut inside = pid_namespace();
    let _alone = alone();
    let output = inside.arg(std::env::current_exe().unwrap()).args(["--exact", test]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn programs_are_told_to_take_the_highest_rank_if_the_iokernel_never_lowers_it_or_may() {
    let may_lower = may_lower();
    for (share, raise) in [(0, true), (10, may_lower)] {
        let iokernel = Running::start(Config { neighbour_share: share, ..config() }, Vec::new());
        let (_connection, welcome, _files) =
            register(&iokernel.socket, &RawSpec::new("service").register).unwrap();
        assert_eq!(welcome.raise, raise, "neighbour-share {share}");
    }
}

#[test]
fn an_ordinary_thread_on_the_polling_core_gets_its_share_while_a_service_holds_a_core() {
    let config = Config { neighbour_share: 10, priority: Priority::Thread, ..config() };
    let iokernel = Running::start(config, Vec::new());
    // Containers may number their cores otherwise there.
    let line = format!("cpu{} ", iokernel.own);
    let has_line = std::fs::read_to_string("/proc/stat").is_ok_and(|text| text.contains(&line));
    if !has_line {
        return eprintln!("skipped: no line `{line}` in /proc/stat");
    }
    if !counts_time("slices for ordinary threads") {
        return;
    }
    // It idles for ever, so the IOKernel has to poll.
    let spec = RawSpec { idle_us: 3_600_000_000, ..RawSpec::new("service") };
    let service = RawRuntime::start(&iokernel.socket, &spec, |_| Box::<Echo>::default()).unwrap();
    service.submit(0);
    eventually("the service has a core", || iokernel.counter("service", |c| c.cores.get()) == 1);
    let stop = Arc::new(AtomicBool::new(false));
    let core = iokernel.own;
    let ordinary = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(core.into());
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    eventually("slices are given", || iokernel.stats.polling.slices.get() >= 20);
    assert!(iokernel.stats.polling.contests.get() > 0);
    stop.store(true, Ordering::Relaxed);
    ordinary.join().unwrap();
}

#[test]
fn timers_wake_a_sleeping_iokernel() {
    let iokernel = Running::start(config(), Vec::new());
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let asleep = || service.shared.region.asleep().load(std::sync::atomic::Ordering::Relaxed) != 0;
    eventually("it sleeps", asleep);
    let due = tailwater_shm::clock::now() + service.shared.region.tsc_hz() / 20;
    let word = &service.shared.region.kthread(0).status.next_timer;
    word.store(due, std::sync::atomic::Ordering::Relaxed);
    // A timer set by a thread without a core is work for the IOKernel: ring the doorbell.
    service.shared.ring_if_asleep();
    eventually("the timer gets a core", || iokernel.counter("service", |c| c.grants.get()) > 0);
    assert!(tailwater_shm::clock::now() >= due, "granted before the timer was due");
    word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn the_end_of_an_iokernel_gives_threads_their_cores_back() {
    let iokernel = Running::start(config(), Vec::new());
    let (connection, _, _files) = register(&iokernel.socket, &RawSpec::new("r").register).unwrap();
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    let (alive, until_dropped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tid_out.send(rustix::thread::gettid()).unwrap();
        let _ = until_dropped.recv();
    });
    let tid = tid_in.recv().unwrap();
    let before = rustix::thread::sched_getaffinity(Some(tid)).unwrap();
    control::send(&connection, &ClientMessage::Kthreads { tids: vec![tid.as_raw_nonzero().get()] }, &[])
        .unwrap();
    assert_eq!(control::receive::<ServerMessage>(&connection).unwrap().0, ServerMessage::Ready);
    eventually("it is registered", || iokernel.stats.runtimes().len() == 1);
    drop(iokernel);
    // Without a message: programs wait for the next IOKernel.
    assert_eq!(
        control::receive::<ServerMessage>(&connection).map(|(message, _)| message),
        Err(ControlError::Closed)
    );
    assert_eq!(rustix::thread::sched_getaffinity(Some(tid)).unwrap(), before);
    drop(alive);
    thread.join().unwrap();
}
