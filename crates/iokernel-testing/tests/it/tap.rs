//! The TAP port against the Linux network stack. Needs CAP_NET_ADMIN; without it, only the error is
//! tested.

use crate::common::{PATIENCE, config};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use tailwater_iokernel::{Config, IoKernel};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};
use tailwater_ports::tap::TapPort;
use tailwater_testkit::namespace::in_namespace;

#[test]
fn linux_reaches_a_service_through_a_tap_device() {
    in_namespace(linux_reaches_a_service);
}

/// In a network namespace of its own.
fn linux_reaches_a_service() {
    let (name, host) = ("tw0", Ipv4Addr::new(10, 77, 0, 1));
    let config = config();
    let probe = Config { socket: format!("{}-probe", config.socket), ..config.clone() };
    if let Err(error) = IoKernel::new(probe, vec![Box::new(TapPort::new(name, host))]) {
        let text = error.to_string();
        assert!(text.contains("CAP_NET_ADMIN") || text.contains("/dev/net/tun"), "{text}");
        eprintln!("skipped the rest: {text}");
        return;
    }
    let iokernel = crate::common::Running::start(config, vec![Box::new(TapPort::new(name, host))]);
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    assert_eq!(service.shared.welcome.gateway, Some(host));
    // A raw runtime does not answer ARP: Linux gets its address from here.
    let neighbour =
        ["neigh", "replace", &service.ip().to_string(), "lladdr", &service.mac().to_string(), "dev", name];
    assert!(Command::new("ip").args(neighbour).status().unwrap().success());
    let socket = UdpSocket::bind((host, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let end = Instant::now() + PATIENCE;
    // More than 20 if Linux lets the polling thread run too seldom for an idle turn between frames.
    let yields = || iokernel.stats.polling.yields.get();
    for number in (0u64..).take_while(|&number| number < 20 || yields() == 0) {
        let request = [[0; 16].as_slice(), &number.to_le_bytes()].concat();
        let mut answer = [0; 64];
        loop {
            socket.send_to(&request, (service.ip(), 7)).unwrap();
            let answered = socket.recv(&mut answer).is_ok_and(|len| answer[16..len] == number.to_le_bytes());
            if answered {
                break;
            }
            assert!(Instant::now() < end, "no answer to request {number}");
        }
    }
    let port = &iokernel.stats.ports()[0];
    crate::common::eventually("both directions are counted", || {
        port.injected.get() >= 20 && port.transmitted.get() >= 20
    });
}
