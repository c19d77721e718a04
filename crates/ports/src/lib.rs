//! Ports: where frames enter and leave the IOKernel.
//!
//! Owns the [`Port`] trait and its implementations: [`memory`] (a pair for tests and embedding),
//! [`tap`] (a Linux network device), [`xdp`] (an interface through AF_XDP), [`pcap`] (a capture
//! file), and [`fault`] (a bad network around another port); [`options`] builds them from words,
//! [`publish`] names what Linux passes to programs behind a TAP device, and [`card`] reads what an
//! interface can do. The load generator implements the trait in its own crate. Also for how long
//! ports and the switch keep what was a program's ([`KEPT_S`], [`MOST_KEPT`]).
//!
//! By the trait a port knows nothing about runtimes, cores or rings: it passes frames to the switch
//! through [`Inject`] and receives frames through [`Port::transmit`]. Beside it the control thread
//! tells a port that shares an interface with Linux which programs there are, by number, address
//! and ports ([`PortInterface`]).
//!
//! From the first [`Port::poll`] on all methods run on the polling thread, between other ports and
//! hand-offs: none may block, and none should take longer than a few microseconds. Ports are
//! trusted (they are code of this process or the administrator's device), so the switch checks only
//! the length of frames they inject.
//!
//! # Example
//!
//! A station that sends a frame to a service every millisecond and counts the answers:
//!
//! ```
//! use std::net::Ipv4Addr;
//! use tailwater_wire::MacAddr;
//! use tailwater_ports::{Attachment, Context, Inject, Port, PortError};
//! use tailwater_shm::Cycles;
//!
//! struct Metronome { period: Cycles, next: Cycles, frame: [u8; 60], answers: u64 }
//!
//! impl Port for Metronome {
//!     fn name(&self) -> &str { "metronome" }
//!     fn attachment(&self) -> Attachment {
//!         let ip = Some(Ipv4Addr::new(10, 77, 0, 250));
//!         Attachment::Station { mac: MacAddr([2, 0, 0, 0, 0, 1]), ip }
//!     }
//!     fn start(&mut self, context: &Context) -> Result<(), PortError> {
//!         self.period = context.clock.from_ns(1_000_000);
//!         Ok(())
//!     }
//!     fn poll(
//!         &mut self,
//!         now: Cycles,
//!         budget: usize,
//!         switch: &mut dyn Inject,
//!     ) -> Result<usize, PortError> {
//!         let mut sent = 0;
//!         while sent < budget && now >= self.next && (sent == 0 || switch.may_go_on(false)) {
//!             switch.inject(&self.frame);
//!             self.next += self.period;
//!             sent += 1;
//!         }
//!         Ok(sent)
//!     }
//!     fn transmit(&mut self, _now: Cycles, _frame: &[u8]) -> bool { self.answers += 1; true }
//!     // The loop may sleep until then, and wakes early enough to be on time.
//!     fn next_event(&self) -> Option<Cycles> { Some(self.next) }
//! }
//! ```

#![deny(unsafe_code)]

pub mod card;
mod checksum;
pub mod fault;
mod grammar;
mod interface;
pub mod memory;
pub mod options;
pub mod pcap;
pub mod publish;
mod sys;
pub mod tap;
mod tap_offload;
pub mod xdp;

pub use interface::PortInterface;

use rustix::fd::{BorrowedFd, OwnedFd};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tailwater_shm::{Clock, Cycles};
use tailwater_wire::MacAddr;

/// Maximum number of frames that a port may inject per [`Port::poll`]. The switch ends a poll that
/// takes long before that, of a port that asks: [`Inject::may_go_on`].
pub const PORT_BUDGET: usize = 32;

/// For how long what was a program's is kept after its end, in seconds: about as long as Linux
/// sends a segment again (`tcp_retries2`). The switch answers for its address, a port that shares
/// the interface's address for its ports.
pub const KEPT_S: u64 = 900;
/// Maximum number of addresses of ended programs that are kept. The oldest one makes room of the
/// user who has the most, so that no user's ends push out another's.
pub const MOST_KEPT: usize = 1_024;

/// What to do where a takeover is impossible.
pub(crate) const STOP_FIRST: &str =
    "stop that one, then start this one without --takeover: programs wait for it and keep their connections";

/// Where a port sits in the network of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// One host with this address, like a runtime: it receives the frames sent to `mac`, and
    /// broadcasts.
    Station {
        /// The station's MAC address. Must be unique on this IOKernel and not a group address.
        mac: MacAddr,
        /// The station's IPv4 address, which is kept out of the address pool.
        ip: Option<Ipv4Addr>,
    },
    /// The rest of the world: receives every frame whose destination belongs to no runtime or other
    /// port, and broadcasts. At most one port.
    Uplink {
        /// The address that runtimes use as their gateway to other networks.
        gateway: Option<Ipv4Addr>,
    },
}

/// What a port is given about its IOKernel.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The clock of all [`Cycles`] arguments, and of the timestamps in the rings.
    pub clock: Clock,
    /// Maximum length of an IP packet in bytes; frames are up to 14 bytes longer.
    pub mtu: u16,
    /// Length of the network prefix in bits.
    pub prefix_len: u8,
    /// The IPv6 network, a /64, if there is one.
    pub network6: Option<Ipv6Addr>,
}

impl Context {
    /// Returns the IPv6 address that corresponds to `ip`, an address of the network: the same host
    /// number in the IPv6 network.
    pub fn ip6_of(&self, ip: Ipv4Addr) -> Option<Ipv6Addr> {
        let host = ip.to_bits() & u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        self.network6.map(|network| Ipv6Addr::from_bits(network.to_bits() | u128::from(host)))
    }
}

/// Outcome of an injected frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the ingress ring of at least one receiver, or was taken by another port.
    Delivered,
    /// The receiver's ingress ring is full.
    Full,
    /// No runtime or port has the destination address.
    Unknown,
    /// A firewall rule or a rate limit of the receiver dropped it.
    Denied,
    /// Shorter than an Ethernet header, or longer than the MTU allows.
    BadLength,
}

/// The switch, as a port sees it while it is polled.
pub trait Inject {
    /// Copies `frame` (beginning with the Ethernet header, without the frame check sequence) once,
    /// directly into the ingress ring of the runtime that has the destination address, and wakes
    /// that runtime if it has no core.
    fn inject(&mut self, frame: &[u8]) -> Delivery;

    /// As [`inject`](Self::inject), for a frame that was due at `due`: a trace then shows how long
    /// it waited for the port to be polled. For ports that generate frames.
    fn inject_due(&mut self, frame: &[u8], due: Cycles) -> Delivery {
        let _ = due;
        self.inject(frame)
    }

    /// Returns whether the port may inject a further frame in this poll. A port asks before each
    /// but the first, so that no port starves the rest of the loop. `took_long` says that the last
    /// frame may have taken a microsecond of the port's own time, such as that of a system call.
    fn may_go_on(&mut self, took_long: bool) -> bool {
        let _ = took_long;
        true
    }

    /// Returns the MAC address of the runtime or station that has `ip`, for ports that do not use
    /// ARP.
    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr>;

    /// Returns the MAC address of a program at `ip`, whether or not there is one; `None` if `ip` is
    /// not an address that programs have. For ports that find programs by their IP addresses.
    fn station(&self, ip: IpAddr) -> Option<MacAddr> {
        match ip {
            IpAddr::V4(ip) => self.resolve(ip),
            IpAddr::V6(ip) => MacAddr::from_link_local(ip),
        }
    }

    /// Notes that the port, an uplink, has another interface, or its interface another MAC address:
    /// what [`Port::mac`] and [`Port::has_local_peer`] return from now on.
    fn renewed(&mut self, mac: Option<MacAddr>, has_local_peer: bool) {
        let _ = (mac, has_local_peer);
    }
}

/// A port failed permanently: it is detached, and the statistics show its name and this error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("port {port}: {why}")]
pub struct PortError {
    /// Name of the port.
    pub port: String,
    /// What failed and what to do.
    pub why: String,
}

/// What a port reports beyond the frames that the switch counts. Shared with the thread that serves
/// statistics, so it may be read at any time, also after the port has ended.
pub trait Account: core::fmt::Debug + Send + Sync {
    /// Returns mode and counters as a JSON object.
    fn to_json(&self) -> serde_json::Value;
}

/// A queue of a port, as its next frame finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendQueue {
    /// Its number among those of the port.
    pub number: usize,
    /// Frames that were put into it so far.
    pub sent: u64,
    /// Number of them that were still in it when it was last counted,
    pub waiting: u32,
    /// and frames that it holds at most.
    pub size: u32,
}

/// A source and sink of frames. The module documentation has the rules and an example.
pub trait Port: Send {
    /// Returns the name shown in statistics, unique among the ports of an IOKernel.
    fn name(&self) -> &str;

    /// Returns where the port sits in the network. Called once, before [`start`](Self::start).
    fn attachment(&self) -> Attachment;

    /// Returns the MAC address that Linux has on an uplink, if it has one: no program gets it, nor
    /// frames for it. Called after [`start`](Self::start).
    fn mac(&self) -> Option<MacAddr> {
        None
    }

    /// Returns the descriptors that are passed to [`inherit`](Self::inherit) of the port of this
    /// name in an IOKernel that takes over. Called once, after [`start`](Self::start).
    fn devices(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Returns whether a service manager may keep the [`devices`](Self::devices) for the next
    /// process. False if the port makes others while it runs: what is kept would be of no use, and
    /// in the way of those.
    fn devices_last(&self) -> bool {
        false
    }

    /// Takes the [`devices`](Self::devices) of the port of this name in an IOKernel that this one
    /// takes over from, and that still uses them. Called before [`start`](Self::start), which goes
    /// on with them and must leave that port working: a takeover may yet fail.
    ///
    /// # Errors
    /// If this kind of port cannot do so, as by default; the other IOKernel then goes on.
    fn inherit(&mut self, devices: Vec<OwnedFd>) -> Result<(), PortError> {
        drop(devices);
        let why = format!("cannot be taken over from the running IOKernel, which uses it; {STOP_FIRST}");
        Err(PortError { port: self.name().to_owned(), why })
    }

    /// Starts the port. Called once before the first poll, on the thread that makes the IOKernel.
    ///
    /// # Errors
    /// If the port cannot work; the IOKernel then does not start.
    fn start(&mut self, context: &Context) -> Result<(), PortError>;

    /// Returns the interface that the control thread looks at, if there is one. Called once, after
    /// [`start`](Self::start).
    fn interface(&self, context: &Context) -> Option<PortInterface> {
        let _ = context;
        None
    }

    /// Injects up to `budget` frames that are due at `now`, while the switch lets it
    /// [go on](Inject::may_go_on), and returns how many. Called on every iteration of the loop.
    ///
    /// # Errors
    /// If the port cannot go on; it is detached.
    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError>;

    /// Goes on with frames that a [`flush`](Self::flush) could not send. Called after each poll,
    /// outside the time for which the receivers of its frames pay.
    fn resume(&mut self) {}

    /// Returns whether the peer is a program of this very machine: one that Linux may run on the
    /// polling thread's core, which then lets it run. Called after [`start`](Self::start).
    fn has_local_peer(&self) -> bool {
        false
    }

    /// Takes a frame that was sent to this port; returns false if it was dropped, which is counted.
    /// `frame` is a private copy. May be held back until [`flush`](Self::flush).
    fn transmit(&mut self, now: Cycles, frame: &[u8]) -> bool;

    /// Returns the queue that [`transmit`](Self::transmit) would put this frame into, if it drops
    /// frames while that is full: the programs that send then get equal shares of it. Called for
    /// each of their frames, so it does not count what the queue holds.
    fn queue(&self, frame: &[u8]) -> Option<SendQueue> {
        let _ = frame;
        None
    }

    /// Counts what queue `number` holds and returns it. Called before a frame is refused because
    /// of it.
    fn recount(&mut self, number: usize) -> Option<SendQueue> {
        let _ = number;
        None
    }

    /// As [`transmit`](Self::transmit), for a frame for which [`queue`](Self::queue) returned queue
    /// `number`.
    fn transmit_to(&mut self, number: usize, now: Cycles, frame: &[u8]) -> bool {
        let _ = number;
        self.transmit(now, frame)
    }

    /// Returns whether [`transmit`](Self::transmit) has held back what the next frame of the same
    /// sender may continue. The switch then waits a moment for that frame before it calls
    /// [`flush`](Self::flush), and charges the sender for the call. The sender does not pay for a
    /// flush before which this was false. Called only after a transmit.
    fn awaits_more(&self) -> bool {
        false
    }

    /// Sends what [`transmit`](Self::transmit) held back: the batch is complete. Called only after
    /// at least one transmit.
    fn flush(&mut self) {}

    /// Returns the next time at which [`poll`](Self::poll) would inject something without an
    /// outside event; `None` if only outside events matter. The loop does not sleep past it.
    fn next_event(&self) -> Option<Cycles> {
        None
    }

    /// Returns what the statistics show beside the frames in and out. Called once, after
    /// [`start`](Self::start); what is read before that has 0 for numbers and null for facts.
    fn account(&self) -> Option<Arc<dyn Account>> {
        None
    }

    /// Returns a descriptor that is readable when there is something to poll, so that the loop may
    /// sleep. A port without outside events needs none.
    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
