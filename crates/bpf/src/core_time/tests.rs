//! The watch on this machine. What it adds up is compared with what Linux says of the same threads,
//! never with how long anything should take.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use tailwater_testkit::{PATIENCE, until};

use super::*;

/// Processor time of one part of a test.
const PART_NS: u64 = 30_000_000;

fn watch(core: u16, kthreads: &[i32]) -> Option<Watch> {
    match Watch::start(&[core], kthreads) {
        Ok(watch) => Some(watch),
        Err(refused) => {
            eprintln!("skipped: {refused}");
            None
        }
    }
}

/// Binds this thread, or that of a process, to one core.
fn bind(thread: Option<Pid>, core: u16) {
    let mut one = CpuSet::new();
    one.set(core.into());
    sched_setaffinity(thread, &one).unwrap();
}

/// A process that computes on one core until this value is dropped.
struct Busy(Child);

impl Busy {
    fn start(core: u16) -> Self {
        let child = Command::new("/bin/sh").args(["-c", "while :; do :; done"]).process_group(0).spawn();
        let child = Self(child.unwrap());
        bind(Pid::from_raw(child.0.id() as i32), core);
        child
    }

    fn processor_ns(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.0.id())).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn kthreads_other_programs_and_what_they_take_from_each_other_are_told_apart() {
    let before = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).rfind(|&core| before.is_set(core)).unwrap() as u16;
    let own = gettid().as_raw_nonzero().get();
    let started = now_ns();
    let Some(mut watch) = watch(core, &[own]) else { return };
    let begun = now_ns();
    bind(None, core);
    // This thread computes as a kthread would.
    let computed = clock_gettime(ClockId::ThreadCPUTime);
    let computed_ns = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        ((now.tv_sec - computed.tv_sec) * 1_000_000_000 + now.tv_nsec - computed.tv_nsec) as u64
    };
    while computed_ns() < PART_NS {}
    let ended = now_ns();
    let first = watch.read(Some(&[own])).unwrap()[0];
    let finished = now_ns();
    assert_eq!(first.core, core);
    // A nanosecond is lost where two readings of a clock are rounded.
    assert!((ended - begun - 9..=finished - started).contains(&first.all()), "{first:?}");
    // Linux adds interrupts to the time of the thread.
    assert!(first.kthreads + first.taken.interrupts > PART_NS / 10 * 9, "{first:?}");

    // A process computes on the core while this thread could run, and then while it sleeps.
    let busy = Busy::start(core);
    let deadline = Instant::now() + PATIENCE;
    while busy.processor_ns() < PART_NS {
        assert!(Instant::now() < deadline, "the process got no core");
    }
    let second = watch.read(Some(&[own])).unwrap()[0];
    let taken = |from: CoreTime, to: CoreTime| to.taken.programs - from.taken.programs;
    let free = |from: CoreTime, to: CoreTime| to.free.programs - from.free.programs;
    assert!(taken(first, second) > PART_NS / 2, "{first:?} {second:?}");
    let strangers = watch.strangers();
    let waited: u64 = strangers
        .iter()
        .filter(|it| it.pid == busy.0.id() && it.waiter == Some(own as u32))
        .map(|it| {
            assert_eq!((it.command.as_str(), it.core, it.is_kernel), ("sh", core, false));
            assert!(it.group.as_deref().is_some_and(|group| group.starts_with('/')), "{it:?}");
            it.ns
        })
        .sum();
    assert!(waited > PART_NS / 2, "{strangers:?}");
    // On a busy machine this thread may wait for the core for longer than it has slept.
    let (mut last, mut nap) = (second, Duration::from_millis(30));
    until("the process computes while this thread sleeps", || {
        std::thread::sleep(nap);
        nap = (2 * nap).min(Duration::from_secs(10));
        let from = std::mem::replace(&mut last, watch.read(Some(&[own])).unwrap()[0]);
        free(from, last) > taken(from, last)
    });
    drop(busy);
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn a_thread_is_a_kthread_while_it_is_known_as_one() {
    let before = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap() as u16;
    let own = [gettid().as_raw_nonzero().get()];
    let Some(mut watch) = watch(core, &[]) else { return };
    bind(None, core);
    let mut read = |kthreads| watch.read(kthreads).unwrap()[0];
    let programs = |time: CoreTime| time.free.programs + time.taken.programs;
    let first = read(Some(&[]));
    assert_eq!(first.kthreads, 0, "{first:?}");
    assert!(programs(first) > 0, "{first:?}");
    // It has become one since then, and remains one while nothing else is known.
    let second = read(Some(&own));
    let third = read(None);
    assert!(0 < second.kthreads && second.kthreads < third.kthreads, "{second:?} {third:?}");
    assert!(programs(first) <= programs(second), "{first:?} {second:?}");
    // It is none any more, as another thread with its number would be none.
    let fourth = read(Some(&[]));
    let [fifth, sixth] = [read(Some(&[])), read(Some(&[]))];
    assert!(third.kthreads < fourth.kthreads, "{third:?} {fourth:?}");
    assert_eq!(fifth.kthreads, sixth.kthreads);
    assert!(programs(fifth) < programs(sixth), "{fifth:?} {sixth:?}");
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn programs_that_have_ended_leave_their_places_to_others() {
    let before = sched_getaffinity(None).unwrap();
    let core = (0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).unwrap() as u16;
    let Some(mut watch) = watch(core, &[]) else { return };
    bind(None, core);
    let mut child = Command::new("/bin/true").spawn().unwrap();
    child.wait().unwrap();
    let first = watch.read(Some(&[])).unwrap()[0];
    let is_there = |watch: &Watch| watch.strangers().iter().any(|it| it.tid == child.id());
    assert!(is_there(&watch), "it ran on core {core}");
    let has_place = |watch: &Watch| {
        let all = watch.strangers.entries(MAX_STRANGERS as usize).unwrap();
        all.iter().any(|(key, _)| key[0] as u32 == child.id())
    };
    assert!(has_place(&watch));
    let mut last = first;
    until("its place is free", || {
        last = watch.read(Some(&[])).unwrap()[0];
        !has_place(&watch)
    });
    assert!(!is_there(&watch));
    assert!(last.free.programs + last.taken.programs >= first.free.programs + first.taken.programs);
    sched_setaffinity(None, &before).unwrap();
}

#[test]
fn threads_without_a_place_are_one_stranger_without_a_name_for_each_moment() {
    let of = |programs| Strangers { programs, ..Strangers::default() };
    let time = CoreTime { core: 3, free: of(5), taken: of(7), ..CoreTime::default() };
    let found: Vec<_> = untold(&time).map(|it| (it.core, it.pid, it.waiter, it.ns)).collect();
    assert_eq!(found, [(3, 0, None, 5), (3, 0, Some(0), 7)]);
    assert_eq!(untold(&CoreTime::default()).count(), 0);
}

#[test]
fn a_refusal_says_what_is_needed() {
    assert_eq!(Refused::from(Errno::PERM).to_string(), "needs CAP_BPF and CAP_PERFMON");
    assert!(Refused::from(Errno::NOSYS).to_string().contains("eBPF"));
}
