//! Programs whose offences keep the polling thread busy are charged for it, and the others are
//! served.

use crate::common::{Running, ask, child_command, config, endpoint, eventually};
use crate::tap;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_iokernel::config::Priority;
use tailwater_iokernel::{Account, Config, Grant, online_cores, real_time};
use tailwater_iokernel_testing::attack::Attack;
use tailwater_iokernel_testing::child::RawChild;
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};
use tailwater_ports::memory::MemoryPeer;
use tailwater_shm::control::ProgramClass;
use tailwater_testkit::namespace::in_namespace;

/// Runs an attack beside a service that answers requests, until `enough`.
fn attack(attack: Attack, config: Config, enough: impl Fn(&Running) -> bool) {
    attack_at(Running::with_station(config), None, attack, |_| (), enough);
}

/// As [`attack`], of this IOKernel, by a thread that may run on this core only if one is given;
/// `unasked` is called before the first request.
fn attack_at(
    (iokernel, station): (Running, MemoryPeer),
    core: Option<u16>,
    attack: Attack,
    unasked: impl FnOnce(&Running),
    enough: impl Fn(&Running) -> bool,
) {
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some(core) = core {
                let mut only = CpuSet::new();
                only.set(core.into());
                sched_setaffinity(None, &only).unwrap();
            }
            attack.run(&iokernel.socket, &stop, |_| ()).unwrap();
        });
        // Also after a panic, or the thread would not end.
        let _stop = StopOnDrop(&stop);
        unasked(&iokernel);
        let mut number = 0;
        eventually("the attack was noticed", || {
            ask(&station, endpoint(&service), number);
            number += 1;
            enough(&iokernel)
        });
    });
    // Races charge an honest program a few microseconds at most.
    assert_eq!(iokernel.counter("service", |c| c.throttled.get()), 0, "the service has done nothing");
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_sender_of_refused_frames_is_charged_for_them() {
    attack(Attack::Spoofed, config(), |iokernel| {
        iokernel.counter("attacker", |c| c.offence_ns.get()) > 100_000
    });
}

#[test]
fn a_sender_of_false_errors_of_routers_is_charged_for_them() {
    attack(Attack::FalseErrors, config(), |iokernel| {
        iokernel.counter("attacker", |c| c.offence_ns.get()) > 100_000
    });
}

#[test]
fn a_program_that_asks_for_cores_in_vain_is_charged_for_them() {
    attack(Attack::VainCores, config(), |iokernel| iokernel.counter("attacker", |c| c.vain_cores.get()) > 20);
}

#[test]
fn a_program_that_rings_for_nothing_is_charged_for_it() {
    // It sleeps between two requests.
    let restless = Config { idle_sleep_us: 20, ..config() };
    attack(Attack::Doorbell, restless, |iokernel| iokernel.counter("attacker", |c| c.vain_rings.get()) > 100);
}

#[test]
fn a_service_answers_beside_programs_whose_deeds_are_bounded_and_not_charged() {
    let attacks = [
        Attack::Unicast,
        Attack::ManyWords,
        Attack::Flapping,
        Attack::Registrations,
        Attack::Refusals,
        Attack::IdleConnections,
        Attack::MovedSleepers,
        Attack::WokenSleepers,
        Attack::EmptiedDoorbell,
        Attack::Memory,
        Attack::AsleepCores,
        Attack::ManyUnicast,
        Attack::Flips,
        Attack::TurnsInVain,
        Attack::Returns,
    ];
    for deed in attacks {
        println!("{}", deed.name());
        let answers = Cell::new(0);
        attack(deed, config(), |_| {
            answers.set(answers.get() + 1);
            answers.get() > 100
        });
    }
}

#[test]
fn a_service_answers_beside_a_flood_from_linux_through_another_service() {
    in_namespace(|| {
        let config = config();
        let Some(device) = tap::device(&config) else { return };
        let iokernel = Running::with_station_beside(config, vec![device]);
        // Linux got its MAC address, and the polling thread carries both directions.
        attack_at(
            iokernel,
            None,
            Attack::TapEcho,
            |_| (),
            |iokernel| {
                let port = &iokernel.stats.ports()[0];
                port.injected.get().min(port.transmitted.get()) > 10_000
            },
        );
    });
}

#[test]
fn beside_a_flood_from_linux_the_polling_thread_has_real_time_rank_while_a_service_has_other_clients() {
    in_namespace(|| {
        let shared = Config { neighbour_share: 10, priority: Priority::Thread, ..config() };
        if let Err(why) = real_time(&shared, false) {
            return eprintln!("skipped: {why}");
        }
        if online_cores().len() > 2 {
            return eprintln!("skipped: Linux does not say that a flood competes while other cores are free");
        }
        let Some(device) = tap::device(&shared) else { return };
        let (iokernel, station) = Running::with_station_beside(shared, vec![device]);
        let (core, was_in_real_time) = (Some(iokernel.own), Cell::new(false));
        let unasked = |iokernel: &Running| {
            eventually("the flood competed, and was yielded to", || {
                assert!(!is_in_real_time(iokernel.tid), "before a service has other clients");
                let polling = &iokernel.stats.polling;
                polling.contests.get() > 0 && polling.slices.get() > 20 && polling.yields.get() > 100
            });
        };
        // It gives slices, and in its rests it is an ordinary thread.
        attack_at((iokernel, station), core, Attack::TapEcho, unasked, |iokernel| {
            was_in_real_time.set(was_in_real_time.get() || is_in_real_time(iokernel.tid));
            was_in_real_time.get() && iokernel.stats.polling.slices.get() > 100
        });
    });
}

/// Returns whether a thread of this process has real-time rank.
fn is_in_real_time(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
    // Field 41 of proc_pid_stat(5), the policy; the third is the first after the name.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(41 - 3) == Some("1")
}

#[test]
fn a_user_whose_many_services_keep_cores_is_charged_for_what_an_honest_one_waits() {
    let Some(mut config) = permitting(Attack::ManyServices) else { return };
    config.grant[0].classes = vec![ProgramClass::LatencyCritical];
    let (iokernel, station) = Running::with_station(config);
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let Some(_attacker) = attacker_of_its_user(&iokernel, Attack::ManyServices) else { return };
    let mut number = 0;
    eventually("a millisecond for which the service waited is charged", || {
        ask(&station, endpoint(&service), number);
        number += 1;
        let programs = iokernel.stats.runtimes();
        let theirs = programs.iter().filter(|program| program.name != "service");
        theirs.map(|program| program.counters.late_ns.get()).sum::<u64>() > 1_000_000
    });
    assert_eq!(
        iokernel.stats.polling.expelled.get(),
        0,
        "no registration ends for what a correct runtime may do"
    );
}

#[test]
fn a_service_answers_beside_a_program_that_is_stopped_and_sent_frames() {
    // The stopped program is known by the cores that it does not start on.
    let (iokernel, station) = Running::with_station(Config { start_deadline_us: 2_000, ..config() });
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    // Of the same user: whether another may register is no matter here.
    let attacker = RawChild::attack(child_command(), &iokernel.socket, Attack::StoppedProgram, 0);
    let attacker = attacker.unwrap();
    let received = || iokernel.counter("attacker-stopped", |c| c.rx_frames.get());
    let no_starts = || iokernel.stats.cores.no_starts.get();
    let mut number = 0;
    eventually("it is sent frames, and does not start", || {
        ask(&station, endpoint(&service), number);
        number += 1;
        received() > 100 && no_starts() >= 3
    });
    drop(attacker);
    let names = || iokernel.stats.to_json()["runtimes"].as_array().map(Vec::len);
    eventually("the stopped program ends with the attacker", || names() == Some(1));
}

/// As [`child_command`], as this user.
fn child_of(user: u32) -> Command {
    let mut command = child_command();
    command.uid(user).gid(user);
    command
}

/// Starts an attacker of its own user, who may register programs; `None` where that is not
/// possible, and then prints that the test is skipped.
fn attacker_of_its_user(iokernel: &Running, attack: Attack) -> Option<RawChild> {
    match RawChild::attack(child_of(attack.user()), &iokernel.socket, attack, attack.user()) {
        Err(why) if why.contains("cannot start") || why.contains("may not bind") => {
            eprintln!("skipped: {why}");
            None
        }
        attacker => Some(attacker.unwrap()),
    }
}

/// Returns settings by which the user of this attacker may register programs; `None` where no other
/// user can be had, and then prints that the test is skipped.
fn permitting(attack: Attack) -> Option<Config> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a program of another user");
        return None;
    }
    let users = vec![Account::Number(attack.user())];
    Some(Config { grant: vec![Grant { users, ..Grant::default() }], ..config() })
}

#[test]
fn a_user_that_registers_and_leaves_without_end_is_charged_and_refused() {
    let Some(config) = permitting(Attack::Registrations) else { return };
    let (iokernel, station) = Running::with_station(Config { max_runtimes: 4, ..config });
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let Some(_attacker) = attacker_of_its_user(&iokernel, Attack::Registrations) else { return };
    let polling = &iokernel.stats.polling;
    let mut number = 0;
    eventually("it has registered and left often, and is refused", || {
        ask(&station, endpoint(&service), number);
        number += 1;
        polling.departed.get() > 20 && polling.refused.get() > 500
    });
    assert!(polling.registration_ns.get() > 0);
}
