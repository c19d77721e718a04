//! Hand-offs between raw runtimes on one managed core: polling, idle, by signal, by force.

use crate::common::{Running, ask, child_command, config, endpoint, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_iokernel::Config;
use tailwater_iokernel::config::PolicyName;
use tailwater_iokernel_testing::child::{RawChild, Role};
use tailwater_iokernel_testing::roles::{Burn, Echo, Hog};
use tailwater_iokernel_testing::wire::udp;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};
use tailwater_shm::priority::{Rank, set_rank};
use tailwater_stats::HandoffKind;

/// Processor time of all threads of a process, in hundredths of a second.
fn processor_time(pid: u32) -> u64 {
    // utime and stime, proc_pid_stat(5).
    [14, 15].map(|field| tailwater_testkit::stat(pid, field).unwrap().parse::<u64>().unwrap()).iter().sum()
}

/// Settings under which no core is taken by force, however long Linux does not run a thread.
fn patient() -> Config {
    const HOUR_US: u64 = 3_600_000_000;
    Config { start_deadline_us: HOUR_US, ..config() }
}

fn service(iokernel: &Running) -> RawRuntime {
    RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap()
}

/// Returns a batch job in this process that polls, and the count of its steps.
fn burn(iokernel: &Running) -> (RawRuntime, Arc<AtomicU64>) {
    let steps = Arc::new(AtomicU64::new(0));
    let spec = RawSpec::new("batch").best_effort();
    let batch =
        RawRuntime::start(&iokernel.socket, &spec, |_| Box::new(Burn { steps: Arc::clone(&steps) })).unwrap();
    batch.submit(0);
    eventually("the batch job runs", || steps.load(Ordering::Relaxed) > 0);
    (batch, steps)
}

#[test]
fn a_service_takes_the_core_from_a_polling_batch_job_and_gives_it_back() {
    let (iokernel, station) = Running::with_station(patient());
    let (_batch, steps) = burn(&iokernel);
    let service = service(&iokernel);
    let cores = &iokernel.stats.cores;
    let polled = iokernel.stats.handoff(HandoffKind::Polling);
    // As many requests as it takes: Linux may not run the batch job between two of them, or not
    // when it is asked to cede, which ends in a hand-off of another kind.
    let mut number = 0;
    eventually("50 requests take the core from the batch job, some at a poll point", || {
        ask(&station, endpoint(&service), number);
        number += 1;
        let before = steps.load(Ordering::Relaxed);
        eventually("the batch job gets its core back", || steps.load(Ordering::Relaxed) > before);
        cores.preemptions.get() >= 50
            && !polled.running.snapshot().is_empty()
            && !polled.ceded.snapshot().is_empty()
    });
    assert!(cores.idle_takes.get() + cores.parks.get() >= 49);
}

#[test]
fn the_core_moves_between_processes_without_a_rebinding_per_hand_off() {
    let (iokernel, station) = Running::with_station(patient());
    let batch = RawSpec::new("batch").best_effort();
    let _batch = RawChild::start(child_command(), &iokernel.socket, &batch, Role::Burn).unwrap();
    let spec = RawSpec::new("service");
    let _service = RawChild::start(child_command(), &iokernel.socket, &spec, Role::Echo).unwrap();
    let service = iokernel.endpoint_of("service");
    for number in 0..100 {
        ask(&station, service, number);
    }
    // A thread that Linux did not run in time is moved off, and bound again for its next core.
    let cores = &iokernel.stats.cores;
    let (rebinds, moved) = (cores.rebinds.get(), cores.evictions.get());
    assert!(rebinds <= 2 + moved, "{rebinds} rebindings of two threads on one core, {moved} moved off");
}

#[test]
fn a_static_partition_is_lent_to_its_owner_only_however_idle_it_is() {
    let (iokernel, station) = Running::with_station(Config { policy: PolicyName::Static, ..patient() });
    // Registered first: the one managed core is its partition. Parks as soon as it has answered.
    let spec = RawSpec { spin_us: 1, idle_us: 0, ..RawSpec::new("service") };
    let service = RawRuntime::start(&iokernel.socket, &spec, |_| Box::<Echo>::default()).unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let spec = RawSpec::new("batch").best_effort();
    let batch =
        RawRuntime::start(&iokernel.socket, &spec, |_| Box::new(Burn { steps: Arc::clone(&steps) })).unwrap();
    batch.submit(0);
    for number in 0..20 {
        ask(&station, endpoint(&service), number);
        eventually("the core is free again", || iokernel.counter("service", |c| c.cores.get()) == 0);
    }
    let grants = iokernel.stats.cores.grants.get();
    assert_eq!(iokernel.counter("service", |c| c.grants.get()), grants, "all grants are the owner's");
    assert_eq!(steps.load(Ordering::Relaxed), 0, "the batch job ran on a partition that is not its own");
}

#[test]
fn an_idle_kthread_answers_without_a_hand_off() {
    let (iokernel, station) = Running::with_station(patient());
    let spec = RawSpec { idle_us: 3_600_000_000, ..RawSpec::new("service") };
    let service = RawRuntime::start(&iokernel.socket, &spec, |_| Box::<Echo>::default()).unwrap();
    for number in 0..50 {
        ask(&station, endpoint(&service), number);
    }
    assert_eq!(iokernel.stats.cores.grants.get(), 1, "it was granted a core more than once");
    assert_eq!(iokernel.stats.cores.parks.get(), 0);
}

#[test]
fn a_job_that_does_not_poll_gives_its_core_up_at_the_signal() {
    let (iokernel, station) = Running::with_station(patient());
    let spec = RawSpec::new("batch").best_effort();
    let turns = Arc::new(AtomicU64::new(0));
    let hog = || Box::new(Hog { heeds_signal: true, turns: Arc::clone(&turns) });
    let batch = RawRuntime::start(&iokernel.socket, &spec, |_| hog()).unwrap();
    batch.submit(0);
    eventually("the batch job runs", || turns.load(Ordering::Relaxed) > 0);
    let service = service(&iokernel);
    // As many requests as it takes: a job that Linux does not run gives its core up without having
    // taken the signal, and one that counts a last turn then may not have the core yet.
    let mut number = 0;
    eventually("20 signals", || {
        ask(&station, endpoint(&service), number);
        number += 1;
        let before = turns.load(Ordering::Relaxed);
        eventually("the batch job gets its core back", || turns.load(Ordering::Relaxed) > before);
        iokernel.stats.cores.signals.get() >= 20
    });
    // On a busy machine the service may be woken beside a job that does not have the signal yet.
    let has = |kind| !iokernel.stats.handoff(kind).running.snapshot().is_empty();
    assert!(has(HandoffKind::Signal) || has(HandoffKind::Bypass));
}

/// A thread of real-time rank that computes on one core until it is dropped: no ordinary thread
/// that is bound to that core runs meanwhile.
struct Occupier {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Occupier {
    /// Returns one that has the core; `None` if Linux refuses it the rank.
    fn start(core: u16) -> Option<Self> {
        let (stop, (ranked_out, ranked)) = (Arc::<AtomicBool>::default(), std::sync::mpsc::channel());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(core.into());
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            ranked_out.send(set_rank(0, Rank::RealTime)).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let occupier = Self { stop, thread: Some(thread) };
        ranked.recv().unwrap().then_some(occupier)
    }
}

impl Drop for Occupier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It cannot panic once it has its rank.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn an_owner_that_linux_does_not_run_is_bypassed_and_lent_a_core_again() {
    // A hundred times what a poll point needs, whatever the host takes of it.
    const DEADLINE: Duration = Duration::from_millis(100);
    let (iokernel, station) = Running::with_station(config());
    let (_batch, steps) = burn(&iokernel);
    let service = service(&iokernel);
    let bypassed = iokernel.stats.handoff(HandoffKind::Bypass);
    let mut number = 0;
    // As many rounds as it takes: Linux stops real-time threads for a twentieth of each second, and
    // the batch job may cede then.
    while bypassed.ceded.snapshot().is_empty() {
        let before = steps.load(Ordering::Relaxed);
        eventually("the batch job has the core", || steps.load(Ordering::Relaxed) > before);
        let Some(occupier) = Occupier::start(iokernel.managed) else {
            return eprintln!("skipped: Linux refuses real-time rank");
        };
        let request = [[0; 16].as_slice(), &[0; 8]].concat();
        assert!(station.send(&udp(crate::common::STATION, endpoint(&service), &request)));
        // Longer than an owner may run on: the time that passes is not its own.
        std::thread::sleep(3 * DEADLINE);
        drop(occupier);
        number += 1;
        assert!(number <= 1_000, "no hand-off in 1,000 rounds was a bypass");
        ask(&station, endpoint(&service), number);
    }
    let before = steps.load(Ordering::Relaxed);
    eventually("the batch job cedes, and is lent the core again", || steps.load(Ordering::Relaxed) > before);
    eventually("the service has started after a bypass", || !bypassed.running.snapshot().is_empty());
    assert_eq!(iokernel.stats.polling.expelled.get(), 0);
}

#[test]
fn a_thread_that_never_yields_is_moved_off_the_core_and_the_service_goes_on() {
    let (iokernel, station) = Running::with_station(config());
    let spec = RawSpec::new("hog").best_effort();
    let hog = RawChild::start(child_command(), &iokernel.socket, &spec, Role::NeverYield).unwrap();
    // What it used before it was lent the core, for example to calibrate its clock, does not count.
    let mut before = None;
    eventually("the hog burns its core", || match iokernel.counter("hog", |c| c.cores.get()) {
        0 => {
            before = None;
            false
        }
        _ => {
            let burnt = processor_time(hog.pid());
            burnt > *before.get_or_insert(burnt) + 2
        }
    });
    let service = service(&iokernel);
    for number in 0..10 {
        ask(&station, endpoint(&service), number);
    }
    eventually("the hog is moved off", || iokernel.stats.cores.evictions.get() >= 1);
    assert_eq!(iokernel.counter("hog", |c| c.cores.get()), 0, "the hog was lent a core again");
    let bound = format!("Cpus_allowed_list:\t{}\n", iokernel.managed);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", hog.pid())).unwrap();
    let mut status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    assert!(
        !status.any(|status| status.contains(&bound)),
        "a thread of the hog is still bound to the managed core"
    );
}

#[test]
fn a_runtime_that_never_cedes_stays_registered_and_the_service_goes_on() {
    let (iokernel, station) = Running::with_station(config());
    let spec = RawSpec::new("hog").best_effort();
    let turns = Arc::new(AtomicU64::new(0));
    let role = || Box::new(Hog { heeds_signal: false, turns: Arc::clone(&turns) });
    let hog = RawRuntime::start(&iokernel.socket, &spec, |_| role()).unwrap();
    let service = service(&iokernel);
    let mut number = 0;
    eventually("services have waited for the hog", || {
        hog.submit(0);
        ask(&station, endpoint(&service), number);
        number += 1;
        iokernel.counter("hog", |c| c.late_ns.get()) > 0 && turns.load(Ordering::Relaxed) > 0
    });
    ask(&station, endpoint(&service), number);
    assert_eq!(iokernel.stats.polling.expelled.get(), 0);
}
