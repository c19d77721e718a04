//! The interface of a port, as Linux has it.
//!
//! Owns the looks of the control thread at it: once a second for what an administrator or a network
//! manager does to an interface behind the port's back. An interface that goes down loses its IPv6
//! addresses (ip-sysctl, `keep_addr_on_down`), and may be up again before the next look, so Linux's
//! side gets its address back whenever it is missing. One that is deleted, or moved to another
//! network namespace, is reported: the descriptors of an AF_XDP port stay valid, and nothing passes
//! any more. If Linux goes on using the interface of an AF_XDP port, [`Follower`] follows what it
//! has.

use rustix::io::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::xdp::Follower;
use crate::frame::PREFIX_LEN6;
use crate::sys::interface::Interface;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug)]
pub struct PortInterface {
    name: String,
    interface: Interface,
    index: u32,
    /// The address to give back.
    ip6: Option<Ipv6Addr>,
    is_up: bool,
    /// False once the end of the interface was reported, or if the port itself reports it.
    reports_end: bool,
    next: Option<Instant>,
    follower: Option<Follower>,
}

impl PortInterface {
    /// Returns the interface of this name; `None` if there is none.
    pub(crate) fn new(name: &str, ip6: Option<Ipv6Addr>, reports_end: bool) -> Option<Self> {
        let interface = Interface::new(name).ok()?;
        let (index, is_up) = (interface.index().ok()?, interface.is_up());
        let (name, next, follower) = (name.to_owned(), None, None);
        Some(Self { name, interface, index, ip6, is_up, reports_end, next, follower })
    }

    /// Has this follow what Linux has.
    pub(crate) fn with(mut self, follower: Option<Follower>) -> Self {
        self.follower = follower;
        self
    }

    /// Notes that these are the addresses of the programs.
    pub(crate) fn set_programs(&mut self, addresses: &[IpAddr]) {
        if let Some(follower) = &mut self.follower {
            follower.set_programs(addresses.iter().copied());
        }
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub(crate) fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        self.follower.as_mut()?.take_taken()
    }

    /// Looks at the interface if it is time.
    pub(crate) fn look(&mut self, now: Instant) {
        if let Some(follower) = &mut self.follower {
            follower.follow(now);
        }
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + PAUSE);
        let port = &self.name;
        if self.interface.index() != Ok(self.index) {
            if core::mem::take(&mut self.reports_end) {
                tracing::warn!(
                    port,
                    "the interface is gone, deleted or moved to another network namespace: no frames pass; restart the \
                     IOKernel when it is back"
                );
            }
            return;
        }
        let was_up = core::mem::replace(&mut self.is_up, self.interface.is_up());
        if was_up && !self.is_up {
            tracing::warn!(port, "the interface is down: no frames pass until `ip link set {port} up`");
        }
        if self.is_up {
            self.give_back_address(was_up);
        }
    }

    /// Adds the IPv6 address if it is missing; `was_up` at the look before, the interface may have
    /// been down since.
    fn give_back_address(&self, was_up: bool) {
        let port = &self.name;
        let given = self.ip6.map_or(Ok(false), |ip6| self.interface.add_ip6(ip6, PREFIX_LEN6));
        match given {
            Ok(true) if was_up => {
                tracing::info!(port, "the interface had lost its IPv6 address, and has it again");
            }
            // Without the right to add one it is not known whether one is missing.
            _ if was_up => {}
            Ok(_) => tracing::info!(port, "the interface is up again"),
            Err(error @ (Errno::PERM | Errno::ACCESS)) => {
                tracing::warn!(port, %error, "the interface is up again, and may not get its IPv6 address back");
            }
            Err(error) => {
                tracing::warn!(port, %error, "the interface is up again, without its IPv6 address");
            }
        }
    }
}
