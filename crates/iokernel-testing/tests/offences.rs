//! Programs whose offences keep the polling thread busy are charged for it, and the others are
//! served.

mod common;

use common::{Running, ask, config, endpoint, eventually};
use std::cell::Cell;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_iokernel::{Account, Config, Grant};
use tailwater_iokernel_testing::attack::Attack;
use tailwater_iokernel_testing::child::{RawChild, run_if_asked};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};

/// Not a test: the body of the child processes the other tests start.
#[test]
fn raw_runtime_child() {
    if let Some(code) = run_if_asked() {
        assert_eq!(code, std::process::ExitCode::SUCCESS);
    }
}

/// Runs an attack beside a service that answers requests, until `enough`.
fn attack(attack: Attack, config: Config, enough: impl Fn(&Running) -> bool) {
    let (iokernel, station) = Running::with_station(config);
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| attack.run(&iokernel.socket, &stop, |_| ()).unwrap());
        // Also after a panic, or the thread would not end.
        let _stop = StopOnDrop(&stop);
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

fn expelled(iokernel: &Running) -> u64 {
    iokernel.stats.polling.expelled.get()
}

#[test]
fn a_sender_of_refused_frames_is_charged_for_them() {
    attack(Attack::Spoofed, config(), |iokernel| {
        expelled(iokernel) > 0 || iokernel.counter("attacker", |c| c.offence_ns.get()) > 100_000
    });
}

#[test]
fn a_program_that_asks_for_cores_in_vain_is_charged_for_them() {
    attack(Attack::VainCores, config(), |iokernel| {
        expelled(iokernel) > 0 || iokernel.counter("attacker", |c| c.vain_cores.get()) > 20
    });
}

#[test]
fn a_program_that_rings_for_nothing_is_charged_for_it() {
    // It sleeps between two requests.
    let restless = Config { idle_sleep_us: 20, ..config() };
    attack(Attack::Doorbell, restless, |iokernel| {
        expelled(iokernel) > 0 || iokernel.counter("attacker", |c| c.vain_rings.get()) > 100
    });
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

/// Returns a copy of this test program that runs only [`raw_runtime_child`], as this user.
fn child_of(user: u32) -> Command {
    // Not by path: folders above it may be closed to the user.
    let mut command = Command::new("/proc/self/exe");
    command.args(["raw_runtime_child", "--exact", "--nocapture", "--test-threads=1"]);
    command.uid(user).gid(user);
    command
}

#[test]
fn a_user_of_whom_a_program_was_expelled_registers_none_for_a_while() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a program of another user");
        return;
    }
    let users = vec![Account::Number(Attack::Spoofed.user())];
    let grant = vec![Grant { users, ..Grant::default() }];
    let (iokernel, station) = Running::with_station(Config { grant, ..config() });
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    let user = Attack::Spoofed.user();
    let attacker = RawChild::attack(child_of(user), &iokernel.socket, Attack::Spoofed, user);
    let _attacker = match attacker {
        Err(why) if why.contains("cannot start") || why.contains("may not bind") => {
            eprintln!("skipped: {why}");
            return;
        }
        attacker => attacker.unwrap(),
    };
    eventually("it is expelled", || expelled(&iokernel) > 0);
    let (before, refused) = (expelled(&iokernel), || iokernel.stats.polling.refused.get());
    let enough = refused() + 100;
    eventually("it tries again", || refused() > enough);
    // Its name is taken for a moment after an expulsion, which alone would refuse it a few times.
    assert!(expelled(&iokernel) <= before + 5, "expelled {} times", expelled(&iokernel) - before);
    ask(&station, endpoint(&service), 1);
}
