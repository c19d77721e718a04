//! A runtime that dies, misbehaves or is hostile costs the others at most a hand-off.

use crate::common::{Running, ask, child_command, config, endpoint, eventually};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tailwater_iokernel::Config;
use tailwater_iokernel_testing::attack::Puppet;
use tailwater_iokernel_testing::child::{RawChild, Role};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::wire::udp;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};

#[test]
fn a_killed_runtime_leaves_nothing_behind_and_the_survivor_loses_no_request() {
    let (iokernel, station) = Running::with_station(config());
    let survivor =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("survivor"), |_| Box::<Echo>::default()).unwrap();
    let victim = RawSpec::new("victim").best_effort();
    for round in 0..40u64 {
        let role = if round % 2 == 0 { Role::Burn } else { Role::Echo };
        // The same name each time: it is free again as soon as the previous child is dead.
        let mut child = RawChild::start(child_command(), &iokernel.socket, &victim, role).unwrap();
        let target = iokernel.endpoint_of("victim");
        for number in 0..4 {
            assert!(station.send(&udp(crate::common::STATION, target, &[0; 24])));
            ask(&station, endpoint(&survivor), round * 100 + number);
        }
        if role == Role::Burn {
            eventually("the victim has the core", || iokernel.counter("victim", |c| c.cores.get()) == 1);
        }
        child.kill();
        if role == Role::Burn {
            // The survivor's request could take the core from the dead kthread before that.
            eventually("its death is noticed", || iokernel.stats.polling.departed.get() == round + 1);
        }
        ask(&station, endpoint(&survivor), round * 100 + 50);
    }
    eventually("the last victim is gone", || iokernel.stats.runtimes().len() == 1);
    assert_eq!(iokernel.stats.polling.departed.get(), 40);
    let reclaim = &iokernel.stats.reclaim;
    let (noticed, alive) = (reclaim.since_notice.snapshot(), reclaim.since_alive.snapshot());
    let describe = |h: &hdrhistogram::Histogram<u64>| {
        format!("{} ns at least, {} at the median, {} at most", h.min(), h.value_at_quantile(0.5), h.max())
    };
    println!("{} cores taken back: since the notice {}", noticed.len(), describe(&noticed));
    println!("since the dead were last seen alive {}", describe(&alive));
    // Of 20, since Linux may have kept one from running until the survivor had its core.
    assert!(noticed.len() > 10, "{} victims had a core", noticed.len());
    assert_eq!(alive.len(), noticed.len());
    assert!(alive.min() >= noticed.min() && alive.max() >= noticed.max(), "noticed before the death");
    drop(survivor);
    eventually("no runtime is registered", || iokernel.stats.runtimes().is_empty());
}

/// A puppet that overwrites words at random.
fn vandal(socket: &str, name: &str) -> Puppet {
    Puppet::register(socket, &RawSpec::new(name).best_effort()).unwrap()
}

/// Overwrites `count` random 64-bit words, often with small numbers, which resemble indexes and
/// lengths.
fn scribble(vandal: &Puppet, random: &mut Xoshiro256PlusPlus, count: usize) {
    let len = vandal.words();
    for _ in 0..count {
        // Half of the time one of the most important words.
        let range = if random.next_u64().is_multiple_of(2) { 1024.min(len) } else { len };
        let (at, value) = (random.next_u64() % range, random.next_u64());
        let value = if value.is_multiple_of(3) { value } else { value % 70_000 };
        vandal.store(at, value);
    }
}

fn is_expelled(puppet: &Puppet) -> bool {
    puppet.farewell(Duration::ZERO).is_some()
}

#[test]
fn garbage_in_a_region_costs_its_runtime_and_nobody_else() {
    // A vandal's thread never starts: it must not hold the core for long.
    let (iokernel, station) = Running::with_station(Config { start_deadline_us: 2_000, ..config() });
    let survivor =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("survivor"), |_| Box::<Echo>::default()).unwrap();
    let seed = 0x7461_696c_7761_7465;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut number = 0;
    for round in 0..20 {
        let vandal = vandal(&iokernel.socket, &format!("vandal {round}"));
        let target = iokernel.endpoint_of(&format!("vandal {round}"));
        for _ in 0..20 {
            scribble(&vandal, &mut random, 2_000);
            station.send(&udp(crate::common::STATION, target, &[0; 24]));
            ask(&station, endpoint(&survivor), number);
            number += 1;
            if is_expelled(&vandal) {
                break;
            }
        }
    }
    println!("seed {seed:#x}: {} of 20 vandals were expelled", iokernel.stats.polling.expelled.get());
    assert!(iokernel.stats.polling.expelled.get() > 0, "no vandal was noticed in 20 rounds (seed {seed:#x})");
    eventually("only the survivor is left", || iokernel.stats.runtimes().len() == 1);
}

#[test]
fn records_written_once_are_not_sent_for_ever() {
    let (iokernel, station) = Running::with_station(config());
    let survivor =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("survivor"), |_| Box::<Echo>::default()).unwrap();
    let repeater = vandal(&iokernel.socket, "repeater");
    // Behind the header, the words of the kthread, and its ingress ring.
    let ring_bytes = u64::from(RawSpec::new("repeater").register.ring_bytes);
    let first = (4096 + 4096 + ring_bytes) / 8;
    for line in 0..ring_bytes / 64 {
        // A frame of 40 bytes, of the ring's first lap.
        repeater.store(first + line * 8, 40 | 1 << 16);
    }
    let target = iokernel.endpoint_of("repeater");
    // A frame for it has the IOKernel lend it a core and look at its ring.
    station.send(&udp(crate::common::STATION, target, &[0; 24]));
    eventually("the ring has been read once", || iokernel.stats.polling.expelled.get() == 1);
    eventually("it is told", || is_expelled(&repeater));
    ask(&station, endpoint(&survivor), 0);
}

#[test]
fn what_a_program_claims_of_its_requests_is_shown_as_printable_text() {
    let (iokernel, station) = Running::with_station(config());
    let survivor =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("survivor"), |_| Box::<Echo>::default()).unwrap();
    let liar = vandal(&iokernel.socket, "liar");
    // The last page of the region: each entry is whole, and named like an order to a terminal.
    let len = liar.words();
    let order = u64::from_le_bytes(*b"\x1b[2J\xff\n\"\x1b");
    for at in len - 512..len {
        let is_version = (len - at).is_multiple_of(32);
        liar.store(at, if is_version { 2 } else { order });
    }
    let stats = iokernel.stats.to_json();
    let runtimes = stats["runtimes"].as_array().unwrap();
    let classes = |name: &str| {
        let runtime = runtimes.iter().find(|runtime| runtime["name"] == name);
        runtime.expect("it is registered")["classes"].as_array().unwrap()
    };
    assert_eq!((classes("survivor").len(), classes("liar").len()), (0, 16));
    for class in classes("liar") {
        let name = class["name"].as_str().unwrap();
        assert!(name.starts_with("\\u{1b}[2J\\u{fffd}\\n"), "{name:?}");
        assert!(name.chars().all(|c| c.is_ascii_graphic()), "{name:?}");
    }
    ask(&station, endpoint(&survivor), 0);
}

/// Stops a child; returns once all its threads are stopped.
fn stop(child: rustix::process::Pid) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};
    kill_process(child, Signal::STOP).unwrap();
    waitid(WaitId::Pid(child), WaitIdOptions::STOPPED).unwrap();
}

#[test]
fn a_stopped_program_that_is_sent_frames_does_not_keep_the_polling_thread_awake() {
    let (iokernel, station) = Running::with_station(Config { start_deadline_us: 2_000, ..config() });
    let spec = RawSpec::new("stopped");
    let child = RawChild::start(child_command(), &iokernel.socket, &spec, Role::Echo).unwrap();
    let target = iokernel.endpoint_of("stopped");
    ask(&station, target, 1);
    let cores = || iokernel.counter("stopped", |c| c.cores.get());
    let pid = rustix::process::Pid::from_raw(child.pid() as i32).unwrap();
    // A question that was asked again may come while it stops: then it keeps the core it works on.
    eventually("it is stopped without a core", || {
        if cores() == 0 {
            stop(pid);
            if cores() == 0 {
                return true;
            }
            rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        }
        false
    });
    station.send(&udp(crate::common::STATION, target, &[0; 24]));
    let no_starts = || iokernel.stats.cores.no_starts.get();
    eventually("it does not start on its core", || no_starts() >= 3);
    let (before, slept) = (no_starts(), iokernel.stats.polling.slept_ns.get());
    // It has work all the time, is lent a core now and then, and the polling thread sleeps.
    eventually("the polling thread sleeps for longer than it could in one sleep", || {
        no_starts() > before && iokernel.stats.polling.slept_ns.get() - slept > 300_000_000
    });
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    ask(&station, target, 2);
}

#[test]
fn a_runtime_that_floods_its_egress_ring_does_not_stop_the_others() {
    // Its frames are offences. With all of the polling thread's time it is never throttled, and so
    // not expelled before the others have asked.
    let (iokernel, station) = Running::with_station(Config { offence_share: 100, ..config() });
    let survivor =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("survivor"), |_| Box::<Echo>::default()).unwrap();
    let flood = RawSpec::new("flood").best_effort();
    let target = survivor.ip();
    let flood = RawRuntime::start(&iokernel.socket, &flood, |_| Box::new(Flood { target })).unwrap();
    flood.submit(0);
    let sent = || iokernel.counter("flood", |c| c.tx_frames.get());
    eventually("frames pour in", || sent() > 10_000);
    for number in 0..20 {
        ask(&station, endpoint(&survivor), number);
        let before = sent();
        eventually("they go on", || sent() > before);
    }
}

/// Sends as fast as its ring takes frames, from a foreign address, and reads nothing but its grant.
struct Flood {
    target: std::net::Ipv4Addr,
}

impl tailwater_iokernel_testing::Behaviour for Flood {
    fn step(&mut self, k: &mut tailwater_iokernel_testing::RawKthread) -> tailwater_iokernel_testing::Step {
        let spoofed = crate::common::STATION;
        let to = tailwater_iokernel_testing::wire::Endpoint {
            mac: tailwater_wire::MacAddr::derived(self.target),
            ip: self.target,
            port: 7,
        };
        let frame = udp(spoofed, to, &[0; 32]);
        while let Ok(mut slot) = k.egress.reserve(frame.len()) {
            slot.write(0, &frame);
            slot.commit(0, 0, 0);
            k.ring_from_core();
        }
        tailwater_iokernel_testing::Step::Busy
    }
    fn has_work(&self, _: &tailwater_iokernel_testing::RawKthread) -> bool {
        true
    }
    fn started(&mut self, k: &mut tailwater_iokernel_testing::RawKthread, _: u64) {
        k.submitted().store(0, Ordering::Relaxed);
        k.set_queued(0);
    }
    fn ceding(&mut self, k: &mut tailwater_iokernel_testing::RawKthread) {
        k.set_queued(1);
    }
}
