//! Parameters of the stack's TCP: secrets, and the window of peers on this machine.

use std::fs::File;
use std::io::{self, Read};
use tailwater_net::tcp::Secrets;
use tailwater_shm::ring::{LINE, RECORD_HEADER};
use tailwater_tcp::Secret;
use tailwater_wire::{ETHERNET_HEADER, IPV4_HEADER, TCP_HEADER};

/// Returns the data bytes of as many full segments of packets of `mtu` bytes as fill three quarters
/// of a ring of `ring_bytes`; at least two segments. The last quarter is for other connections, and
/// for acknowledgments in the other direction.
///
/// A peer on this machine fills the offered window within microseconds, and while the receiver has
/// no core all of it lies in the ring: the excess of a larger window would be dropped there, each
/// time the congestion window has grown beyond the ring. Over a network the path holds a window's
/// data, and the ring only a small part of it. Called before the configuration is checked: an
/// invalid `mtu` gives zero.
pub fn window_of_ring(ring_bytes: u32, mtu: u16) -> u32 {
    let frame = ETHERNET_HEADER + usize::from(mtu) + RECORD_HEADER;
    let frames = ring_bytes / 4 * 3 / (frame.next_multiple_of(LINE) as u32);
    frames.max(2) * u32::from(mtu).saturating_sub((IPV4_HEADER + TCP_HEADER) as u32)
}

/// Returns secrets from the operating system.
pub fn secrets() -> Secrets {
    Secrets { numbers: random_secret(), ports: random_secret() }
}

fn random_secret() -> Secret {
    let mut secret = [0; 16];
    // SAFETY: `secret` is writable for the number of bytes requested.
    let got = unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) };
    // Up to 256 bytes are returned in full and without interruption once the system has booted
    // (getrandom(2)); a filter of system calls may refuse them (seccomp(2)).
    if got != 16 {
        let refused = io::Error::last_os_error();
        let device = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut secret));
        if let Err(error) = device {
            panic!(
                "tailwater: no random numbers for TCP: getrandom(2): {refused}, /dev/urandom: {error}; allow the call in \
                 the seccomp filter of the container or the unit (SystemCallFilter=getrandom)"
            );
        }
    }
    Secret(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fits_the_ring_that_it_was_made_for() {
        for (ring, mtu) in [(256 << 10, 1500u16), (32 << 10, 1500), (256 << 10, 9000), (1 << 20, 576)] {
            let window = window_of_ring(ring, mtu);
            let data = u32::from(mtu) - (IPV4_HEADER + TCP_HEADER) as u32;
            let frame = (ETHERNET_HEADER + usize::from(mtu) + RECORD_HEADER).next_multiple_of(LINE) as u32;
            assert!(window.div_ceil(data) * frame <= ring, "{window} bytes do not fit {ring}");
            assert!(window >= ring / 2, "{window} bytes leave {ring} empty");
        }
        assert_eq!(window_of_ring(256 << 10, 20), 0, "an impossible MTU");
    }

    #[test]
    fn waiters_and_a_handle_add_less_than_the_stack_leaves_for_them() {
        let stack = size_of::<tailwater_net::tcp::Socket<tailwater_net::Single>>();
        let extra =
            size_of::<super::super::Socket>().saturating_sub(stack) + size_of::<crate::net::TcpStream>();
        assert!(extra <= 96, "{extra} bytes: the stack's test of an idle connection leaves 96");
    }
}
