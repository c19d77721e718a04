//! A TAP device as the uplink: Linux on this machine, and what it routes to, talks to runtimes.
//!
//! Owns the device and its interface's addresses, which are the gateways of the runtimes: the IPv4 address it was made with and, on a
//! network with IPv6, the one that goes with it. Linux does neighbour discovery for both by itself. Frames cross by one `read` or `write`
//! each (about 0.4 million a second, 4.3 us round trip on a 2-vCPU VM), without checksum offload, so that what runtimes see
//! is complete. ARP and ICMP are answered by the runtimes' own stacks.
//!
//! Reading an empty device costs a system call (0.2 us), so after an empty read the device is left alone for
//! `RECHECK_NS`; while the IOKernel sleeps, its descriptor wakes it.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use std::net::Ipv4Addr;
use tailwater_shm::Cycles;
use tailwater_shm::ring::MAX_FRAME;

use super::{Attachment, Context, Inject, Port, PortError};
use crate::config::PREFIX_LEN6;
use crate::sys::tap::{Interface, MAX_NAME, open_tap};

/// Pause after an empty read: at most 7 % of the loop's time, and 3 us of latency beside the 4.3 us that a TAP round trip
/// takes anyway.
const RECHECK_NS: u64 = 3_000;

/// See the module documentation.
#[derive(Debug)]
pub struct TapPort {
    name: String,
    host: Ipv4Addr,
    device: Option<OwnedFd>,
    recheck: Cycles,
    next_read: Cycles,
    buffer: Vec<u8>,
}

impl TapPort {
    /// A port on the TAP device `name`, whose interface gets address `host`; both are made or changed at
    /// [`start`](Port::start).
    pub fn new(name: &str, host: Ipv4Addr) -> Self {
        Self {
            name: name.to_owned(),
            host,
            device: None,
            recheck: 0,
            next_read: 0,
            buffer: vec![0; MAX_FRAME],
        }
    }

    fn fail(&self, why: String) -> PortError {
        PortError { port: self.name.clone(), why }
    }

    /// What to do about an error of the kernel's.
    fn explain(&self, what: &str, error: Errno, prefix_len: u8) -> PortError {
        let (name, host) = (&self.name, self.host);
        self.fail(match error {
            Errno::PERM | Errno::ACCESS => format!(
                "cannot {what}: CAP_NET_ADMIN is missing; run as root, or `setcap cap_net_admin+ep` this program, or have \
                 an administrator run: ip tuntap add dev {name} mode tap user $USER && \
                 ip addr add {host}/{prefix_len} dev {name} && ip link set {name} up"
            ),
            Errno::NOENT | Errno::NODEV => {
                format!("cannot {what}: /dev/net/tun is missing; load the tun module (modprobe tun)")
            }
            Errno::BUSY => format!("cannot {what}: another program uses {name}; choose another name"),
            Errno::INVAL => format!(
                "cannot {what}: the name must have 1 to {MAX_NAME} bytes and be that of no device of another kind"
            ),
            other => format!("cannot {what}: {other}"),
        })
    }
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: Some(self.host) }
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        let prefix_len = context.prefix_len;
        self.recheck = context.clock.from_ns(RECHECK_NS);
        let device = open_tap(&self.name).map_err(|e| self.explain("make the TAP device", e, prefix_len))?;
        let interface =
            Interface::new(&self.name).map_err(|e| self.explain("open a socket", e, prefix_len))?;
        match interface.configure(self.host, prefix_len, context.mtu) {
            Ok(()) => {}
            // An administrator did it for us.
            Err(Errno::PERM | Errno::ACCESS) if interface.is_configured(self.host) => {}
            Err(error) => return Err(self.explain("set its address", error, prefix_len)),
        }
        if let Some(ip6) = context.ip6_of(self.host)
            && let Err(error) = interface.add_ip6(ip6, PREFIX_LEN6)
        {
            // IPv4 works, which is what most have come for: a kernel without IPv6 must not cost them that.
            tracing::warn!(port = self.name, %ip6, %error, "the interface has no IPv6 address; runtimes keep theirs");
        }
        self.device = Some(device);
        Ok(())
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        let Some(device) = &self.device else { return Ok(0) };
        if now < self.next_read {
            return Ok(0);
        }
        let mut frames = 0;
        while frames < budget {
            match read(device, &mut self.buffer) {
                Ok(len) => {
                    switch.inject(&self.buffer[..len]);
                    frames += 1;
                }
                Err(Errno::AGAIN) => {
                    self.next_read = now.saturating_add(self.recheck);
                    break;
                }
                Err(Errno::INTR) => break,
                Err(error) => return Err(self.fail(format!("cannot read: {error}; was the device deleted?"))),
            }
        }
        Ok(frames)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        // A full queue, or an interface that is down: dropped, as on any wire.
        self.device.as_ref().is_some_and(|device| write(device, frame).is_ok())
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.device.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named_with_three_ways_to_get_it() {
        let port = TapPort::new("tw0", Ipv4Addr::new(10, 77, 0, 1));
        let error = port.explain("make the TAP device", Errno::PERM, 16).to_string();
        for words in ["tw0", "CAP_NET_ADMIN", "root", "setcap", "ip addr add 10.77.0.1/16 dev tw0"] {
            assert!(error.contains(words), "{words:?} is not in: {error}");
        }
        assert!(!error.contains('\n'));
    }
}
