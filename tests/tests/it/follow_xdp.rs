//! An AF_XDP port follows its interface: deleted and made anew, moved away and back, renamed.
//!
//! The interface is one end of a veth pair; Linux has the other end in a namespace of its own and
//! asks a service behind the port. Needs CAP_SYS_ADMIN and what AF_XDP needs; without them a
//! message says so and the tests are skipped.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use tailwater_testkit::namespace::Namespace;
use tailwater_testkit::{PATIENCE, until};
use tailwater_tests::{Bench, Role};

use crate::two_machines::{assert_clean, iokernel, two_namespaces, xdp_options, xdp_works};

/// Linux's address on the other end.
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);

/// An IOKernel on `here0`, an echo service, and Linux on the other end.
struct Setup {
    // The IOKernel ends before the namespaces.
    service: Role,
    bench: Bench,
    here: Namespace,
    there: Namespace,
}

impl Setup {
    /// Returns `None`, with the reason printed, where it cannot be made.
    fn new() -> Option<Self> {
        if !xdp_works() {
            return None;
        }
        let [here, there] = two_namespaces(1)?;
        let bench = here.inside(|| iokernel(1, &xdp_options("here0", "fill-checksums")));
        let service = here.inside(|| bench.child("echo", "service", "latency-critical"));
        let setup = Self { service, bench, here, there };
        setup.give_linux_its_address();
        setup.ask();
        assert_eq!((setup.account("absent"), setup.account("absences")), (0, 0));
        Some(setup)
    }

    fn give_linux_its_address(&self) {
        self.there.ip(&["addr", "add", &format!("{LINUX}/16"), "dev", "there0"]);
    }

    /// Sends datagrams from Linux to the service until one comes back.
    fn ask(&self) {
        let client = self.there.inside(|| UdpSocket::bind((LINUX, 0)).expect("Linux's own address"));
        client.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Fails after the service's address was not resolved.
            let sent = client.send_to(b"who is there", (self.service.ip, 7));
            let mut buffer = [0; 64];
            match sent.and_then(|_| client.recv(&mut buffer)) {
                Ok(len) => return assert_eq!(&buffer[..len], b"who is there"),
                Err(error) => assert!(Instant::now() < deadline, "{error}: {:#}", self.bench.stats()),
            }
        }
    }

    fn account(&self, field: &str) -> u64 {
        let stats = self.bench.stats();
        stats["ports"][1]["account"][field].as_u64().unwrap_or_else(|| panic!("{field}: {stats:#}"))
    }

    fn wait_until_absent(&self) {
        until("the port has noticed that its interface is gone", || self.account("absent") == 1);
    }
}

#[test]
fn a_port_takes_the_interface_that_is_made_anew() {
    let Some(setup) = Setup::new() else { return };
    for time in 1..=2 {
        setup.here.ip(&["link", "del", "here0"]);
        setup.wait_until_absent();
        setup.here.join("here0", &setup.there, "there0", 1);
        setup.give_linux_its_address();
        setup.ask();
        assert_eq!((setup.account("absent"), setup.account("absences")), (0, time));
    }
    let stats = setup.bench.stats();
    assert_eq!(stats["ports"][1]["account"]["queues"].as_array().map(Vec::len), Some(1), "{stats:#}");
}

#[test]
fn a_port_leaves_nothing_on_an_interface_that_moves_away_and_takes_it_when_it_is_back() {
    let Some(setup) = Setup::new() else { return };
    let elsewhere = Namespace::new().expect("as before");
    elsewhere.take(&setup.here, "here0");
    setup.wait_until_absent();
    assert_clean(&elsewhere, "here0");
    setup.here.take(&elsewhere, "here0");
    setup.here.ip(&["link", "set", "here0", "up"]);
    setup.ask();
    // Away and back, whether or not the port looks in between; its number may stay the same.
    elsewhere.take(&setup.here, "here0");
    setup.here.take(&elsewhere, "here0");
    setup.here.ip(&["link", "set", "here0", "up"]);
    setup.ask();
    assert_eq!((setup.account("absent"), setup.account("absences")), (0, 2));
}

#[test]
fn a_port_keeps_an_interface_that_is_renamed_until_another_one_has_the_name() {
    let Some(setup) = Setup::new() else { return };
    let Setup { here, there, .. } = &setup;
    for words in [&["down"][..], &["name", "lan0"]] {
        here.ip(&[&["link", "set", "here0"], words].concat());
    }
    here.ip(&["link", "set", "lan0", "up"]);
    setup.ask();
    assert_eq!((setup.account("absent"), setup.account("absences")), (0, 0));
    there.ip(&["link", "set", "there0", "name", "there1"]);
    there.ip(&["addr", "flush", "dev", "there1"]);
    here.join("here0", there, "there0", 1);
    setup.give_linux_its_address();
    setup.ask();
    assert_eq!((setup.account("absent"), setup.account("absences")), (0, 1));
    assert_clean(here, "lan0");
}
