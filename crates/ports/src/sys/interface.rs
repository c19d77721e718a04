//! Network interfaces: reading their properties and configuring them (netdevice(7), packet(7)).

use core::ffi::{c_char, c_int, c_short, c_void};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, netdevice, socket_with};
use std::net::{Ipv4Addr, Ipv6Addr};
use tailwater_shm::last_error;
use tailwater_wire::MacAddr;

/// Maximum length of an interface name in bytes.
pub(crate) const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// `ETHTOOL_GCHANNELS` (linux/ethtool.h): reads the number of queues of a device.
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `ETHTOOL_GDRVINFO` (linux/ethtool.h): reads the name of the driver.
const ETHTOOL_GDRVINFO: u32 = 0x03;

/// `ETHTOOL_GRXCSUM`, `ETHTOOL_GFLAGS` (linux/ethtool.h): read offloads.
const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GFLAGS: u32 = 0x25;

/// Channels of an interface: a receive queue, or one with a transmit queue (combined).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues alone at most,
    pub max_receive: u32,
    /// and pairs.
    pub max_combined: u32,
    /// Receive queues alone in use,
    pub receive: u32,
    /// and pairs.
    pub combined: u32,
}

/// A network interface by name.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    name: String,
}

impl Interface {
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, name: name.to_owned() })
    }

    /// Sets address, prefix and MTU, and brings the interface up.
    ///
    /// # Errors
    /// [`Errno::PERM`] without `CAP_NET_ADMIN`, or another error of the kernel.
    pub(crate) fn configure(&self, ip: Ipv4Addr, prefix_len: u8, mtu: u16) -> Result<(), Errno> {
        let mut change = request(&self.name)?;
        change.ifr_ifru.ifru_addr = address(ip);
        ioctl(&self.socket, libc::SIOCSIFADDR, &mut change)?;
        let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0));
        change.ifr_ifru.ifru_addr = address(mask);
        ioctl(&self.socket, libc::SIOCSIFNETMASK, &mut change)?;
        change.ifr_ifru.ifru_mtu = mtu.into();
        ioctl(&self.socket, libc::SIOCSIFMTU, &mut change)?;
        let flags = self.flags()? | (libc::IFF_UP | libc::IFF_RUNNING) as c_short;
        change.ifr_ifru.ifru_flags = flags;
        ioctl(&self.socket, libc::SIOCSIFFLAGS, &mut change)
    }

    /// Adds an IPv6 address; returns false if it is there already.
    ///
    /// # Errors
    /// [`Errno::PERM`] without `CAP_NET_ADMIN`, [`Errno::AFNOSUPPORT`] or [`Errno::ACCESS`] if IPv6
    /// is disabled, or another error of the kernel.
    pub(crate) fn add_ip6(&self, ip: Ipv6Addr, prefix_len: u8) -> Result<bool, Errno> {
        let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFINDEX, &mut query)?;
        let change = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr { s6_addr: ip.octets() },
            ifr6_prefixlen: prefix_len.into(),
            // SAFETY: SIOCGIFINDEX filled this member of the union; any bit pattern is an integer.
            ifr6_ifindex: unsafe { query.ifr_ifru.ifru_ifindex },
        };
        // SAFETY: on an IPv6 socket this request reads an in6_ifreq, which lives across the call.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw const change) };
        match if result == 0 { Ok(true) } else { Err(last_error()) } {
            Err(Errno::EXIST) => Ok(false),
            other => other,
        }
    }

    /// Returns the interface's index.
    ///
    /// # Errors
    /// [`Errno::NODEV`] if there is no interface of this name in this network namespace.
    pub(crate) fn index(&self) -> Result<u32, Errno> {
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFINDEX, &mut query)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union; any bit pattern is an int.
        Ok(unsafe { query.ifr_ifru.ifru_ifindex } as u32)
    }

    /// Returns the name of the interface with this index in the network namespace of this one.
    pub(crate) fn name_of(&self, index: u32) -> Option<String> {
        netdevice::index_to_name(&self.socket, index).ok()
    }

    /// Returns the interface's MAC address.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::NODEV`] if the interface is gone.
    pub(crate) fn mac(&self) -> Result<MacAddr, Errno> {
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFHWADDR, &mut query)?;
        // SAFETY: SIOCGIFHWADDR filled this member of the union; any bytes are a sockaddr.
        let bytes = unsafe { query.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(MacAddr([0, 1, 2, 3, 4, 5].map(|i: usize| bytes[i] as u8)))
    }

    /// Gives the interface another MAC address.
    ///
    /// # Errors
    /// [`Errno::PERM`] without `CAP_NET_ADMIN`, or another error of the kernel.
    pub(crate) fn set_mac(&self, mac: MacAddr) -> Result<(), Errno> {
        let mut change = request(&self.name)?;
        let mut sa_data = [0; 14];
        sa_data[..6].copy_from_slice(&mac.0.map(|byte| byte as c_char));
        change.ifr_ifru.ifru_hwaddr = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data };
        ioctl(&self.socket, libc::SIOCSIFHWADDR, &mut change)
    }

    /// Returns the maximum length of an IP packet on the interface, in bytes.
    ///
    /// # Errors
    /// The kernel's error; [`Errno::NODEV`] if the interface is gone.
    pub(crate) fn mtu(&self) -> Result<u32, Errno> {
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFMTU, &mut query)?;
        // SAFETY: SIOCGIFMTU filled this member of the union; any bit pattern is an int.
        Ok(unsafe { query.ifr_ifru.ifru_mtu } as u32)
    }

    /// Returns the interface's IPv4 address, if Linux has given it one.
    pub(crate) fn ip(&self) -> Option<Ipv4Addr> {
        let mut query = request(&self.name).ok()?;
        ioctl(&self.socket, libc::SIOCGIFADDR, &mut query).ok()?;
        // SAFETY: SIOCGIFADDR filled this member of the union with an AF_INET address; any bytes
        // are a sockaddr.
        let bytes = unsafe { query.ifr_ifru.ifru_addr }.sa_data;
        Some(Ipv4Addr::from_octets([2, 3, 4, 5].map(|i: usize| bytes[i] as u8)))
    }

    /// Returns whether the interface is up.
    pub(crate) fn is_up(&self) -> bool {
        self.flags().is_ok_and(|flags| flags & libc::IFF_UP as c_short != 0)
    }

    /// Returns the number of receive queues; 1 if the driver does not report it.
    pub(crate) fn receive_queues(&self) -> u32 {
        self.channels().map_or(1, |channels| (channels.receive + channels.combined).max(1))
    }

    /// Returns the channels, if the driver reports them.
    pub(crate) fn channels(&self) -> Option<Channels> {
        /// `struct ethtool_channels` (linux/ethtool.h).
        #[repr(C)]
        #[derive(Default)]
        struct Numbers {
            cmd: u32,
            max_receive: u32,
            max_transmit: u32,
            max_other: u32,
            max_combined: u32,
            receive: u32,
            transmit: u32,
            other: u32,
            combined: u32,
        }
        let mut numbers = Numbers { cmd: ETHTOOL_GCHANNELS, ..Numbers::default() };
        let mut query = request(&self.name).ok()?;
        query.ifr_ifru.ifru_data = (&raw mut numbers).cast::<c_char>();
        ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut query).ok()?;
        let Numbers { max_receive, max_combined, receive, combined, .. } = numbers;
        Some(Channels { max_receive, max_combined, receive, combined })
    }

    /// Returns whether the interface joins received segments into long ones; `None` if that is
    /// unknown.
    pub(crate) fn joins_received(&self) -> Option<bool> {
        /// `ETH_FLAG_LRO` (linux/ethtool.h).
        const LRO: u32 = 1 << 15;
        Some(self.value(ETHTOOL_GFLAGS)? & LRO != 0)
    }

    /// Returns whether the interface takes the VLAN tags off received frames, which only Linux sees
    /// then; `None` if that is unknown.
    pub(crate) fn strips_tags(&self) -> Option<bool> {
        /// `ETH_FLAG_RXVLAN` (linux/ethtool.h).
        const RXVLAN: u32 = 1 << 8;
        Some(self.value(ETHTOOL_GFLAGS)? & RXVLAN != 0)
    }

    /// Returns whether the interface checks checksums of received frames; `None` if that is
    /// unknown.
    pub(crate) fn checks_received(&self) -> Option<bool> {
        Some(self.value(ETHTOOL_GRXCSUM)? != 0)
    }

    /// Returns the answer to an ethtool command that is one number.
    pub(super) fn value(&self, command: u32) -> Option<u32> {
        /// `struct ethtool_value` (linux/ethtool.h).
        #[repr(C)]
        struct Value {
            cmd: u32,
            data: u32,
        }
        let mut value = Value { cmd: command, data: 0 };
        let mut query = request(&self.name).ok()?;
        query.ifr_ifru.ifru_data = (&raw mut value).cast::<c_char>();
        ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut query).ok()?;
        Some(value.data)
    }

    /// Returns whether this is an end of a veth pair: the other one is on this machine, too.
    pub(crate) fn is_veth(&self) -> bool {
        self.driver() == "veth"
    }

    /// Returns the name of the driver; empty if there is none, or it is unknown.
    pub(crate) fn driver(&self) -> String {
        /// `struct ethtool_drvinfo` (linux/ethtool.h).
        #[repr(C)]
        struct Info {
            cmd: u32,
            driver: [u8; 32],
            /// Versions and the place on the bus.
            others: [u8; 4 * 32 + 12],
            lengths: [u32; 5],
        }
        let others = [0; 4 * 32 + 12];
        let mut info = Info { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], others, lengths: [0; 5] };
        let Ok(mut query) = request(&self.name) else { return String::new() };
        query.ifr_ifru.ifru_data = (&raw mut info).cast::<c_char>();
        // A refusal leaves the name empty.
        let _ = ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut query);
        let name = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    fn flags(&self) -> Result<c_short, Errno> {
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFFLAGS, &mut query)?;
        // SAFETY: SIOCGIFFLAGS filled this member of the union; any bit pattern is a short.
        Ok(unsafe { query.ifr_ifru.ifru_flags })
    }

    /// Returns whether the interface is up and has this address already.
    pub(crate) fn is_configured(&self, ip: Ipv4Addr) -> bool {
        self.ip() == Some(ip) && self.is_up()
    }
}

/// Frames that an interface accepts beside those for its own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepts {
    /// All frames.
    Everything,
    /// Those to groups.
    Groups,
}

/// Makes an interface accept frames until the result is dropped.
///
/// # Errors
/// [`Errno::PERM`] without `CAP_NET_RAW`, [`Errno::NODEV`] if there is no such interface.
pub(crate) fn accept(index: u32, what: Accepts) -> Result<OwnedFd, Errno> {
    let mr_type = match what {
        Accepts::Everything => libc::PACKET_MR_PROMISC,
        Accepts::Groups => libc::PACKET_MR_ALLMULTI,
    };
    // Protocol 0: the socket receives nothing.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None::<Protocol>)?;
    let request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: mr_type as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the option takes a packet_mreq, which is passed with its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast::<c_void>(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(socket) } else { Err(last_error()) }
}

/// Returns a request about the interface named `name`.
pub(super) fn request(name: &str) -> Result<libc::ifreq, Errno> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(['/', '\0', ' ']) {
        return Err(Errno::INVAL);
    }
    // SAFETY: an all-zero ifreq is a valid one: integers and unions of integers.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Ok(request)
}

/// Returns a socket address of family AF_INET: two bytes of port, then the address.
fn address(ip: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0 as c_char; 14];
    for (to, from) in data[2..6].iter_mut().zip(ip.octets()) {
        *to = from as c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

pub(super) fn ioctl(fd: &OwnedFd, number: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: all requests of these modules take a pointer to an ifreq, which is valid for reading
    // and writing; what SIOCETHTOOL's points to in turn outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number, core::ptr::from_mut(request)) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_are_refused_before_the_kernel_sees_them() {
        for name in ["", "a/b", "a b", "sixteen-bytes-xx"] {
            assert_eq!(request(name).err(), Some(Errno::INVAL), "{name:?}");
        }
        assert!(request("fifteen-bytes-x").is_ok());
    }

    #[test]
    fn the_loopback_interface_is_configured_and_others_are_not() {
        let lo = Interface::new("lo").unwrap();
        // In a fresh network namespace the interface may be down; its flags can be read in any
        // case.
        let up = lo.is_up();
        assert_eq!(lo.is_configured(Ipv4Addr::LOCALHOST), up);
        assert!(!lo.is_configured(Ipv4Addr::new(127, 9, 9, 9)));
        assert!(!Interface::new("no-such-if").unwrap().is_configured(Ipv4Addr::LOCALHOST));
        assert_eq!(Interface::new("no-such-if").unwrap().driver(), "");
    }
}
