//! Linux TAP devices: making one, and configuring its interface (netdevice(7), the kernel's tuntap.rst).

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::last_error;

/// Longest interface name in bytes.
pub(crate) const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// Opens a TAP device by name, making it if there is none; frames carry no packet information header. Non-blocking.
///
/// # Errors
/// [`Errno::PERM`] without `CAP_NET_ADMIN` (unless the device exists and belongs to this user), [`Errno::NOENT`] without the
/// tun driver, [`Errno::BUSY`] when another program has it, [`Errno::INVAL`] for an impossible name or a device of another
/// kind.
pub(crate) fn open_tap(name: &str) -> Result<OwnedFd, Errno> {
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    ioctl(&fd, libc::TUNSETIFF, &mut request)?;
    Ok(fd)
}

/// A network interface by name.
pub(crate) struct Interface {
    socket: OwnedFd,
    name: String,
}

impl Interface {
    /// # Errors
    /// When the kernel has no descriptor left.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, name: name.to_owned() })
    }

    /// Sets address, prefix and MTU, and brings the interface up.
    ///
    /// # Errors
    /// [`Errno::PERM`] without `CAP_NET_ADMIN`, or what else the kernel says.
    pub(crate) fn configure(&self, ip: Ipv4Addr, prefix_len: u8, mtu: u16) -> Result<(), Errno> {
        let mut change = request(&self.name)?;
        change.ifr_ifru.ifru_addr = address(ip);
        ioctl(&self.socket, libc::SIOCSIFADDR, &mut change)?;
        let mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0));
        change.ifr_ifru.ifru_addr = address(mask);
        ioctl(&self.socket, libc::SIOCSIFNETMASK, &mut change)?;
        change.ifr_ifru.ifru_mtu = mtu.into();
        ioctl(&self.socket, libc::SIOCSIFMTU, &mut change)?;
        let flags = self.flags()? | (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        change.ifr_ifru.ifru_flags = flags;
        ioctl(&self.socket, libc::SIOCSIFFLAGS, &mut change)
    }

    /// Adds an IPv6 address; one that is there already stays.
    ///
    /// # Errors
    /// [`Errno::PERM`] without `CAP_NET_ADMIN`, [`Errno::AFNOSUPPORT`] or [`Errno::ACCESS`] where IPv6 is switched off, or what else
    /// the kernel says.
    pub(crate) fn add_ip6(&self, ip: Ipv6Addr, prefix_len: u8) -> Result<(), Errno> {
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
        match if result == 0 { Ok(()) } else { Err(last_error()) } {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    fn flags(&self) -> Result<libc::c_short, Errno> {
        let mut query = request(&self.name)?;
        ioctl(&self.socket, libc::SIOCGIFFLAGS, &mut query)?;
        // SAFETY: SIOCGIFFLAGS filled this member of the union; any bit pattern is a short.
        Ok(unsafe { query.ifr_ifru.ifru_flags })
    }

    /// Whether somebody has brought it up and given it this address already.
    pub(crate) fn is_configured(&self, ip: Ipv4Addr) -> bool {
        let Ok(mut query) = request(&self.name) else { return false };
        if ioctl(&self.socket, libc::SIOCGIFADDR, &mut query).is_err() {
            return false;
        }
        // SAFETY: SIOCGIFADDR filled this member of the union with an AF_INET address; any bytes are a sockaddr.
        let bytes = unsafe { query.ifr_ifru.ifru_addr }.sa_data;
        let found = Ipv4Addr::from_octets([2, 3, 4, 5].map(|i: usize| bytes[i] as u8));
        found == ip && self.flags().is_ok_and(|flags| flags & libc::IFF_UP as libc::c_short != 0)
    }
}

/// A request about the interface named `name`.
fn request(name: &str) -> Result<libc::ifreq, Errno> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(['/', '\0', ' ']) {
        return Err(Errno::INVAL);
    }
    // SAFETY: an all-zero ifreq is a valid one: integers and unions of integers.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// A socket address of family AF_INET: two bytes of port, then the address.
fn address(ip: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0 as libc::c_char; 14];
    for (to, from) in data[2..6].iter_mut().zip(ip.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

fn ioctl(fd: &OwnedFd, number: libc::Ioctl, request: &mut libc::ifreq) -> Result<(), Errno> {
    // SAFETY: all requests of this module take a pointer to an ifreq, which is valid for reading and writing.
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
        // In a fresh network namespace it may be down; its flags can be read in any case.
        let up = lo.flags().unwrap() & libc::IFF_UP as libc::c_short != 0;
        assert_eq!(lo.is_configured(Ipv4Addr::LOCALHOST), up);
        assert!(!lo.is_configured(Ipv4Addr::new(127, 9, 9, 9)));
        assert!(!Interface::new("no-such-if").unwrap().is_configured(Ipv4Addr::LOCALHOST));
    }
}
