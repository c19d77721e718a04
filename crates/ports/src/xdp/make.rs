//! Makes the parts of an AF_XDP port on its interface: the redirect program and its maps, its
//! attachment, and a bound socket for each queue.
//!
//! All are descriptors, which end with the port unless another process has them, too.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tailwater_wire::MacAddr;

use super::addresses::Gateway;
use super::linux::Linux;
use super::ports::attachment::{self, Attachment};
use super::ports::record::Record;
use super::ports::steering::{MOST_FRAGMENTED, MOST_PORTS, PortMap};
use super::program::ports::redirect_ports;
use super::program::{self, KERNEL, Maps, Owned, Settings};
use super::sharing::{Addresses, address_map};
use super::ways::{Prefix, Ways};
use super::{MAX_MTU, MAX_QUEUES, SMALL_CHUNK, Share, XdpMode, XdpPort, ZeroCopy};
use crate::PortError;
use crate::card::{Attached, keep_tags};
use crate::sys::interface::Interface;
use crate::sys::xsk::{OpenError, Queue};
use tailwater_bpf::sys::map::Map;
use tailwater_bpf::sys::{self as bpf, Hook};
use tailwater_host::{ReservedPorts, port_users};

/// Maximum number of attempts to bind or attach while the kernel takes down the previous user of
/// the queue, for which up to 54 ms were measured.
pub(super) const BUSY_TRIES: u32 = 100;
/// Pause between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The maps of a redirect program.
pub(super) struct Held {
    pub(super) sockets: OwnedFd,
    /// If Linux goes on using the interface.
    pub(super) settings: Option<Arc<Map<u32, Settings>>>,
    /// If programs are behind its own MAC address.
    pub(super) theirs: Option<Theirs>,
}

/// The maps that tell frames of programs behind the interface's own MAC address.
#[derive(Clone)]
pub(super) enum Theirs {
    Addresses(Arc<Addresses>),
    /// By their ports; with the map of fragments.
    Ports(Arc<PortMap>, Arc<Fragments>),
}

/// Datagrams of which the first fragment was for a program.
pub(super) type Fragments = Map<[u64; 3], u32>;

impl Held {
    fn numbers(&self) -> Maps {
        Maps {
            sockets: self.sockets.as_raw_fd(),
            settings: self.settings.as_ref().map_or(0, |map| map.number()),
            addresses: match &self.theirs {
                None => 0,
                Some(Theirs::Addresses(map)) => map.number(),
                Some(Theirs::Ports(map, _)) => map.number(),
            },
            fragments: match &self.theirs {
                Some(Theirs::Ports(_, fragments)) => fragments.number(),
                _ => 0,
            },
        }
    }

    /// Returns their descriptors, in this order.
    pub(super) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let settings = self.settings.as_ref().map(|map| map.as_fd());
        let theirs = match &self.theirs {
            None => [None, None],
            Some(Theirs::Addresses(map)) => [Some(map.as_fd()), None],
            Some(Theirs::Ports(map, fragments)) => [Some(map.as_fd()), Some(fragments.as_fd())],
        };
        [Some(self.sockets.as_fd()), settings].into_iter().chain(theirs).flatten()
    }
}

/// What directs frames to sockets, and the sockets, one for each queue.
pub(super) struct Made {
    pub(super) link: OwnedFd,
    /// If it outlives the process; taken away by a start that fails.
    pub(super) attachment: Option<Attachment>,
    pub(super) maps: Held,
    pub(super) hook: Hook,
    pub(super) queues: Vec<Queue>,
}

impl XdpPort {
    /// Makes program, attachment and sockets on interface `index`.
    pub(super) fn make(
        &self,
        (index, count): (u32, u32),
        chunk: u32,
        owned: Option<&Owned>,
    ) -> Result<Made, PortError> {
        let maps =
            self.maps((index, count), owned).map_err(|e| self.explain("make the maps of its program", e))?;
        let program = bpf::load_xdp(&self.code(maps.numbers())).map_err(|error| match error.errno {
            Errno::PERM => self.explain("load the redirect program", Errno::PERM),
            _ => self
                .fail(format!("cannot load the redirect program: {error}; the program: {}", error.program)),
        })?;
        // While the map has no sockets, frames still go to Linux. A program that takes the place of
        // another one's comes last: while that IOKernel runs, no other has a socket on the queues.
        let first = self.first_hook(index)?;
        let ((link, attachment, hook), queues) = if self.spec.share == Share::Ports {
            let queues = self.open_all((index, count), chunk, first)?;
            (self.attach(&program, index, first)?, queues)
        } else {
            let attached = self.attach(&program, index, first)?;
            let hook = attached.2;
            (attached, self.open_all((index, count), chunk, hook)?)
        };
        for (number, queue) in (0..).zip(&queues) {
            bpf::set_socket(&maps.sockets, number, &**queue.socket())
                .map_err(|e| self.explain("enter a socket", e))?;
        }
        Ok(Made { link, attachment, maps, hook, queues })
    }

    /// Returns a bound socket on each queue.
    fn open_all(&self, (index, count): (u32, u32), chunk: u32, hook: Hook) -> Result<Vec<Queue>, PortError> {
        let zero_copy = match (self.spec.zero_copy, hook) {
            (ZeroCopy::Auto, Hook::Generic) => ZeroCopy::Off,
            (zero_copy, _) => zero_copy,
        };
        (0..count).map(|number| self.open(index, number, chunk, zero_copy)).collect()
    }

    /// Returns the maps of the program, with what belongs to Linux.
    fn maps(&self, (index, count): (u32, u32), owned: Option<&Owned>) -> Result<Held, Errno> {
        let sockets = bpf::socket_map(count)?;
        let Some(owned) = owned else { return Ok(Held { sockets, settings: None, theirs: None }) };
        let settings = Map::array(1)?;
        settings.set(0, owned.settings())?;
        let theirs = match self.spec.share {
            Share::Nothing | Share::Mac => None,
            Share::Addresses => Some(Theirs::Addresses(Arc::new(address_map()?))),
            Share::Ports => {
                let ports = PortMap::hash(MOST_PORTS)?;
                // Before the program is attached: they are closed to Linux.
                let recorded = attachment::recorded(&self.spec.interface, index);
                for key in recorded.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
                    ports.set(key, 0)?;
                }
                Some(Theirs::Ports(Arc::new(ports), Arc::new(Map::recent(MOST_FRAGMENTED)?)))
            }
        };
        Ok(Held { sockets, settings: Some(Arc::new(settings)), theirs })
    }

    /// Returns the hook to try first: that of an earlier IOKernel's program if ports of programs
    /// depend on it and the options leave the choice.
    fn first_hook(&self, index: u32) -> Result<Hook, PortError> {
        match (self.spec.mode, self.spec.share) {
            (XdpMode::Skb, _) => Ok(Hook::Generic),
            (XdpMode::Auto, Share::Ports) => attachment::hook_in_use(&self.spec.interface, index)
                .map(|hook| hook.unwrap_or(Hook::Driver))
                .map_err(|e| self.fail(format!("cannot find the attached program (netlink): {e}"))),
            (XdpMode::Auto | XdpMode::Native, _) => Ok(Hook::Driver),
        }
    }

    /// Attaches the program to the first hook, or to that which the options and the driver allow;
    /// returns what keeps it attached, and the hook.
    fn attach(
        &self,
        program: &OwnedFd,
        index: u32,
        first: Hook,
    ) -> Result<(OwnedFd, Option<Attachment>, Hook), PortError> {
        let attach = |hook| match self.spec.share {
            // What it returns beside the attachment is a copy of the program.
            Share::Ports => Attachment::new(&self.spec.interface, index, program, hook)
                .and_then(|attachment| Ok((program.try_clone()?, Some(attachment), hook)))
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            _ => while_busy(self.busy_tries(), || bpf::attach_xdp(program, index, hook))
                .map(|link| (link, None, hook)),
        };
        let what = "attach the redirect program";
        match attach(first) {
            Err(error)
                if self.spec.mode == XdpMode::Auto
                    && first == Hook::Driver
                    && !matches!(error, Errno::PERM | Errno::BUSY | Errno::EXIST) =>
            {
                let port = &self.spec.interface;
                tracing::warn!(port, %error, "the driver runs no XDP programs: using skb mode, which is slower");
                attach(Hook::Generic)
            }
            attached => attached,
        }
        .map_err(|error| match error {
            Errno::BUSY | Errno::EXIST => self.beside_another(index, what),
            error => self.explain(what, error),
        })
    }

    /// Checks that no program is attached to the interface, except one that an earlier IOKernel,
    /// which does not run any more, has left there for the next one.
    pub(super) fn check_free(&self, index: u32) -> Result<(), PortError> {
        let is_free = match self.spec.share {
            Share::Ports => attachment::is_left(&self.spec.interface, index),
            _ => Linux::new().and_then(|mut linux| Ok(linux.attached_xdp(index)?.is_none())),
        };
        match is_free {
            // What is left may be of one that runs, which has a socket there. One that copies
            // changes nothing of the card.
            Ok(true) if self.spec.share == Share::Ports => {
                self.open(index, 0, SMALL_CHUNK, ZeroCopy::Off).map(drop)
            }
            Ok(true) => Ok(()),
            Ok(false) => Err(self.beside_another(index, "attach the redirect program")),
            Err(error) => Err(self.unread_program(&error)),
        }
    }

    /// Returns an error that names the programs that are attached to the interface.
    fn beside_another(&self, index: u32, what: &str) -> PortError {
        let name = &self.spec.interface;
        let mut programs = match Linux::new().and_then(|mut linux| linux.link(index)) {
            Ok(link) => link.attached,
            Err(error) => return self.unread_program(&error),
        };
        if programs.is_empty() {
            return self.fail(format!(
                "cannot {what}: Linux says that a program is attached, and {name} has none now: a bond or bridge \
                 above it has one (`ip -d link show` marks it), or it was taken away meanwhile: try again"
            ));
        }
        Attached::name(&mut programs);
        let (attached, remedies) = Attached::describe(&programs, name);
        if self.spec.share == Share::Ports && Record::is_of_another_user(name) {
            return self.fail(format!(
                "cannot {what}: {attached} already, by an IOKernel of another user that runs, or has left it for the \
                 next one: start this one as that user"
            ));
        }
        self.fail(format!(
            "cannot {what}: {attached} already; end what has attached it, or start this one with --takeover if that \
             is an IOKernel; or take it away by {remedies}"
        ))
    }

    fn unread_program(&self, error: &std::io::Error) -> PortError {
        self.fail(format!("cannot read which program is attached (netlink): {error}"))
    }

    /// Returns a bound socket on queue `number`.
    fn open(&self, index: u32, number: u32, chunk: u32, zero_copy: ZeroCopy) -> Result<Queue, PortError> {
        let queue = Queue::open(chunk).map_err(|error| match error {
            OpenError::Socket(e) => self.explain("make an AF_XDP socket", e),
            OpenError::Register(e) => self.explain("register frame memory", e),
            OpenError::Rings(e) => self.explain("set up rings", e),
            OpenError::Memory(e) => self.fail(e.to_string()),
        })?;
        let bind = |how| {
            while_busy(self.busy_tries(), || queue.bind(index, number, how | libc::XDP_USE_NEED_WAKEUP))
        };
        let what = format!("bind to queue {number}");
        let refused = |what: &str, error| match error {
            Errno::BUSY => self.fail(format!(
                "cannot {what}: another process has an AF_XDP socket there; \
                 if that is an IOKernel, end it, or start this one with --takeover"
            )),
            error => self.explain(what, error),
        };
        if zero_copy != ZeroCopy::Off {
            match bind(libc::XDP_ZEROCOPY) {
                Ok(()) => return Ok(queue),
                Err(error) if zero_copy == ZeroCopy::Required => {
                    return Err(refused(&format!("{what} without copying"), error));
                }
                Err(error @ (Errno::PERM | Errno::BUSY | Errno::NODEV)) => return Err(refused(&what, error)),
                // The driver does not support zero copy: copy.
                Err(_) => {}
            }
        }
        bind(libc::XDP_COPY).map_err(|error| refused(&what, error))?;
        Ok(queue)
    }

    /// Returns the redirect program for these maps.
    pub(super) fn code(&self, maps: Maps) -> Vec<u64> {
        match self.spec.share {
            Share::Nothing => program::redirect_all(maps.sockets, KERNEL),
            Share::Mac => program::redirect_foreign(maps, KERNEL),
            Share::Addresses => program::redirect_addresses(maps, KERNEL),
            Share::Ports => redirect_ports(maps, &self.spec.outgoing.range, KERNEL),
        }
    }

    /// Returns what belongs to Linux on the interface; `None` if nothing does.
    pub(super) fn owned(&self, interface: &Interface, prefix_len: u8) -> Result<Option<Owned>, PortError> {
        if self.spec.share == Share::Nothing {
            return Ok(None);
        }
        let (mac, ip) = (self.own_mac(interface)?, interface.ip());
        // Only used to tell ARP apart that is for programs with MAC addresses of their own.
        let network = self.spec.gateway.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let ip6 = match self.spec.share {
            Share::Ports => {
                let index = interface.index().map_err(|e| self.explain("find the interface", e))?;
                let found = Linux::new().and_then(|mut linux| linux.global6(index));
                found.map_err(|e| self.fail(format!("cannot read Linux's addresses (netlink): {e}")))?
            }
            _ => None,
        };
        Ok(Some(Owned { mac, ip, ip6, network, prefix_len }))
    }

    /// Checks that programs can share the interface's own addresses by ports.
    pub(super) fn check_ports(&self, owned: &Owned) -> Result<(), PortError> {
        let name = &self.spec.interface;
        let Some(ip) = owned.ip else {
            return Err(self.fail(format!(
                "it has no IPv4 address that programs could share; `ip addr add ADDRESS dev {name}`"
            )));
        };
        let mask = u32::MAX.checked_shl(32 - u32::from(owned.prefix_len)).unwrap_or(0);
        if (ip.to_bits() ^ owned.network.to_bits()) & mask == 0 {
            return Err(self.fail(format!(
                "its address {ip} is in the network of the programs, which has to be another one with share=ports: set network and gateway="
            )));
        }
        // Any program of Linux may ask for a port of the range while the interface is away, and is
        // not to keep it from programs.
        if self.resumes {
            return Ok(());
        }
        let range = &self.spec.outgoing.range;
        let users: Vec<String> =
            ["tcp", "udp"].iter().flat_map(|transport| port_users(transport, range)).collect();
        if let Some(first) = users.first() {
            let more = match users.len() {
                1 => String::new(),
                many => format!(", and {} more", many - 1),
            };
            if ReservedPorts::covers(range).unwrap_or(false) {
                tracing::warn!(
                    port = name,
                    "Linux has {first}{more}, in the reserved range of programs' ports: what comes there on {name} is not Linux's"
                );
                return Ok(());
            }
            return Err(self.fail(format!(
                "Linux uses ports of the range {}-{}: {first}{more}; end these, or choose another range=",
                range.start(),
                range.end()
            )));
        }
        Ok(())
    }

    /// Returns in words how programs behind the interface's own MAC address reach other networks.
    pub(super) fn way(&self, index: u32, senders: &[Prefix]) -> Result<String, PortError> {
        let Some(gateway) = self.spec.gateway else {
            return Ok("without gateway=IP and other networks".to_owned());
        };
        let default = self.ways(index, senders)?.default_router();
        Ok(match default {
            Some(router) => format!("other networks by Linux's router {router}"),
            None => format!("other networks by {gateway}, since Linux has no default route there"),
        })
    }

    /// Returns whose packets leave for other networks by Linux's routes; none if those of programs
    /// do not.
    pub(super) fn senders(&self, owned: Option<&Owned>, network6: Ipv6Addr) -> Vec<Prefix> {
        match (self.spec.share, self.spec.gateway, owned) {
            (Share::Addresses, Some(ip), Some(owned)) => {
                Gateway { ip, ip6: Some(network6) }.networks(owned.prefix_len)
            }
            (Share::Ports, _, Some(owned)) => owned.ips().map(Prefix::one).collect(),
            _ => Vec::new(),
        }
    }

    fn ways(&self, index: u32, senders: &[Prefix]) -> Result<Ways, PortError> {
        let ways = Linux::new().and_then(|mut linux| linux.ways(index, senders));
        ways.map_err(|e| self.fail(format!("cannot read Linux's routes (netlink): {e}")))
    }

    /// Attempts to bind or attach to what is busy.
    fn busy_tries(&self) -> u32 {
        if self.resumes { 1 } else { BUSY_TRIES }
    }

    /// Returns in words which of Linux's routing rules for these senders are not followed; `None`
    /// if all are, there is no sender, or Linux does not answer.
    pub(super) fn rules(&self, index: u32, senders: &[Prefix]) -> Option<String> {
        if senders.is_empty() { None } else { self.ways(index, senders).ok()?.explain() }
    }

    /// Returns in words that programs receive frames of VLANs, if they do: a card that takes tags
    /// off shows them to Linux alone.
    pub(super) fn hidden_tags(&self, interface: &Interface) -> Option<String> {
        let name = &self.spec.interface;
        let index = interface.index().ok()?;
        let has_vlans = || Linux::new().and_then(|mut linux| linux.has_vlans(index)).is_ok_and(|has| has);
        (interface.strips_tags() == Some(true) && has_vlans()).then(|| {
            let remedy = keep_tags(name, &interface.driver());
            format!(
                "the card takes off VLAN tags, so that programs receive frames of the VLANs that Linux has there; {remedy}"
            )
        })
    }

    pub(super) fn own_mac(&self, interface: &Interface) -> Result<MacAddr, PortError> {
        interface.mac().map_err(|e| self.explain("read its MAC address", e))
    }

    /// Checks the interface; returns its index and the number of queues to use.
    pub(super) fn examine(&self, interface: &Interface, mtu: u16) -> Result<(u32, u32), PortError> {
        let name = &self.spec.interface;
        let index = interface.index().map_err(|e| self.explain("find the interface", e))?;
        if !interface.is_up() {
            return Err(self.fail(format!("the interface is down; `ip link set {name} up`")));
        }
        let carries = interface.mtu().map_err(|e| self.explain("read its MTU", e))?;
        if u32::from(mtu) > carries {
            return Err(self.fail(format!(
                "its MTU is {carries}, the IOKernel's {mtu}; `ip link set {name} mtu {mtu}`, or set mtu = {carries}"
            )));
        }
        if mtu > MAX_MTU {
            return Err(
                self.fail(format!("AF_XDP carries IP packets up to {MAX_MTU} bytes; set mtu = {MAX_MTU}"))
            );
        }
        let there = interface.receive_queues();
        let queues = self.spec.queues.unwrap_or(there).min(MAX_QUEUES);
        if self.spec.share == Share::Ports && there > MAX_QUEUES {
            return Err(self.fail(format!(
                "it has {there} receive queues, and share=ports needs a socket on each, {MAX_QUEUES} at most; \
                 `ethtool -L {name} combined {MAX_QUEUES}`"
            )));
        }
        if queues > there {
            return Err(self.fail(format!("it has {there} receive queues, not {queues}")));
        }
        Ok((index, queues))
    }
}

/// Makes `attempt` until it returns something else than EBUSY, `tries` times at most.
fn while_busy<T>(tries: u32, mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..tries {
        match attempt() {
            Err(Errno::BUSY) => std::thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::ports::attachment::tests::{program as other_program, xdp_namespaces};
    use crate::{Context, Port};
    use std::process::Command;
    use tailwater_shm::Clock;
    use tailwater_testkit::namespace::Namespace;

    #[test]
    fn a_rule_that_is_not_followed_is_named_if_it_is_for_packets_of_programs() {
        let Some([here, _there]) = Namespace::pair(["here0", "there0"], 1) else { return };
        here.ip(&["addr", "add", "192.0.2.9/24", "dev", "here0"]);
        let network6 = "fd00:7477::".parse().unwrap();
        let look = |words: &str| {
            let port = XdpPort::new(format!("here0,gateway=10.77.0.1,{words}").parse().unwrap());
            here.inside(|| port.look(1500, (16, network6), true)).unwrap()
        };
        here.ip(&["rule", "add", "from", "172.17.0.0/16", "uidrange", "0-9", "table", "77"]);
        for (words, from) in [("share=addresses", "10.77.0.5"), ("share=ports", "192.0.2.9")] {
            assert!(!look(words).contains("routing rule"), "{}", look(words));
            let rule = ["from", from, "uidrange", "0-9", "table", "77", "priority", "700"];
            here.ip(&[&["rule", "add"], &rule[..]].concat());
            assert!(look(words).contains("routing rule with priority 700"), "{}", look(words));
            here.ip(&[&["rule", "del"], &rule[..]].concat());
        }
    }

    /// Returns why a port on `here0` is refused: by a check, and at a start.
    fn refused(share: &str) -> [String; 2] {
        let mut port = port(share);
        let checked = port.look(1500, (16, "fd00:7477::".parse().unwrap()), false).unwrap_err();
        [checked.to_string(), started(&mut port)]
    }

    fn port(share: &str) -> XdpPort {
        let mut port = XdpPort::new(format!("here0,gateway=10.77.0.1{share}").parse().unwrap());
        port.resumes = true;
        port
    }

    /// Returns why a start is refused.
    fn started(port: &mut XdpPort) -> String {
        let clock = Clock::from_hz(1_000_000_000);
        let context = Context { clock, mtu: 1500, prefix_len: 16, network6: None };
        port.start(&context).unwrap_err().to_string()
    }

    #[test]
    fn a_program_of_another_is_named_with_a_command_that_takes_it_away() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        here.ip(&["addr", "add", "192.0.2.1/24", "dev", "here0"]);
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let (mut linux, other) = (Linux::new().unwrap(), other_program());
            let number = bpf::program_number(&other).unwrap();
            // Tests may lack the right to read the name.
            let name = bpf::program_name(number);
            assert!(name == Ok("tailwater".to_owned()) || name == Err(Errno::PERM), "{name:?}");
            let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
            for (hook, mode) in [(Hook::Driver, "native"), (Hook::Generic, "skb")] {
                for share in ["", ",share", ",share=ports"] {
                    linux.attach_xdp(index, other.as_fd(), hook, false).unwrap();
                    let errors = refused(share);
                    for error in &errors {
                        let named = error.contains(&format!("program {number} ({name}{mode}"));
                        assert!(named, "{share}: {error}");
                    }
                    let command = errors[0].split('`').find(|part| part.starts_with("ip link set ")).unwrap();
                    here.ip(&command.split(' ').skip(1).collect::<Vec<_>>());
                    assert_eq!(linux.attached_xdp(index).unwrap(), None, "{command}");
                }
            }
            // That command cannot take away what a BPF link holds.
            let _link = bpf::attach_xdp(&other, index, Hook::Driver).unwrap();
            let error = linux.detach_xdp(index, None, Hook::Driver).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
            assert!(refused("").iter().all(|error| error.contains("bpftool link detach")));
        });
    }

    #[test]
    fn a_program_of_another_users_iokernel_is_left_to_that_user() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        here.ip(&["addr", "add", "192.0.2.1/24", "dev", "here0"]);
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let theirs = Attachment::new("here0", index, &other_program(), Hook::Driver).unwrap();
            std::os::unix::fs::chown(&theirs.file, Some(65_534), None).unwrap();
            for error in refused(",share=ports") {
                assert!(error.contains("another user") && !error.contains("ip link"), "{error}");
            }
            std::os::unix::fs::chown(&theirs.file, Some(0), None).unwrap();
        });
    }

    #[test]
    fn a_program_on_an_interface_above_is_told_from_one_on_the_interface() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        let bridge = ["link", "add", "above0", "type", "bridge"];
        if !here.inside(|| Command::new("ip").args(bridge).status()).is_ok_and(|status| status.success()) {
            eprintln!("skipped: this kernel has no bridges");
            return;
        }
        here.ip(&["link", "set", "here0", "master", "above0"]);
        here.inside(|| {
            let above = Interface::new("above0").unwrap().index().unwrap();
            let other = other_program();
            Linux::new().unwrap().attach_xdp(above, other.as_fd(), Hook::Generic, false).unwrap();
            let error = started(&mut port(""));
            assert!(error.contains("here0 has none") && error.contains("above it"), "{error}");
        });
    }

    #[test]
    fn a_busy_kernel_is_asked_again_but_not_for_ever() {
        let mut tries = 0;
        let result = while_busy(BUSY_TRIES, || {
            tries += 1;
            if tries < 3 { Err(Errno::BUSY) } else { Ok(tries) }
        });
        assert_eq!(result, Ok(3));
        let mut tries = 0;
        assert_eq!(
            while_busy(BUSY_TRIES, || -> Result<(), _> {
                tries += 1;
                Err(Errno::BUSY)
            }),
            Err(Errno::BUSY)
        );
        assert_eq!(tries, BUSY_TRIES);
        assert_eq!(while_busy(BUSY_TRIES, || Err::<(), _>(Errno::PERM)), Err(Errno::PERM));
    }
}
