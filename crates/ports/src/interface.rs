//! The interface of a port, as Linux has it.
//!
//! Owns the looks of the control thread at it: once a second, and more often while it is away, for
//! what an administrator or a network manager does to an interface behind the port's back. An
//! interface that goes down loses its IPv6 addresses (ip-sysctl, `keep_addr_on_down`), and may be
//! up again before the next look, so Linux's side gets its address back whenever it is missing. The
//! interface of an AF_XDP port may be deleted, moved to another network namespace, and made anew:
//! its [`Follower`] attaches the port to the one that has the name, and keeps up with what Linux
//! has where Linux goes on using the interface. A TAP device is the port's own, which fails when it
//! is deleted.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use tailwater_sched::RuntimeId;
use tailwater_shm::control::Listen;
use tailwater_wire::MacAddr;
use tailwater_wire::frame::PREFIX_LEN6;

use super::xdp::Follower;
use crate::sys::interface::Interface;

/// Time between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between two looks while the port waits for its interface.
const ABSENT_PAUSE: Duration = Duration::from_millis(200);

/// See the module documentation.
#[derive(Debug)]
pub struct PortInterface {
    name: String,
    interface: Interface,
    index: u32,
    /// The address to give back.
    ip6: Option<Ipv6Addr>,
    is_up: bool,
    follower: Option<Follower>,
    next: Option<Instant>,
}

impl PortInterface {
    /// Returns the interface of this name; `None` if there is none.
    pub(crate) fn new(name: &str, ip6: Option<Ipv6Addr>) -> Option<Self> {
        let interface = Interface::new(name).ok()?;
        let (index, is_up) = (interface.index().ok()?, interface.is_up());
        Some(Self { name: name.to_owned(), interface, index, ip6, is_up, follower: None, next: None })
    }

    /// Has the port follow what becomes of the interface, whose number `follower` is given.
    pub(crate) fn followed_by(mut self, follower: impl FnOnce(u32) -> Option<Follower>) -> Option<Self> {
        self.follower = Some(follower(self.index)?);
        Some(self)
    }

    /// Returns whether programs share Linux's addresses there, and [claim](Self::claim) ports.
    pub fn shares_ports(&self) -> bool {
        self.follower.as_ref().is_some_and(Follower::shares_ports)
    }

    /// Returns the name of the port, which is that of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes that these are the addresses of the programs.
    pub fn set_programs(&mut self, addresses: &[IpAddr]) {
        if let Some(follower) = &mut self.follower {
            follower.set_programs(addresses);
        }
    }

    /// Gives a program the ports that it requests, if programs share Linux's addresses; returns
    /// those for its own connections. `None` if all ports are each program's own.
    ///
    /// # Errors
    /// In words: which port it cannot have, and why.
    pub fn claim(
        &mut self,
        id: RuntimeId,
        place: (Ipv4Addr, Option<Ipv6Addr>),
        listens: &[Listen],
    ) -> Result<Option<(u16, u16)>, String> {
        self.follower.as_mut().map_or(Ok(None), |follower| follower.claim(id, place, listens))
    }

    /// Takes the ports of an instance that is registered no more, or was refused.
    pub fn release(&mut self, id: RuntimeId) {
        if let Some(follower) = &mut self.follower {
            follower.release(id);
        }
    }

    /// Notes that programs wait for the next IOKernel from now on: what they have stays theirs.
    pub fn keep_programs(&mut self) {
        if let Some(follower) = &mut self.follower {
            follower.keep_programs();
        }
    }

    /// Leaves to another IOKernel what it has taken over.
    pub fn leave(&mut self) {
        if let Some(follower) = &mut self.follower {
            follower.leave();
        }
    }

    /// Returns the addresses that no program may have, if they have changed since the last call.
    pub fn take_taken(&mut self) -> Option<HashSet<IpAddr>> {
        self.follower.as_mut()?.take_taken()
    }

    /// Returns the interface's own MAC address, which no program may have, if it has changed since
    /// the last call.
    pub fn take_mac(&mut self) -> Option<MacAddr> {
        self.follower.as_mut()?.take_mac()
    }

    /// Looks at the interface if it is time. If the port has let go of its interface or taken
    /// another one, the result is its new devices, and the polling thread is to be woken.
    pub fn look(&mut self, now: Instant) -> Option<Vec<OwnedFd>> {
        if let Some(follower) = &mut self.follower {
            follower.keep_up(now);
        }
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        let devices = self.follower.as_mut().and_then(|follower| follower.follow(&self.interface));
        let is_absent = self.follower.as_ref().is_some_and(|follower| !follower.is_attached());
        self.next = Some(now + if is_absent { ABSENT_PAUSE } else { PAUSE });
        if let Ok(index) = self.interface.index()
            && !is_absent
        {
            if self.follower.is_some() && index != self.index {
                // The port has taken it, so it was up.
                (self.index, self.is_up) = (index, true);
            }
            if index == self.index {
                self.look_whether_up();
            }
        }
        devices
    }

    fn look_whether_up(&mut self) {
        let port = &self.name;
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
