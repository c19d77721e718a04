//! The TAP port against the Linux network stack. Needs CAP_NET_ADMIN; without it, only the error is
//! tested.

use crate::common::{PATIENCE, Running, config};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};
use tailwater_iokernel::{Config, IoKernel};
use tailwater_iokernel_testing::roles::Echo;
use tailwater_iokernel_testing::{RawRuntime, RawSpec};
use tailwater_ports::Port;
use tailwater_ports::tap::TapPort;
use tailwater_testkit::namespace::in_namespace;

#[test]
fn linux_reaches_a_service_through_a_tap_device() {
    in_namespace(linux_reaches_a_service);
}

/// Linux's address on the device.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Returns a port of a TAP device for an IOKernel with these settings; `None` where there can be
/// none, and then prints that the rest is skipped.
pub fn device(config: &Config) -> Option<Box<dyn Port>> {
    let port = || Box::new(TapPort::new("tw0", HOST));
    let probe = Config { socket: format!("{}-probe", config.socket), ..config.clone() };
    if let Err(error) = IoKernel::new(probe, vec![port()]) {
        let text = error.to_string();
        assert!(text.contains("CAP_NET_ADMIN") || text.contains("/dev/net/tun"), "{text}");
        eprintln!("skipped the rest: {text}");
        return None;
    }
    Some(port())
}

/// In a network namespace of its own.
fn linux_reaches_a_service() {
    let config = config();
    let Some(port) = device(&config) else { return };
    let iokernel = Running::start(config, vec![port]);
    let service =
        RawRuntime::start(&iokernel.socket, &RawSpec::new("service"), |_| Box::<Echo>::default()).unwrap();
    assert_eq!(service.shared.welcome.gateway, Some(HOST));
    let socket = UdpSocket::bind((HOST, 0)).unwrap();
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
