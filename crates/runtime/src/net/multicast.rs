//! Groups of hosts that a UDP socket receives from and sends to: the methods of `std` for them.

use super::error::IntoIo;
use super::udp::UdpSocket;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::Ordering::Relaxed;
use std::io;

/// Groups of hosts.
impl UdpSocket {
    /// Receives what is sent to an IPv4 group, too. `interface` is the unspecified address or the
    /// program's own: there is one link.
    ///
    /// The socket is bound to the unspecified address and connected to no peer. It receives from
    /// the groups that it has joined itself, whatever other sockets have joined (on Linux, with
    /// `IP_MULTICAST_ALL` off). No membership reports are sent: where a switch or router of the
    /// network needs them to pass a group on, it has to be configured.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for an address that is no group's, or a socket
    /// bound to one address; [`AddrInUse`](io::ErrorKind::AddrInUse) if it is in the group;
    /// [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) beyond 20 groups;
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) for another interface.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::net::Ipv4Addr;
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let group = Ipv4Addr::new(239, 1, 2, 3);
    ///     let member = UdpSocket::bind("0.0.0.0:7").unwrap();
    ///     member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).unwrap();
    ///     let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     sender.send_to(b"to all", (group, 7)).unwrap();
    ///     assert_eq!(member.recv(&mut [0; 100]).unwrap(), 6);
    /// }
    /// ```
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(interface)?;
        self.join((*group).into())
    }

    /// Leaves an IPv4 group.
    ///
    /// # Errors
    /// [`AddrNotAvailable`](io::ErrorKind::AddrNotAvailable) if the socket is not in it, or for
    /// another interface.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::net::Ipv4Addr;
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let (group, any) = (Ipv4Addr::new(239, 1, 2, 3), Ipv4Addr::UNSPECIFIED);
    ///     let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     socket.join_multicast_v4(&group, &any).unwrap();
    ///     socket.leave_multicast_v4(&group, &any).unwrap();
    ///     assert!(socket.leave_multicast_v4(&group, &any).is_err());
    /// }
    /// ```
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.check_interface(interface)?;
        self.leave((*group).into())
    }

    /// As [`join_multicast_v4`](Self::join_multicast_v4), for an IPv6 group. The index of the
    /// interface is ignored.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("[::]:0").unwrap();
    ///     let group = "ff02::fb".parse().unwrap();
    ///     socket.join_multicast_v6(&group, 0).unwrap();
    ///     socket.leave_multicast_v6(&group, 0).unwrap();
    /// }
    /// ```
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, _interface: u32) -> io::Result<()> {
        self.join((*group).into())
    }

    /// Leaves an IPv6 group.
    ///
    /// # Errors
    /// As [`leave_multicast_v4`](Self::leave_multicast_v4).
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, _interface: u32) -> io::Result<()> {
        self.leave((*group).into())
    }

    fn join(&self, group: IpAddr) -> io::Result<()> {
        self.shared.stack.join_udp(self.shared.endpoint, group).map_err(IntoIo::into_io)
    }

    fn leave(&self, group: IpAddr) -> io::Result<()> {
        self.shared.stack.leave_udp(self.shared.endpoint, group).map_err(IntoIo::into_io)
    }

    fn check_interface(&self, interface: &Ipv4Addr) -> io::Result<()> {
        if interface.is_unspecified() || *interface == self.shared.stack.ip() {
            return Ok(());
        }
        let why = format!("{interface} is not the address of this runtime: use 0.0.0.0");
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why))
    }

    /// Sets the time to live of datagrams that are sent to IPv4 groups, 0 to 255: 1 unless set,
    /// which stays on the link; with 0 they stay on this host.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) above that range.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     assert_eq!(socket.multicast_ttl_v4().unwrap(), 1);
    ///     socket.set_multicast_ttl_v4(8).unwrap();
    ///     assert_eq!(socket.multicast_ttl_v4().unwrap(), 8);
    /// }
    /// ```
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        let ttl = u8::try_from(ttl).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.shared.endpoint.multicast_ttl.store(ttl, Relaxed);
        Ok(())
    }

    /// Returns the time to live of datagrams that are sent to IPv4 groups.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        Ok(self.shared.endpoint.multicast_ttl.load(Relaxed).into())
    }

    /// Sets whether datagrams that are sent to groups reach sockets of this host, as they do unless
    /// set.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::net::UdpSocket;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    ///     socket.set_multicast_loop_v4(false).unwrap();
    ///     assert!(!socket.multicast_loop_v4().unwrap());
    /// }
    /// ```
    pub fn set_multicast_loop_v4(&self, looped: bool) -> io::Result<()> {
        self.shared.endpoint.multicast_loop.store(looped, Relaxed);
        Ok(())
    }

    /// Returns whether datagrams that are sent to groups reach sockets of this host.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.shared.endpoint.multicast_loop.load(Relaxed))
    }

    /// As [`set_multicast_loop_v4`](Self::set_multicast_loop_v4); one setting is for both families.
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn set_multicast_loop_v6(&self, looped: bool) -> io::Result<()> {
        self.set_multicast_loop_v4(looped)
    }

    /// As [`multicast_loop_v4`](Self::multicast_loop_v4).
    ///
    /// # Errors
    /// None; the result is `std`'s.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.multicast_loop_v4()
    }
}
