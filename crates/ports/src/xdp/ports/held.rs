//! Ports that are held from Linux: by a socket that is bound at the interface's own addresses, and
//! neither listens nor reads.
//!
//! Owns these sockets. No frame for such a port reaches Linux from the wire; what programs of this
//! machine send there by Linux does, and is refused (TCP) or dropped.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::net::{IpAddr, SocketAddr};
use tailwater_host::{is_port_used, port_users};
use tailwater_shm::control::{Listen, Transport};

/// Sockets at a port, one for each own address; closed on drop.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<OwnedFd>);

impl Held {
    /// Holds a port at these addresses.
    ///
    /// # Errors
    /// That of the first address at which it cannot be held.
    pub(super) fn new(listen: Listen, ips: impl IntoIterator<Item = IpAddr>) -> Result<Self, Unheld> {
        let bound = |ip: IpAddr| bind(listen.transport, SocketAddr::new(ip, listen.port));
        let sockets = ips.into_iter().map(|ip| bound(ip).map_err(|error| Unheld { listen, ip, error }));
        sockets.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn is_held(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A port that cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unheld {
    pub(super) listen: Listen,
    pub(super) ip: IpAddr,
    pub(super) error: Errno,
}

impl Unheld {
    /// Returns why, with the program that has the port, if one is found, and what to do. Reads the
    /// descriptors of all processes.
    pub(super) fn explain(&self) -> String {
        let Self { listen, ip, error } = self;
        let users = port_users(&listen.transport.to_string(), &(listen.port..=listen.port)).join(", ");
        match *error {
            Errno::ADDRINUSE if users.is_empty() => {
                format!(
                    "Linux uses {listen} at {ip}: a connection there has not ended yet; try again in a minute"
                )
            }
            Errno::ADDRINUSE => {
                format!("Linux has {users}: end that program, or let it use another address or port")
            }
            error => format!("{listen} at {ip} cannot be held from Linux: {error}"),
        }
    }
}

fn bind(transport: Transport, address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (kind, protocol) = match transport {
        Transport::Tcp => (SocketType::STREAM, ipproto::TCP),
        Transport::Udp => (SocketType::DGRAM, ipproto::UDP),
    };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol))?;
    if !address.is_ipv4() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if transport == Transport::Udp {
        // What Linux delivers there is read by no one.
        sockopt::set_socket_recv_buffer_size(&socket, 0)?;
        net::bind(&socket, &address)?;
        return Ok(socket);
    }
    // Connections of an earlier server in TIME-WAIT are no hindrance. Without the option after
    // that, no other program binds to the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &address)?;
    sockopt::set_socket_reuseaddr(&socket, false)?;
    // Those that live on without their server are: their frames would be the program's.
    if is_port_used("tcp", address.ip(), address.port()) {
        return Err(Errno::ADDRINUSE);
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use tailwater_testkit::namespace::in_namespace;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const TCP: Listen = Listen { transport: Transport::Tcp, port: 7 };
    const UDP: Listen = Listen { transport: Transport::Udp, port: 8 };

    #[test]
    fn a_held_port_is_no_other_programs_and_one_that_is_taken_is_refused_with_who_has_it() {
        // There no other test has these ports.
        in_namespace(|| {
            let listener = TcpListener::bind((HERE, TCP.port)).unwrap();
            let why = Held::new(TCP, [HERE]).err().unwrap().explain();
            assert!(why.contains(&format!("{TCP} of ")), "{why}");
            assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
            drop(listener);
            let held = Held::new(TCP, [HERE]).unwrap();
            assert!(held.is_held() && TcpListener::bind((HERE, TCP.port)).is_err());
            drop(held);
            assert!(TcpListener::bind((HERE, TCP.port)).is_ok());
            let socket = UdpSocket::bind((HERE, UDP.port)).unwrap();
            assert!(Held::new(UDP, [HERE]).is_err());
            drop(socket);
            let _held = Held::new(UDP, [HERE]).unwrap();
            assert!(UdpSocket::bind((HERE, UDP.port)).is_err());
        });
    }

    #[test]
    fn connections_that_live_on_without_their_server_keep_its_port() {
        in_namespace(|| {
            let listener = TcpListener::bind((HERE, TCP.port)).unwrap();
            let client = TcpStream::connect((HERE, TCP.port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop(listener);
            let why = Held::new(TCP, [HERE]).err().unwrap().explain();
            assert!(why.contains(&format!("process {}", std::process::id())), "{why}");
            // The port is free at another address.
            assert!(Held::new(TCP, [IpAddr::from([127, 0, 0, 2])]).is_ok());
            // Its end waits in TIME-WAIT.
            drop((server, client));
            Held::new(TCP, [HERE]).unwrap();
        });
    }
}
