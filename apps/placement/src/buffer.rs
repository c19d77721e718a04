//! The receive buffer of a baseline's UDP socket: it holds as many datagrams as Tailwater's
//! sockets.
//!
//! Owns the number and Linux's charge for each datagram. Linux's default of 212,992 bytes holds
//! about 256 small datagrams, because each is charged the memory of its buffers; a server that
//! works 10 us on each loses requests after a stall of 3 ms, where one with 6,553 places answers
//! all of them late. Such a comparison would measure queues, not systems.

use std::io;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// Datagrams of 25 to 32 bytes that a UDP socket of Tailwater holds by default: 256 KiB, of which
/// each takes 40 bytes.
pub const DATAGRAMS: usize = 6_553;

/// Bytes that Linux charges to a receive buffer for a datagram of up to a few hundred bytes: 832 on
/// Linux 6.18 over loopback (256 fit into 212,992), 768 on some earlier versions.
const CHARGE: usize = 832;

/// Buffer size to request from the kernel, which doubles it, for its own bookkeeping (socket(7)).
pub const BYTES: usize = DATAGRAMS * CHARGE / 2;

/// Gives `socket` room for [`DATAGRAMS`], or for as many as the system's limit
/// (`net.core.rmem_max`) allows if this process may not exceed it (`CAP_NET_ADMIN`). Returns how
/// many small datagrams it holds now.
///
/// # Errors
/// The kernel's error; reaching the limit is not one.
pub fn hold_as_many(socket: impl AsFd) -> io::Result<usize> {
    if sockopt::set_socket_recv_buffer_size_force(&socket, BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BYTES)?;
    }
    Ok(sockopt::socket_recv_buffer_size(&socket)? / CHARGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// Sends `sent` datagrams that are not read meanwhile; returns how many the socket then holds.
    fn held(socket: &UdpSocket, sent: usize) -> usize {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..sent {
            client.send_to(&[0; 32], socket.local_addr().unwrap()).unwrap();
        }
        socket.set_nonblocking(true).unwrap();
        (0..sent).take_while(|_| socket.recv(&mut [0; 32]).is_ok()).count()
    }

    #[test]
    fn a_socket_holds_what_is_said_and_more_than_by_default() {
        let (plain, roomy) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let default = sockopt::socket_recv_buffer_size(&plain).unwrap() / CHARGE;
        let said = hold_as_many(&roomy).unwrap();
        let (before, after) = (held(&plain, 2 * DATAGRAMS), held(&roomy, 2 * DATAGRAMS));
        assert!(said <= DATAGRAMS, "{said}");
        // Kernels charge differently: within a fifth.
        assert!(after.abs_diff(said) <= said / 5, "{after} are held, {said} said");
        if said < DATAGRAMS {
            println!("skipped in part: this process may not exceed net.core.rmem_max, {said} datagrams");
        } else if default > DATAGRAMS / 10 {
            println!("skipped in part: net.core.rmem_default is raised, to {default} datagrams");
        } else {
            assert!(after > 5 * before, "{before} without, {after} with it");
        }
    }
}
