//! An IOKernel with a TAP device in its own network namespace, with Linux's network stack at the
//! other end.
//!
//! Namespace and device end with the test, also when it is killed. Needs CAP_SYS_ADMIN and
//! CAP_NET_ADMIN; without them a message says so and the test is skipped.

use crate::Bench;
use std::fs::OpenOptions;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use tailwater_iokernel::Config;
use tailwater_ports::{Port, tap::TapPort};
use tailwater_testkit::namespace::in_namespace;
use tailwater_testkit::{has_two_cpus, until};

/// Linux's own address on the device.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Runs `test` in a new network namespace, or prints why it is skipped.
pub fn in_tap_namespace(test: impl FnOnce()) {
    // A container may have the device and not the right to open it.
    match OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) if has_two_cpus() => in_namespace(test),
        Ok(_) => {}
        Err(error) => eprintln!("skipped: cannot open /dev/net/tun ({error})"),
    }
}

/// Returns an IOKernel with a TAP device at [`HOST`], whose link carries packets of `mtu` bytes.
///
/// # Panics
/// If it cannot start.
pub fn bench_with_tap(mtu: u16) -> Bench {
    let tap: Box<dyn Port> = Box::new(TapPort::new("tw-test0", HOST));
    Bench::start(|config| config.mtu = mtu, vec![tap])
}

/// Returns Linux's own IPv6 address on the device, once Linux uses it.
///
/// It is tentative for a second (RFC 4862 section 5.4), in which a socket that connects gets the
/// address of the loopback interface, to which no answer can be routed.
///
/// # Panics
/// If the address stays tentative.
pub fn settled_ip6() -> Ipv6Addr {
    let ip6 = Config::default().ip6_of(HOST).expect("IPv6 is on by default");
    until("the device has its IPv6 address", || UdpSocket::bind((ip6, 0)).is_ok());
    ip6
}
