//! An interface through AF_XDP as the uplink: frames pass between a network card, or one end of a
//! veth pair, and memory of this process, without Linux's network stack in between.
//!
//! Owns the sockets (one per receive queue), the program that redirects frames to them (module
//! `program`), its maps and attachment, and which frames the interface accepts. All are
//! descriptors: they end with the port, or with the process however it dies, and nothing stays
//! behind on the interface, unless programs share Linux's addresses: module `ports`. No service
//! manager keeps them ([`Port::devices_last`]). In a takeover the other process goes on with them
//! (module `handover`). If the interface goes away and comes back, they are made anew (module
//! `follow`).
//!
//! Linux may go on using the interface, by its MAC address, by its IP addresses or by ports. In the
//! last two cases programs are behind the same MAC address: modules `addresses` and `ports`
//! translate each frame, and say who is who. Module `sharing` keeps up with what Linux has, which
//! module `linux` reads; `ways` decides by which of Linux's routes a frame leaves.
//!
//! The fastest mode is tried first; the log and the statistics show the one in use:
//!
//! | step | first | else |
//! |---|---|---|
//! | where the program runs | in the driver (`native`) | on Linux's own packets (`skb`), any driver |
//! | who copies | the card (`zero-copy`; with `share` only if asked for), straight into our memory | the kernel, once (`copy`) |
//!
//! The kernel takes down a queue asynchronously: binding and attaching are retried while they
//! return EBUSY, a hundred times within half a second.
//!
//! Frames are up to one memory chunk long: MTUs above [`MAX_MTU`] are refused.

mod addresses;
mod behind;
mod follow;
mod handover;
mod latest;
pub(crate) mod linux;
mod make;
mod ports;
pub(crate) mod program;
mod sharing;
mod spec;
mod ways;

pub(crate) use follow::Follower;
pub use spec::{MAX_QUEUES, XdpSpec};

use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::cell::Cell;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tailwater_shm::Cycles;
use tailwater_shm::control::document_to_file;
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

use super::{Account, Attachment, Context, Inject, Port, PortError, PortInterface, SendQueue, checksum};
use crate::sys::interface::{Accepts, Interface, accept};
use crate::sys::xsk::{self, HEADROOM, OpenError, Queue};
use addresses::{Counts, Gateway, Outward};
use behind::Behind;
use follow::Exchange;
use handover::Handed;
use latest::Latest;
use make::{Held, Theirs};
use ports::Wanted;
use ports::attachment::Attachment as PortsAttachment;
use ports::record::{Record, UNRECORDED};
use ports::steering::Steering;
use program::{KERNEL, Maps, Owned};
use sharing::{Followed, Sharing};
use spec::{Share, XdpMode, ZeroCopy};
use tailwater_bpf::sys::{self as bpf, Hook};

/// Maximum length of an IP packet in bytes: a page, less the kernel's headroom and the Ethernet
/// header.
pub const MAX_MTU: u16 = 4096 - HEADROOM as u16 - ETHERNET_HEADER as u16;
/// Size of a chunk of frame memory in bytes, if the interface's longest frame fits.
const SMALL_CHUNK: u32 = 2048;
/// Frame memory of one queue with small chunks, in bytes. Locked memory, limited by RLIMIT_MEMLOCK.
pub const QUEUE_BYTES: u64 = 2 * xsk::RING as u64 * SMALL_CHUNK as u64;

/// See the module documentation.
pub struct XdpPort {
    spec: XdpSpec,
    /// Declared before the queues, so that frames stop arriving before they are dropped.
    attached: Option<Attached>,
    /// Of the interface, if Linux goes on using it; known once started.
    mac: Option<MacAddr>,
    /// The other end of a veth pair is another namespace's of this machine; known once started.
    is_veth: bool,
    queues: Vec<Queue>,
    /// The queue to poll first.
    first: usize,
    events: Option<OwnedFd>,
    /// Frames put into each queue when it was last replaced.
    sent: Vec<u64>,
    /// It goes on for a port whose interface was away: it waits for nothing, and what Linux has
    /// taken meanwhile is no reason against it.
    resumes: bool,
    exchange: Arc<Exchange>,
    /// Of the port of another IOKernel; gone once started.
    inherited: Option<Vec<OwnedFd>>,
    /// If programs are behind the interface's own MAC address; made at the start.
    translation: Option<Behind>,
    /// For the control thread; made at the start.
    sharing: Cell<Option<Sharing>>,
    account: Arc<XdpAccount>,
}

/// What directs frames to the sockets.
struct Attached {
    link: OwnedFd,
    maps: Held,
    /// What these and the sockets are, for another IOKernel.
    about: OwnedFd,
    /// Makes the interface accept frames to other addresses than its own.
    _accepts: OwnedFd,
}

/// Mode and counters of an AF_XDP port.
#[derive(Debug, Default)]
struct XdpAccount {
    facts: Mutex<Option<Facts>>,
    /// There is no interface at the moment,
    absent: AtomicBool,
    /// and how often that has begun.
    absences: AtomicU64,
    /// Transport checksums completed.
    completed: AtomicU64,
    /// Frames dropped because all send chunks were in use.
    send_full: AtomicU64,
    /// Invalid descriptors in the kernel's rings.
    invalid: AtomicU64,
    /// Of the translation.
    behind: Arc<Counts>,
}

#[derive(Debug)]
struct Facts {
    mode: &'static str,
    copy: &'static str,
    sockets: Vec<Weak<OwnedFd>>,
}

impl Account for XdpAccount {
    fn to_json(&self) -> Value {
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let queues: Vec<Value> = facts
            .iter()
            .flat_map(|facts| &facts.sockets)
            .filter_map(|socket| {
                let k = xsk::counters(&*socket.upgrade()?).ok()?;
                Some(json!({ "rx_dropped": k.rx_dropped, "rx_invalid": k.rx_invalid, "tx_invalid": k.tx_invalid,
                             "rx_ring_full": k.rx_ring_full, "fill_ring_empty": k.fill_ring_empty,
                             "tx_ring_empty": k.tx_ring_empty }))
            })
            .collect();
        let (mode, copy) = facts.as_ref().map(|facts| (facts.mode, facts.copy)).unzip();
        json!({ "kind": "af-xdp", "mode": mode, "copy": copy, "queues": queues,
                "checksums_completed": load(&self.completed), "send_full": load(&self.send_full),
                "invalid_descriptors": load(&self.invalid), "absences": load(&self.absences),
                "absent": u64::from(self.absent.load(Ordering::Relaxed)),
                "gateway_answers": load(&self.behind.answered),
                "no_next_hop": load(&self.behind.no_next_hop),
                "kept_off_wire": load(&self.behind.kept),
                "foreign_ports": load(&self.behind.foreign_ports) })
    }
}

impl XdpPort {
    /// Returns a port on the interface that `spec` names; sockets and program are made at
    /// [`start`](Port::start).
    pub fn new(spec: XdpSpec) -> Self {
        let account = Arc::new(XdpAccount::default());
        Self {
            spec,
            attached: None,
            mac: None,
            is_veth: false,
            queues: Vec::new(),
            first: 0,
            events: None,
            sent: Vec::new(),
            resumes: false,
            exchange: Arc::default(),
            inherited: None,
            translation: None,
            sharing: Cell::new(None),
            account,
        }
    }

    /// Returns in words what the port has of its interface, without attaching to it. With
    /// `inherits`, sockets and program are those of an IOKernel that runs.
    ///
    /// # Errors
    /// What the interface or this process lacks.
    pub(super) fn look(
        &self,
        mtu: u16,
        (prefix_len, network6): (u8, Ipv6Addr),
        inherits: bool,
    ) -> Result<String, PortError> {
        let name = &self.spec.interface;
        let interface = Interface::new(name).map_err(|e| self.explain("open a socket", e))?;
        let (index, queues) = self.examine(&interface, mtu)?;
        // Rights first: who lacks them is not told how to take away what may be an IOKernel's.
        let rights = if inherits {
            String::new()
        } else {
            let remedy = "run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` this program";
            let rights = probe().map_err(|why| self.fail(format!("{why}; {remedy}")))?;
            self.check_free(index)?;
            format!("; {rights}")
        };
        let owned = self.owned(&interface, prefix_len)?;
        let senders = self.senders(owned.as_ref(), network6);
        let behind = match (self.spec.share, owned) {
            (Share::Nothing, _) | (_, None) => String::new(),
            (Share::Mac, Some(owned)) => format!(", beside its own MAC address {}", owned.mac),
            (Share::Addresses, Some(owned)) => {
                format!(", behind its own MAC address {}, {}", owned.mac, self.way(index, &senders)?)
            }
            (Share::Ports, Some(owned)) => {
                if !inherits {
                    self.check_ports(&owned)?;
                }
                let (range, ip) =
                    (&self.spec.outgoing.range, owned.ip.map_or_else(String::new, |ip| ip.to_string()));
                let (mac, first, last) = (owned.mac, range.start(), range.end());
                let lacks = match Record::can_be_written() {
                    true => String::new(),
                    false => format!(" (/run cannot be written: {UNRECORDED})"),
                };
                format!(", behind its own addresses {mac} and {ip}, ports from {first} to {last}{lacks}")
            }
        };
        let cautions: String = [self.rules(index, &senders), self.hidden_tags(&interface)]
            .into_iter()
            .flatten()
            .map(|caution| format!(" ({caution})"))
            .collect();
        Ok(format!("AF_XDP on {name}{behind}, queues: {queues}{cautions}{rights}"))
    }

    fn fail(&self, why: String) -> PortError {
        PortError { port: self.spec.interface.clone(), why }
    }

    /// Returns an error that says what to do about `error`.
    fn explain(&self, what: &str, error: Errno) -> PortError {
        let name = &self.spec.interface;
        self.fail(match error {
            Errno::PERM | Errno::ACCESS => format!(
                "cannot {what}: privilege is missing; run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf+ep` this program"
            ),
            Errno::NODEV => format!("cannot {what}: there is no interface {name} in this network namespace"),
            Errno::OPNOTSUPP => format!("cannot {what}: the driver of {name} cannot do this"),
            Errno::AFNOSUPPORT => format!("cannot {what}: this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)"),
            Errno::NOBUFS | Errno::NOMEM => {
                format!("cannot {what}: out of locked memory; raise `ulimit -l`, or use fewer queues")
            }
            other => format!("cannot {what}: {other}"),
        })
    }
}

impl Port for XdpPort {
    fn name(&self) -> &str {
        &self.spec.interface
    }

    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: self.spec.gateway }
    }

    fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    fn has_local_peer(&self) -> bool {
        self.is_veth
    }

    fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.handed()
    }

    fn inherit(&mut self, devices: Vec<OwnedFd>) -> Result<(), PortError> {
        self.inherited = Some(devices);
        Ok(())
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        let interface = Interface::new(&self.spec.interface).map_err(|e| self.explain("open a socket", e))?;
        let (index, count) = self.examine(&interface, context.mtu)?;
        let longest = u32::from(context.mtu) + ETHERNET_HEADER as u32 + HEADROOM;
        let chunk = if longest <= SMALL_CHUNK { SMALL_CHUNK } else { 4096 };
        self.is_veth = interface.is_veth();
        let owned = self.owned(&interface, context.prefix_len)?;
        if let (Share::Ports, Some(owned), None) = (self.spec.share, &owned, &self.inherited) {
            self.check_ports(owned)?;
        }
        let port = &self.spec.interface;
        tracing::debug!(port, "the interface can be used");
        self.mac = owned.map(|owned| owned.mac);
        let mut handed = Handed {
            interface: index,
            native: true,
            queues: count,
            chunk,
            ring: xsk::RING,
            program: self.code(Maps { sockets: 0, settings: 0, addresses: 0, fragments: 0 }),
            network: self.network(owned.as_ref()),
        };
        let made = match self.inherited.take() {
            Some(devices) => self.adopt(devices, &handed)?,
            None => self.make((index, count), chunk, owned.as_ref())?,
        };
        tracing::debug!(port, "sockets and program are in place");
        handed.native = made.hook == Hook::Driver;
        let about = document_to_file("tailwater-xdp", &handed)
            .map_err(|e| self.fail(format!("cannot write for a takeover what it uses: {e}")))?;
        let accepts = match self.spec.share {
            Share::Addresses | Share::Ports => Accepts::Groups,
            Share::Nothing | Share::Mac => Accepts::Everything,
        };
        let accepts = accept(index, accepts)
            .map_err(|e| self.explain("choose which frames the interface accepts", e))?;
        self.share(index, made.attachment, &made.maps, owned, context)?;
        let events = watch(&made.queues).map_err(|e| self.explain("watch its sockets", e))?;
        self.queues = made.queues;
        let facts = Facts {
            mode: if handed.native { "native" } else { "skb" },
            copy: if self.queues.iter().all(Queue::is_zero_copy) { "zero-copy" } else { "copy" },
            sockets: self.queues.iter().map(|queue| Arc::downgrade(queue.socket())).collect(),
        };
        let (mode, copy) = (facts.mode, facts.copy);
        let (port, there) = (&self.spec.interface, interface.receive_queues());
        tracing::info!(port, mode, copy, queues = count, "AF_XDP");
        if count < there {
            tracing::warn!(port, there, queues = count, "frames on the other queues go to Linux");
        }
        *self.account.facts.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
        if let Some(tags) = self.hidden_tags(&interface) {
            tracing::warn!(port, "{tags}");
        }
        let (link, maps) = (made.link, made.maps);
        self.attached = Some(Attached { link, maps, about, _accepts: accepts });
        self.events = Some(events);
        Ok(())
    }

    fn interface(&self, context: &Context) -> Option<PortInterface> {
        let interface = PortInterface::new(&self.spec.interface, None)?;
        interface.followed_by(|index| Follower::of(self, context, index))
    }

    fn poll(&mut self, _now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        if self.exchange.has_news() {
            self.renew();
            switch.renewed(self.mac, self.is_veth);
        }
        let (mut frames, count) = (0, self.queues.len());
        if let Some(translation) = &mut self.translation {
            // The rest of the budget is for the queues.
            frames += translation.poll(budget.div_ceil(2), switch);
            for frame in translation.take_ready() {
                let number = flow(&frame) % count.max(1);
                let sent = self.queues.get_mut(number).is_some_and(|queue| queue.send(&frame));
                self.account.send_full.fetch_add(u64::from(!sent), Ordering::Relaxed);
            }
        }
        let mut goes_on = true;
        for i in 0..count {
            if !goes_on {
                break;
            }
            let queue = &mut self.queues[(self.first + i) % count];
            let (fill, account, translation) =
                (self.spec.fill_checksums, &self.account, &mut self.translation);
            let seen = queue.invalid;
            let taken = queue.receive(budget.saturating_sub(frames), |frame| {
                if fill && checksum::complete(frame) {
                    account.completed.fetch_add(1, Ordering::Relaxed);
                }
                let is_for_us = match translation.as_mut() {
                    Some(translation) => translation.enter(frame, |ip| switch.station(ip)),
                    None => true,
                };
                if is_for_us {
                    switch.inject(frame);
                }
                goes_on = switch.may_go_on(false);
                goes_on
            });
            frames += taken;
            queue.wake_receiver();
            if queue.invalid != seen {
                account.invalid.fetch_add(queue.invalid - seen, Ordering::Relaxed);
            }
        }
        if frames >= budget || !goes_on {
            // Another queue is first next time, so that the first does not starve the others.
            self.first = (self.first + 1) % count.max(1);
        }
        Ok(frames)
    }

    fn resume(&mut self) {
        self.flush();
    }

    fn transmit(&mut self, now: Cycles, frame: &[u8]) -> bool {
        self.transmit_to(self.number(frame), now, frame)
    }

    fn queue(&self, frame: &[u8]) -> Option<SendQueue> {
        self.backlog(self.number(frame))
    }

    fn recount(&mut self, number: usize) -> Option<SendQueue> {
        self.queues.get_mut(number)?.reclaim();
        self.backlog(number)
    }

    fn transmit_to(&mut self, number: usize, _now: Cycles, frame: &[u8]) -> bool {
        if self.translation.is_some() {
            return self.transmit_behind(number, frame);
        }
        let Some(queue) = self.queues.get_mut(number) else { return false };
        let sent = queue.send(frame);
        if !sent {
            self.account.send_full.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    fn flush(&mut self) {
        self.queues.iter_mut().filter(|queue| queue.has_unsent()).for_each(Queue::flush);
    }

    fn next_event(&self) -> Option<Cycles> {
        self.translation.as_ref().is_some_and(Behind::has_answers).then_some(0)
    }

    fn account(&self) -> Option<Arc<dyn Account>> {
        Some(Arc::clone(&self.account) as Arc<dyn Account>)
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(AsFd::as_fd)
    }
}

impl XdpPort {
    /// Returns the part of the settings that options determine.
    fn network(&self, owned: Option<&Owned>) -> [u64; 2] {
        match owned.map(Owned::settings) {
            Some([_, _, network, mask, ..]) if self.spec.share == Share::Mac => [network, mask],
            _ => [0; 2],
        }
    }

    /// Has what Linux goes on using followed, and programs behind its MAC address translated.
    fn share(
        &mut self,
        index: u32,
        attachment: Option<PortsAttachment>,
        maps: &Held,
        owned: Option<Owned>,
        context: &Context,
    ) -> Result<(), PortError> {
        let Some((settings, owned)) = maps.settings.clone().zip(owned) else { return Ok(()) };
        let gateway = self.spec.gateway.map(|ip| Gateway { ip, ip6: context.ip6_of(ip) });
        let counts = Arc::clone(&self.account.behind);
        let unread = |e| self.fail(format!("cannot read Linux's addresses and routes (netlink): {e}"));
        let (followed, behind): (Followed, Option<Box<dyn FnOnce() -> Behind>>) =
            match (&maps.theirs, gateway, attachment) {
                (Some(Theirs::Addresses(map)), ..) => {
                    let latest = Arc::new(Latest::default());
                    let behind = Arc::clone(&latest);
                    (
                        Followed::Addresses(Arc::clone(map), gateway, latest),
                        Some(Box::new(move || {
                            Behind::Addresses(addresses::Translation::new(behind, gateway, counts))
                        })),
                    )
                }
                (Some(Theirs::Ports(map, _)), Some(gateway), Some(at)) => {
                    let shared = (Arc::new(Latest::default()), Arc::new(Wanted::default()));
                    let (map, outgoing) = (Arc::clone(map), &self.spec.outgoing);
                    let steering = Steering::new(at, outgoing, map, shared.clone(), |ip| context.ip6_of(ip));
                    (
                        Followed::Ports(Box::new(steering.map_err(unread)?)),
                        Some(Box::new(move || {
                            Behind::Ports(Box::new(ports::Translation::new(shared, gateway, counts)))
                        })),
                    )
                }
                _ => (Followed::Itself, None),
            };
        let sharing = Sharing::new(&self.spec.interface, index, (settings, owned), context.mtu, followed)
            .map_err(unread)?;
        self.sharing.set(Some(sharing));
        // After the first look, whose view it begins with.
        self.translation = behind.map(|behind| behind());
        Ok(())
    }

    /// As [`transmit_to`](Port::transmit_to), for a program behind the interface's own MAC address.
    #[inline(never)]
    fn transmit_behind(&mut self, number: usize, frame: &[u8]) -> bool {
        let Some(translation) = &mut self.translation else { return false };
        let station = match translation.judge(frame) {
            Outward::Leaves(station) => station,
            Outward::Answered => return true,
            Outward::Dropped => return false,
        };
        let Some(queue) = self.queues.get_mut(number) else { return false };
        let sent = queue.send_with(frame, |copy| translation.leave(copy, station));
        if !sent {
            self.account.send_full.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Returns the number of the queue that frames of this flow are put into.
    #[inline(always)]
    fn number(&self, frame: &[u8]) -> usize {
        flow(frame) % self.queues.len().max(1)
    }

    #[inline(always)]
    fn backlog(&self, number: usize) -> Option<SendQueue> {
        let (sent, waiting) = self.queues.get(number)?.backlog();
        Some(SendQueue { number, sent, waiting, size: xsk::RING })
    }
}

/// Returns a descriptor that is readable when one of the sockets is.
fn watch(queues: &[Queue]) -> Result<OwnedFd, Errno> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        epoll::add(&events, &**queue.socket(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(events)
}

/// Returns a number that is equal for all frames of a flow: a hash of the bytes where IPv4 without
/// options has addresses and ports.
fn flow(frame: &[u8]) -> usize {
    let words = frame.get(26..38).unwrap_or_default().as_chunks::<4>().0;
    let mixed = words.iter().fold(0u32, |mixed, word| mixed ^ u32::from_le_bytes(*word));
    (mixed ^ (mixed >> 16)) as usize
}

/// Checks whether this process could use AF_XDP on some interface.
///
/// # Errors
/// One line that says what is missing.
pub fn probe() -> Result<String, String> {
    let queue = Queue::open(SMALL_CHUNK).map_err(|error| match error {
        OpenError::Socket(Errno::AFNOSUPPORT) => {
            "this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)".to_owned()
        }
        OpenError::Socket(Errno::PERM | Errno::ACCESS) => "needs CAP_NET_RAW".to_owned(),
        OpenError::Register(Errno::NOBUFS | Errno::NOMEM) => {
            "too little locked memory; raise `ulimit -l`".to_owned()
        }
        other => other.to_string(),
    })?;
    drop(queue);
    let map = bpf::socket_map(1).map_err(|error| match error {
        Errno::PERM => "needs CAP_BPF and CAP_NET_ADMIN".to_owned(),
        other => format!("no eBPF map for sockets: {other}"),
    })?;
    bpf::load_xdp(&program::redirect_all(map.as_raw_fd(), KERNEL)).map_err(|error| match error.errno {
        Errno::PERM => "needs CAP_BPF and CAP_NET_ADMIN".to_owned(),
        _ => format!("the redirect program is refused: {error}"),
    })?;
    Ok("sockets, maps and programs can be made".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_named_with_what_to_do() {
        let port = XdpPort::new("no-such-if".parse().unwrap());
        let error = port.explain("find the interface", Errno::NODEV).to_string();
        assert!(error.contains("no-such-if") && error.contains("namespace"), "{error}");
        let error = port.explain("attach", Errno::PERM).to_string();
        assert!(error.contains("cap_net_raw") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn the_probe_says_yes_or_one_line_of_what_is_missing() {
        match probe() {
            Ok(line) | Err(line) => assert!(!line.is_empty() && !line.contains('\n'), "{line}"),
        }
    }
}
