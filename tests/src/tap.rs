//! A network namespace with a TAP device, behind which is Linux's own network stack.
//!
//! The namespace has no name: it is that of a thread, and it and the device go with the thread, also when the test is killed.
//! Needs CAP_SYS_ADMIN and CAP_NET_ADMIN; says so and skips without.

use crate::{Bench, cpus};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::Ipv4Addr;
use tailwater_iokernel::Config;
use tailwater_iokernel::port::{Port, tap::TapPort};

/// Linux's own address on the device.
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Runs `test` on a thread in a fresh network namespace.
pub fn in_namespace(test: impl FnOnce() + Send) {
    if cpus() < 2 {
        return eprintln!("skipped: needs 2 CPUs, this machine lets us use {}", cpus());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return eprintln!("skipped: this kernel has no /dev/net/tun");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a network namespace affects no memory; only this thread and those it starts are moved.
            match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
                Ok(()) => test(),
                Err(error) => eprintln!("skipped: no network namespace without CAP_SYS_ADMIN ({error})"),
            }
        });
    });
}

/// An IOKernel with a TAP device at [`HOST`], whose link carries packets of `mtu` bytes.
///
/// # Panics
/// If it cannot start.
pub fn bench_with_tap(mtu: u16) -> Bench {
    let tap: Box<dyn Port> = Box::new(TapPort::new("tw-test0", HOST));
    let configure = |config: &mut Config| {
        config.managed_cores = Some(vec![1]);
        config.mtu = mtu;
    };
    Bench::start(configure, vec![tap])
}
