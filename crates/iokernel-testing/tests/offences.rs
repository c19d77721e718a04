//! Programs whose offences keep the polling thread busy are charged for it, and the others are
//! served.

mod common;

use common::{Running, ask, config, endpoint, eventually};
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_iokernel::Config;
use tailwater_iokernel_testing::attack::Attack;
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};

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
        expelled(iokernel) > 0 || iokernel.counter("attacker", |c| c.vain_cores.get()) > 100
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
