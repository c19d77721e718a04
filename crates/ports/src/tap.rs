//! A TAP device as the uplink: Linux on this machine, and the networks it routes to, exchange
//! frames with runtimes.
//!
//! Owns the device and its interface's addresses, which are the gateways of the runtimes: the IPv4
//! address it was made with and, on a network with IPv6, the corresponding IPv6 address. Linux
//! itself does neighbour discovery for both. A device that is made here has the MAC address that
//! follows from the IPv4 address, so that programs find one that is made anew at once. Each frame
//! takes one `read` or `write` (about 0.4 million a second, 4.3 us round trip on a 2-vCPU VM), but
//! segments of TCP pass in packets of up to 64 KiB. Runtimes receive complete frames: this port
//! cuts Linux's packets and computes the checksums, and joins consecutive segments into packets for
//! Linux, for which it lets the switch wait a moment ([`Port::awaits_more`]). With `offload=off`
//! Linux does all that, and each segment is a call. The runtimes' own stacks answer ARP and ICMP.
//!
//! Reading an empty device costs a system call (0.2 us), so after an empty read the device is not
//! read for `RECHECK_NS`; while the IOKernel sleeps, the device's descriptor wakes it.

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write, writev};
use std::io::IoSlice;
use std::net::Ipv4Addr;
use std::str::FromStr;
use tailwater_shm::Cycles;
use tailwater_shm::ring::MAX_FRAME;
use tailwater_wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PREFIX_LEN6};
use tailwater_wire::{IpProtocol, MacAddr};

use super::grammar::{OptionError, device, flag, value, words};
use super::tap_offload::{Cutter, HEADER, Joiner, MAX_READ, Taken};
use super::{Attachment, Context, Inject, Port, PortError, PortInterface, STOP_FIRST};
use crate::sys::interface::Interface;
use crate::sys::tap::{Kind, is_in_use_as, is_tap, open_tap, set_segments};
use crate::xdp::linux::Linux;

/// Pause after an empty read: at most 7 % of the loop's time, and 3 us of latency beside the 4.3 us
/// that a TAP round trip takes anyway.
const RECHECK_NS: u64 = 3_000;

/// Maximum number of queues of one device.
pub const MAX_QUEUES: u32 = 8;

/// Which device, and how. Parsed from words: its name first, then any of `queues=N` and the flags
/// `napi` and `offload`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSpec {
    /// Name of the device.
    pub name: String,
    /// Number of queues, 1 to [`MAX_QUEUES`]: Linux spreads flows over them, so that its cores do
    /// not contend for one.
    pub queues: u32,
    /// Linux takes frames through its polled receive path, in batches.
    pub napi: bool,
    /// Segments of up to 64 KiB pass in both directions, cut and joined here: fewer system calls
    /// for bulk data. On unless it is switched off.
    pub offload: bool,
}

impl TapSpec {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), queues: 1, napi: false, offload: true }
    }

    fn kind(&self) -> Kind {
        Kind { several: self.queues > 1, napi: self.napi, offload: self.offload }
    }
}

impl FromStr for TapSpec {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut words = words(text)?;
        let mut spec = Self::new(device(text, &mut words)?);
        for (key, given) in words {
            match key {
                "queues" => {
                    let read = |v: &str| v.parse().ok().filter(|n| (1..=MAX_QUEUES).contains(n));
                    spec.queues = value(key, given, &format!("1 to {MAX_QUEUES}"), read)?;
                }
                "napi" => spec.napi = flag(key, given)?,
                "offload" => spec.offload = flag(key, given)?,
                _ => return Err(OptionError::new(key, "known words are queues=N, napi and offload=on|off")),
            }
        }
        Ok(spec)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct TapPort {
    spec: TapSpec,
    host: Ipv4Addr,
    /// Of Linux's side; known once started.
    mac: Option<MacAddr>,
    /// One descriptor per queue; before the start, those of a port that this one takes over from.
    devices: Vec<OwnedFd>,
    /// An epoll descriptor over all queues, if there are several.
    events: Option<OwnedFd>,
    /// The queue to read first.
    first: usize,
    recheck: Cycles,
    next_read: Cycles,
    buffer: Vec<u8>,
    /// What was read and is not yet injected: its length, and the state of the cutter.
    rest: Option<(usize, Cutter)>,
    /// Buffer for frames cut from a segment.
    cut: Vec<u8>,
    joiner: Joiner,
}

impl TapPort {
    /// Returns a port on the TAP device `name`, whose interface gets address `host`; both are made
    /// or changed at [`start`](Port::start).
    pub fn new(name: &str, host: Ipv4Addr) -> Self {
        Self::with_spec(TapSpec::new(name), host)
    }

    /// As [`new`](Self::new), with these options.
    pub fn with_spec(spec: TapSpec, host: Ipv4Addr) -> Self {
        let longest = if spec.offload { MAX_READ } else { MAX_FRAME };
        Self {
            spec,
            host,
            mac: None,
            devices: Vec::new(),
            events: None,
            first: 0,
            recheck: 0,
            next_read: 0,
            buffer: vec![0; longest],
            rest: None,
            cut: vec![0; MAX_FRAME],
            joiner: Joiner::default(),
        }
    }

    /// Injects frames of the segment read before, up to `budget`, one if there is one. Returns how
    /// many.
    fn inject_rest(&mut self, budget: usize, switch: &mut dyn Inject) -> usize {
        let Some((len, cutter)) = &mut self.rest else { return 0 };
        for count in 0..budget {
            if count > 0 && !switch.may_go_on(false) {
                return count;
            }
            match cutter.next(&self.buffer[..*len], &mut self.cut) {
                Some(frame) => {
                    switch.inject(frame);
                }
                None => {
                    self.rest = None;
                    return count;
                }
            }
        }
        budget
    }

    /// Sends the packet that was joined, if there is one; returns whether Linux has all of it.
    fn send_joined(&mut self) -> bool {
        let Self { joiner, devices, .. } = self;
        let Some(packet) = joiner.finish() else { return true };
        let device = devices.get(queue_of(&packet[HEADER..], devices.len()));
        device.is_some_and(|device| write(device, packet).is_ok())
    }

    /// Returns the queue for a frame.
    fn device_for(&self, frame: &[u8]) -> Option<&OwnedFd> {
        self.devices.get(queue_of(frame, self.devices.len()))
    }

    /// Opens the first queue of this port. Linux would give a device of several queues to two
    /// programs, and each some of the flows. Two that begin at the same moment are not told apart:
    /// both find it unused.
    fn open_first(&self) -> Result<OwnedFd, Errno> {
        let (name, kind) = (&self.spec.name, self.spec.kind());
        if kind.several && Interface::new(name).is_ok_and(|interface| is_used(&interface)) {
            return Err(if is_in_use_as(name, kind) == Some(false) { Errno::EXIST } else { Errno::BUSY });
        }
        open_tap(name, kind)
    }

    /// Returns whether there is an interface of this name.
    fn has_interface(&self) -> bool {
        Interface::new(&self.spec.name).is_ok_and(|interface| interface.index().is_ok())
    }

    fn fail(&self, why: String) -> PortError {
        PortError { port: self.spec.name.clone(), why }
    }

    /// Returns in words whether there is a device of this name, after it was opened and closed
    /// again: one that is not there is made and gone at once. With `inherits` it may be in use.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn examine(&self, prefix_len: u8, inherits: bool) -> Result<String, PortError> {
        let (name, host) = (&self.spec.name, self.host);
        let found = |what| Ok(format!("TAP device {name}, Linux's address {host}: {what}"));
        let is_there = self.has_interface();
        let kind = self.spec.kind();
        match self.open_first() {
            Ok(_) if is_there => found("the device is there"),
            Ok(_) => found("can be made"),
            Err(Errno::BUSY) if inherits && is_in_use_as(name, kind) == Some(false) => Err(self.is_other()),
            Err(Errno::EXIST) if inherits => Err(self.is_other()),
            Err(Errno::BUSY) if inherits => found("would be passed on by the IOKernel that runs"),
            Err(error) => Err(self.explain("make the TAP device", error, prefix_len)),
        }
    }

    /// Returns an error that says that the device is in use in another way.
    fn is_other(&self) -> PortError {
        self.fail(format!(
            "the running IOKernel uses it with other queues, napi or offload (on, unless `offload=off`): take over \
             with the same, or {STOP_FIRST}"
        ))
    }

    /// Returns an error that says what to do about `error`.
    fn explain(&self, what: &str, error: Errno, prefix_len: u8) -> PortError {
        let (name, host) = (&self.spec.name, self.host);
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
            Errno::EXIST => format!(
                "cannot {what}: another program uses {name} with other queues, napi or offload; choose another name"
            ),
            Errno::OPNOTSUPP => {
                format!("cannot {what}: this kernel passes no long segments; add offload=off")
            }
            Errno::INVAL if self.has_interface() => format!(
                "cannot {what}: there is a device {name} already, of another kind, or made for several queues while \
                 one is asked for (queues=1), or the reverse; give it the other queues=, or choose another name"
            ),
            other => format!("cannot {what}: {other}"),
        })
    }
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn attachment(&self) -> Attachment {
        Attachment::Uplink { gateway: Some(self.host) }
    }

    fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    fn has_local_peer(&self) -> bool {
        true
    }

    fn devices(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.iter().map(AsFd::as_fd).collect()
    }

    fn devices_last(&self) -> bool {
        true
    }

    fn inherit(&mut self, devices: Vec<OwnedFd>) -> Result<(), PortError> {
        let TapSpec { name, queues, .. } = &self.spec;
        let kind = self.spec.kind();
        if devices.len() != *queues as usize || !devices.iter().all(|device| is_tap(device, name, kind)) {
            return Err(self.is_other());
        }
        self.devices = devices;
        Ok(())
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        let prefix_len = context.prefix_len;
        let is_there = self.has_interface();
        self.recheck = context.clock.from_ns(RECHECK_NS);
        let mut devices = std::mem::take(&mut self.devices);
        let (TapSpec { name, queues, .. }, kind) = (&self.spec, self.spec.kind());
        for number in devices.len()..*queues as usize {
            let opened = if number == 0 { self.open_first() } else { open_tap(name, kind) };
            let device = opened
                .and_then(|device| set_segments(&device, kind).map(|()| device))
                .map_err(|e| self.explain("make the TAP device", e, prefix_len))?;
            devices.push(device);
        }
        let interface = Interface::new(name).map_err(|e| self.explain("open a socket", e, prefix_len))?;
        if !is_there {
            let own = MacAddr::derived(self.host);
            interface.set_mac(own).map_err(|e| self.explain("set its MAC address", e, prefix_len))?;
        }
        match interface.configure(self.host, prefix_len, context.mtu) {
            Ok(()) => {}
            // An administrator has configured the interface already.
            Err(Errno::PERM | Errno::ACCESS) if interface.is_configured(self.host) => {}
            Err(error) => return Err(self.explain("set its address", error, prefix_len)),
        }
        let mac = interface.mac().map_err(|e| self.explain("read its MAC address", e, prefix_len))?;
        self.mac = Some(mac);
        if let Some(ip6) = context.ip6_of(self.host)
            && let Err(error) = interface.add_ip6(ip6, PREFIX_LEN6)
        {
            // IPv4 works, and most networks need only that: a kernel without IPv6 must not prevent
            // the start.
            tracing::warn!(port = name, %ip6, %error, "the interface has no IPv6 address; runtimes keep theirs");
        }
        if devices.len() > 1 {
            let events = watch(&devices).map_err(|e| self.explain("watch its queues", e, prefix_len))?;
            self.events = Some(events);
        }
        self.devices = devices;
        Ok(())
    }

    fn interface(&self, context: &Context) -> Option<PortInterface> {
        PortInterface::new(&self.spec.name, context.ip6_of(self.host))
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        if now < self.next_read {
            return Ok(0);
        }
        let (mut empty, mut has_read, queues) = (0, false, self.devices.len());
        let mut frames = self.inject_rest(budget, switch);
        for i in 0..queues {
            let queue = (self.first + i) % queues;
            // What a segment leaves is injected before another is read.
            while frames < budget && self.rest.is_none() && (frames == 0 || switch.may_go_on(true)) {
                has_read = true;
                match read(&self.devices[queue], &mut self.buffer) {
                    Ok(len) if self.spec.offload => {
                        self.rest = Cutter::new(&mut self.buffer[..len]).map(|cutter| (len, cutter));
                        // Counts at least one frame, so that segments with invalid headers cannot
                        // hold the loop here.
                        frames += self.inject_rest(budget - frames, switch).max(1);
                    }
                    Ok(len) => {
                        switch.inject(&self.buffer[..len]);
                        frames += 1;
                    }
                    Err(Errno::AGAIN) => {
                        empty += 1;
                        break;
                    }
                    Err(Errno::INTR) => break,
                    Err(error) => {
                        return Err(self.fail(format!("cannot read: {error}; was the device deleted?")));
                    }
                }
            }
        }
        if empty == queues {
            self.next_read = now.saturating_add(self.recheck);
        } else if has_read {
            // Another queue is first next time, so that the first does not starve the others.
            self.first = (self.first + 1) % queues;
        }
        Ok(frames)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        // If the queue is full or the interface is down, the frame is dropped, as on any wire.
        if !self.spec.offload {
            return self.device_for(frame).is_some_and(|device| write(device, frame).is_ok());
        }
        let mut taken = self.joiner.take(frame);
        if taken == Taken::Other {
            self.flush();
            taken = self.joiner.take(frame);
        }
        match taken {
            Taken::Held => true,
            Taken::Last => self.send_joined(),
            // An all-zero header: the frame is complete.
            Taken::Alone | Taken::Other => self.device_for(frame).is_some_and(|device| {
                writev(device, &[IoSlice::new(&[0; HEADER]), IoSlice::new(frame)]).is_ok()
            }),
        }
    }

    fn awaits_more(&self) -> bool {
        self.joiner.is_open()
    }

    fn flush(&mut self) {
        // The frames of a joined packet have been counted as sent; if it is dropped, their sender's
        // TCP finds out, as on any wire.
        self.send_joined();
    }

    fn next_event(&self) -> Option<Cycles> {
        // The rest of a long segment is due at once.
        self.rest.is_some().then_some(0)
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().or(self.devices.first()).map(AsFd::as_fd)
    }
}

/// Returns whether an interface is a TAP device of which a program has a queue.
fn is_used(interface: &Interface) -> bool {
    // What cannot be read is left to Linux, which refuses a device of one queue, and any other one.
    let link = |index| Linux::new().and_then(|mut linux| linux.link(index));
    interface.driver() == "tun"
        && interface.index().is_ok_and(|index| link(index).is_ok_and(|link| link.has_carrier))
}

/// Returns the number of the queue, of `queues`, for a frame: the same for all frames of a TCP or
/// UDP flow. Linux sends a flow's frames to the queue on which it last received one, so with one
/// queue for all, all flows would move to it.
fn queue_of(frame: &[u8], queues: usize) -> usize {
    if queues < 2 || frame.len() < 38 {
        return 0;
    }
    let has_ports = |protocol: u8| matches!(IpProtocol(protocol), IpProtocol::TCP | IpProtocol::UDP);
    let flow = match u16::from_be_bytes([frame[12], frame[13]]) {
        // Without options. Fragments differ in nothing but their addresses.
        ETHERTYPE_IPV4 if frame[14] == 0x45 && has_ports(frame[23]) => {
            let whole = frame[20] & 0x3f == 0 && frame[21] == 0;
            &frame[26..if whole { 38 } else { 34 }]
        }
        ETHERTYPE_IPV6 if frame.len() >= 58 && has_ports(frame[20]) => &frame[22..58],
        _ => return 0,
    };
    let mixed = flow.as_chunks::<4>().0.iter().fold(0, |mixed, word| mixed ^ u32::from_le_bytes(*word));
    (mixed ^ (mixed >> 16) ^ (mixed >> 8)) as u8 as usize % queues
}

/// Returns a descriptor that is readable when one of `devices` is.
fn watch(devices: &[OwnedFd]) -> Result<OwnedFd, Errno> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for device in devices {
        epoll::add(&events, device, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(events)
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

    #[test]
    fn frames_of_a_flow_share_a_queue_and_flows_are_spread() {
        for (kind, protocol, ports) in [([8, 0, 0x45], 23, 34), ([0x86, 0xdd, 0x60], 20, 54)] {
            let mut frame = [7; 90];
            frame[12..15].copy_from_slice(&kind);
            frame[20..22].fill(0);
            frame[protocol] = IpProtocol::TCP.0;
            let mut of_port = |port: u16, data: u8| {
                frame[ports..ports + 2].copy_from_slice(&port.to_be_bytes());
                frame[ports + 4..].fill(data);
                queue_of(&frame, 4)
            };
            let queues: std::collections::BTreeSet<usize> =
                (1000..1064).map(|port| of_port(port, 0)).collect();
            assert_eq!(queues, (0..4).collect());
            assert!((1000..1064).all(|port| of_port(port, 1) == of_port(port, 2)));
        }
        assert_eq!(queue_of(&[0xff; 20], 4), 0);
    }

    #[test]
    fn words_choose_queues_and_napi_or_say_what_there_is() {
        let spec: TapSpec = "tw0,queues=4,napi,offload=off".parse().unwrap();
        assert_eq!(spec, TapSpec { name: "tw0".to_owned(), queues: 4, napi: true, offload: false });
        assert_eq!("tw0".parse(), Ok(TapSpec::new("tw0")));
        assert_eq!("tw0,napi=off,offload".parse(), Ok(TapSpec::new("tw0")));
        for bad in
            ["", "queues=2", "tw0,queues=0", "tw0,queues=9", "tw0,nap", "tw%d", "tw0,napi=no", "tw0 tw1"]
        {
            assert!(bad.parse::<TapSpec>().is_err(), "{bad}");
        }
    }
}
