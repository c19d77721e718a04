//! The switch: frames from egress rings and ports to ingress rings and ports.
//!
//! Owns the MAC table, the egress rings that are being polled, and the ports. A frame is copied
//! once, from the sender's ring or the port's buffer into the receiver's ring; the checks read a
//! private copy of its first line, and that copy is delivered. IPv6, ICMP and IPv4 options cannot
//! be checked by a first line: such a frame is copied whole, checked, and delivered from the copy.
//! Firewall rules and rate limits ([`crate::firewall`]) apply after the anti-spoofing checks. The
//! switch decides nothing about cores: before it puts a frame into a ring of a runtime without one,
//! it calls the [`Lender`], so that the frame lies in the ring of the kthread that gets the core.
//! An acknowledgment that no thread waits for does without ([`Lender::hold`]). A flow whose kthread
//! changes stays in order (see [`moves`]).
//!
//! [`Lender`]: crate::world::Lender
//! [`Lender::hold`]: crate::world::Lender::hold
//!
//! An iteration takes frames out of egress rings for [4 us](Timing::iteration), in the
//! [turns](crate::tenant::turns) of the tenants, and frames out of each port for as long, one at
//! least. Reading a port is charged to the turns of the tenants that the frames are for. So
//! hand-offs are followed every few microseconds for each port, and one frame of each, however much
//! traffic there is. A port may hold frames of a sender [beyond its turn](Held), which are charged
//! to it when they are sent.
//!
//! | module | does |
//! |---|---|
//! | `mod` | knows the rings, ports and addresses |
//! | [`egress`] | takes frames out of egress rings and has them judged |
//! | [`ports`] | takes frames out of ports |
//! | [`absent`] | answers for addresses without a program |
//! | [`foreign`] | detects frames from ports that claim to be a program's |
//! | [`deliver`] | puts frames into ingress rings and ports |
//! | [`broadcast`] | limits copies of broadcasts |
//! | [`shares`] | divides a ring among the programs that send to it |
//! | [`moves`] | keeps flows in order that continue in another ring |
//!
//! # Crash and lie
//!
//! | what a runtime writes | what happens |
//! |---|---|
//! | a frame with foreign addresses, or none that make sense | dropped and counted, for the runtime too |
//! | a message that only routers send, a VLAN tag, another protocol | the same |
//! | an impossible ring record or position, a record of an earlier lap | its registration ends ([`World::mark_ended`]) |
//! | a frame that changes while it is copied | the checked first line is delivered; to a port, nothing |
//! | more frames than its receivers or a port take | dropped and counted once it has had its share of the ring or of the port's queue ([`shares`]) |
//! | broadcasts and multicasts without end | dropped beyond a number of copies ([`broadcast`]), and always before unicast |
//! | more frames than its turn takes | they wait in its rings |
//! | segments to a port that holds them for the end of their packet, and no end | they leave [5 us](Timing::hold) after the last one, before a frame of another tenant, or once they are 64, at their sender's cost |
//! | answers to a flood from a port | its tenant pays for the reading with up to three quarters of its turns ([`ports`]) |
//! | a frame that it passes on to the [earlier instance](crate::control::directory) of its program, or says so of | it reaches that one alone, unchecked: both are of one tenant |
//! | frames to a port above the network's MTU | dropped and counted, no offence: a sender cannot know that a peer has moved |
//! | frames without end from a best-effort program to a service | they take a sixteenth of a core ([`crate::tenant`]) |
//! | refused frames without end | its rings are not read until its tenant has paid ([`crate::tenant`]) |

mod absent;
mod broadcast;
pub(crate) mod check;
mod deliver;
mod egress;
pub(crate) mod flow;
mod foreign;
mod inspect;
pub(crate) mod mac;
mod moves;
mod multicast;
mod offload;
mod ports;
pub(crate) mod shares;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use tailwater_ports::{Attachment, Port};
use tailwater_sched::ledger::RuntimeClass;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::ring::FrameBuffer;
use tailwater_shm::{Clock, Cycles};
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

use crate::bounds::bounds;
use crate::capture::{Captures, Point};
use crate::config::Config;
use crate::firewall::Multicast;
use crate::runtime::{Egress, Runtime};
use crate::stats::Stats;
use crate::tenant::TenantId;
use crate::tenant::turns::{Tag, Turns};
use crate::world::World;
use absent::Absent;
use broadcast::BroadcastLimit;
use foreign::Locals;
use mac::{Destination, MacTable};
use moves::Moves;
use multicast::SolicitedNodes;
use shares::Shares;
use source::Source;

/// See the module documentation.
pub(crate) struct Switch {
    macs: MacTable,
    /// Addresses of runtimes and stations, for ports that do not use ARP.
    ips: HashMap<Ipv4Addr, MacAddr>,
    polled: Vec<Egress>,
    turns: Turns,
    /// Egress rings with frames, as numbers in `polled`, and the tags of their tenants.
    waiting: Vec<(Tag, usize)>,
    /// Number of iterations; the ring to begin with among those of one tag follows from it.
    round: usize,
    timing: Timing,
    ports: Vec<PortLine>,
    uplink: Option<u16>,
    /// Length of the longest frame from and to a port.
    max_port_frame: usize,
    /// EtherTypes that runtimes may send beside those that are checked.
    ethertypes: Vec<u16>,
    solicited: SolicitedNodes,
    /// What happens to frames for IPv6 groups other than those of neighbour discovery.
    multicast: Multicast,
    buffer: FrameBuffer,
    /// Buffer for frames that must be checked whole; `None` while one is in use.
    whole: Option<FrameBuffer>,
    /// Ingress rings whose records of the present batch are not yet visible; see
    /// [`Producer::cork`](tailwater_shm::ring::Producer::cork).
    corked: Vec<KthreadId>,
    /// Receivers of the present broadcast; kept for its memory.
    receivers: Vec<RuntimeId>,
    /// Programs that the frames of the port that is being polled are for, and how many for each.
    addressees: Vec<(RuntimeId, u32)>,
    moves: Moves,
    /// The present frame took long, and the clock is to be read.
    slow: bool,
    broadcasts: BroadcastLimit,
    absent: Absent,
    /// Addresses of programs, which no frame from a port may claim.
    locals: Locals,
    /// Frames of the present turn that were refused.
    refused: u32,
    /// The present turn is a best-effort program's.
    best_effort: bool,
    /// Services are served until then.
    served_until: Cycles,
    /// The port that is being polled has its peer on this machine.
    from_local_peer: bool,
    /// Services are sent frames until then by other services, or through ports without such peers;
    /// what a program sends to itself, frames of best-effort programs and those to groups do not
    /// count.
    others_served_until: Cycles,
    /// Frames of the present turn that a best-effort program has sent to services.
    to_services: u32,
    /// What a port holds back.
    held: Option<Held>,
    /// Part of the present turn, or of the time in which a port was polled, that is another
    /// tenant's: what a port held of that one was sent.
    aside: Cycles,
    /// Returns the time, for what a turn takes.
    stopwatch: fn() -> Cycles,
    pub(crate) captures: Captures,
}

bounds! {
    /// The switch's bounds on time.
    struct Timing {
        /// A turn, and all turns of an iteration; reading a port takes as long. A frame between
        /// programs takes 80 ns, one from a TAP device 1 us, one to it 2 us (2-vCPU VM); a joined
        /// packet of up to 64 KiB is one longer call.
        turn = 2 us,
        iteration = 4 us,
        /// Longest time of a turn or call that is charged: a longer one is seldom the tenant's
        /// fault.
        longest_turn = 50 us,
        /// For how long after a frame for a service it is still being served.
        served = 1 ms,
        /// Time for which a frame to a service from a client that is no local peer of a port
        /// counts, when the polling thread's rank and yields are decided: ten looks at other
        /// programs while these compete.
        others_served = 100 ms,
        /// Time in which a service reads and drops a frame.
        read = 125 ns,
        /// For how long a port waits, after each frame that it holds, for the next one.
        hold = 5 us,
    }
}

/// Frames that a port holds back for a moment beyond the turn of their sender, because sending them
/// together with the next ones takes no longer: a joined packet of a TAP device. One port at a time
/// holds frames.
#[derive(Debug, Clone, Copy)]
struct Held {
    port: u16,
    /// Pays for sending them.
    tenant: TenantId,
    class: RuntimeClass,
    /// They are sent then, if the sender's next frame has not come before.
    until: Cycles,
}

struct PortLine {
    /// `None` while it is being polled, and permanently once it has failed.
    port: Option<Box<dyn Port>>,
    /// It took frames and must be flushed.
    dirty: bool,
    /// Frames of the present turn are among them.
    used: bool,
    /// Its peer is a program of this machine.
    local: bool,
    /// Time of its last poll.
    polled: Cycles,
    /// The senders' shares of its queues.
    shares: Vec<Shares>,
}

impl PortLine {
    fn flush(&mut self) {
        self.dirty = false;
        if let Some(port) = &mut self.port {
            port.flush();
        }
    }
}

impl Switch {
    /// Returns a switch with these started ports, without runtimes. The caller has checked that
    /// addresses are unique and that there is at most one uplink. `stopwatch` returns the time by
    /// `clock`.
    pub(crate) fn new(
        ports: Vec<Box<dyn Port>>,
        config: &Config,
        clock: Clock,
        stopwatch: fn() -> Cycles,
    ) -> Self {
        let (mut macs, mut ips, mut uplink) = (MacTable::new(), HashMap::new(), None);
        for (number, port) in (0u16..).zip(&ports) {
            match port.attachment() {
                Attachment::Station { mac, ip } => {
                    macs.insert(mac, Destination::Port(number));
                    ips.extend(ip.map(|ip| (ip, mac)));
                }
                Attachment::Uplink { .. } => {
                    uplink = Some(number);
                    // Before any runtime's: the first owner keeps an address.
                    if let Some(mac) = port.mac() {
                        macs.insert(mac, Destination::Port(number));
                    }
                }
            }
        }
        let absent = Absent::new(config, clock, &ports);
        Self {
            macs,
            ips,
            absent,
            locals: Locals::new(),
            polled: Vec::new(),
            turns: Turns::default(),
            waiting: Vec::new(),
            round: 0,
            timing: Timing::new(clock),
            ports: ports
                .into_iter()
                .map(|port| PortLine {
                    local: port.has_local_peer(),
                    port: Some(port),
                    dirty: false,
                    used: false,
                    polled: 0,
                    shares: Vec::new(),
                })
                .collect(),
            uplink,
            max_port_frame: usize::from(config.mtu) + ETHERNET_HEADER,
            ethertypes: config.firewall.ethertypes.clone(),
            solicited: SolicitedNodes::default(),
            multicast: config.firewall.multicast,
            buffer: FrameBuffer::new(),
            whole: Some(FrameBuffer::new()),
            corked: Vec::new(),
            receivers: Vec::new(),
            addressees: Vec::new(),
            moves: Moves::default(),
            slow: false,
            broadcasts: BroadcastLimit(config.broadcast_copies),
            refused: 0,
            best_effort: false,
            served_until: 0,
            from_local_peer: false,
            others_served_until: 0,
            to_services: 0,
            held: None,
            aside: 0,
            stopwatch,
            captures: Captures::default(),
        }
    }

    /// Replaces what the firewall says about frames that no rule is about.
    pub(crate) fn set_rules(&mut self, ethertypes: Vec<u16>, multicast: Multicast) {
        (self.ethertypes, self.multicast) = (ethertypes, multicast);
    }

    /// Adds a runtime. A second one with an address gets no frames before [`pair`](Self::pair).
    pub(crate) fn attach(&mut self, runtime: &Runtime, world: &World) {
        self.absent.attach(runtime.mac);
        if world.runtimes.other_instance(runtime.id, runtime.ip).is_none() {
            self.give_address(runtime);
        }
        self.captures.handle_attached(&runtime.stats.name, runtime.id);
        self.solicited.insert(runtime.id, runtime.identity.ipv6());
    }

    /// Gives the frames for the address of two instances to the later one. Has no effect if one of
    /// them has ended, or if that is so already.
    pub(crate) fn pair(&mut self, earlier: RuntimeId, later: RuntimeId, world: &mut World) {
        let Some(ip) = world.runtimes.get(earlier).map(|runtime| runtime.ip) else { return };
        let Some(runtime) = world.runtimes.get_mut(later).filter(|runtime| runtime.ip == ip) else { return };
        runtime.earlier = Some(earlier);
        self.give_up_address(earlier);
        self.give_address(runtime);
        if let Some(runtime) = world.runtimes.get_mut(earlier) {
            runtime.earlier = None;
        }
    }

    /// Notes that a runtime was sent `Ready`.
    pub(crate) fn begin(&mut self, id: RuntimeId) {
        self.absent.begin(id);
    }

    /// Removes a runtime: its rings are not accessed after this.
    pub(crate) fn detach(&mut self, id: RuntimeId, world: &mut World) {
        // It may be of this runtime, whose tenant is to pay.
        self.send_held(world);
        self.solicited.remove(id);
        self.moves.detach(id);
        self.give_up_address(id);
        if let Some(ip) = world.runtimes.get(id).map(|runtime| runtime.ip) {
            self.ips.remove(&ip);
            if let Some(other) = world.runtimes.other_instance_mut(id, ip) {
                other.earlier = None;
                self.give_address(other);
            }
        }
        self.polled.retain(|egress| egress.sender.owner.runtime != id);
        self.captures.handle_detached(id);
    }

    fn give_address(&mut self, runtime: &Runtime) {
        self.macs.insert(runtime.mac, Destination::Runtime(runtime.id));
        self.locals.insert(runtime.ip, runtime.id);
        self.ips.insert(runtime.ip, runtime.mac);
    }

    fn give_up_address(&mut self, id: RuntimeId) {
        self.macs.remove(Destination::Runtime(id));
        self.locals.remove(id);
    }

    /// Returns the ports that have not failed.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.ports.iter().filter_map(|line| line.port.as_deref())
    }

    /// Returns whether a port's peer is a program of this machine.
    #[inline(always)]
    pub(crate) fn has_local_peer(&self) -> bool {
        self.ports.iter().any(|line| line.local)
    }

    /// Returns whether a port's peer is a program of this machine, and no service has been sent a
    /// frame by another service, or through a port without such a peer, lately.
    pub(crate) fn serves_local_peers_only(&self, now: Cycles) -> bool {
        self.has_local_peer() && now >= self.others_served_until
    }

    /// Returns how many frames have gone to and come from programs of this machine through ports.
    #[inline]
    pub(crate) fn local_frames(&self, stats: &Stats) -> u64 {
        let local = self.ports.iter().zip(stats.ports()).filter(|(line, _)| line.local);
        local.map(|(_, port)| port.injected.get() + port.transmitted.get()).sum()
    }

    /// Copies a frame to the watchers.
    #[cold]
    fn capture<S: Source>(&mut self, point: Point, source: &S) {
        if self.captures.wants(point)
            && let Some(frame) = source.copy(&mut self.buffer)
        {
            self.captures.push(point, frame);
        }
    }
}
