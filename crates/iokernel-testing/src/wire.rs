//! Frames for tests and benchmarks: minimal Ethernet/IPv4/UDP, built and answered in place, and ARP
//! for their sender.

use std::net::Ipv4Addr;
use tailwater_wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4};
use tailwater_wire::{MacAddr, checksum};

/// Length of Ethernet, IPv4 and UDP headers.
pub const UDP_HEADERS: usize = 42;

/// One end of a UDP flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// MAC address.
    pub mac: MacAddr,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// UDP port.
    pub port: u16,
}

/// Returns a UDP frame with this payload, IPv4 checksum included, UDP checksum zero (none, RFC
/// 768).
///
/// # Panics
/// If the payload does not fit an IPv4 packet.
pub fn udp(from: Endpoint, to: Endpoint, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + 8 + payload.len()).expect("the payload fits an IPv4 packet");
    let mut frame = Vec::with_capacity(UDP_HEADERS + payload.len());
    frame.extend(to.mac.0);
    frame.extend(from.mac.0);
    frame.extend(ETHERTYPE_IPV4.to_be_bytes());
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(from.ip.octets());
    frame.extend(to.ip.octets());
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend(from.port.to_be_bytes());
    frame.extend(to.port.to_be_bytes());
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// Returns the ARP request (RFC 826) of `from` for `to`, which learns from it the address for its
/// answers.
pub fn arp_request(from: Endpoint, to: Endpoint) -> Vec<u8> {
    let mut frame = Vec::with_capacity(UDP_HEADERS);
    frame.extend([0xff; 6]);
    frame.extend(from.mac.0);
    frame.extend(ETHERTYPE_ARP.to_be_bytes());
    // Ethernet and IPv4 addresses, their lengths, a request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(from.mac.0);
    frame.extend(from.ip.octets());
    frame.extend([0; 6]);
    frame.extend(to.ip.octets());
    frame
}

/// Returns the ARP reply of `own` to `frame`, if that is a request for it.
pub fn answer_arp(frame: &[u8], own: Endpoint) -> Option<Vec<u8>> {
    let mut reply = frame.get(..UDP_HEADERS)?.to_vec();
    // Ethernet and IPv4 addresses, their lengths, a request.
    let asks = frame[12..14] == ETHERTYPE_ARP.to_be_bytes() && frame[14..22] == [0, 1, 8, 0, 6, 4, 0, 1];
    if !asks || frame[38..42] != own.ip.octets() {
        return None;
    }
    reply[..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&own.mac.0);
    reply[21] = 2;
    reply[22..28].copy_from_slice(&own.mac.0);
    reply[28..32].copy_from_slice(&own.ip.octets());
    reply[32..42].copy_from_slice(&frame[22..32]);
    Some(reply)
}

/// Swaps addresses and ports of a UDP frame; returns false if it is not one.
pub fn turn_around(frame: &mut [u8]) -> bool {
    if frame.len() < UDP_HEADERS || frame[12..14] != ETHERTYPE_IPV4.to_be_bytes() || frame[23] != 17 {
        return false;
    }
    swap(frame, 0, 6, 6);
    swap(frame, 26, 30, 4);
    swap(frame, 34, 36, 2);
    true
}

fn swap(frame: &mut [u8], a: usize, b: usize, len: usize) {
    for i in 0..len {
        frame.swap(a + i, b + i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_for_answers_and_nobody_else() {
        let end =
            |n: u8| Endpoint { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: Ipv4Addr::new(10, 77, 0, n), port: 0 };
        let request = arp_request(end(1), end(2));
        let reply = answer_arp(&request, end(2)).expect("the request is for it");
        assert_eq!((&reply[..6], &reply[6..12]), (&end(1).mac.0[..], &end(2).mac.0[..]));
        assert_eq!(reply[14..22], [0, 1, 8, 0, 6, 4, 0, 2]);
        assert_eq!((&reply[22..28], &reply[28..32]), (&end(2).mac.0[..], &end(2).ip.octets()[..]));
        assert_eq!((&reply[32..38], &reply[38..42]), (&end(1).mac.0[..], &end(1).ip.octets()[..]));
        for (frame, own) in [(&request[..], end(3)), (&reply, end(1)), (&request[..41], end(2))] {
            assert_eq!(answer_arp(frame, own), None);
        }
    }

    #[test]
    fn a_frame_turned_around_twice_is_itself_and_its_checksum_holds() {
        let end = |n: u8| Endpoint {
            mac: MacAddr([2, 0, 0, 0, 0, n]),
            ip: Ipv4Addr::new(10, 77, 0, n),
            port: 1000 + u16::from(n),
        };
        let frame = udp(end(1), end(2), b"payload");
        assert_eq!(checksum(&frame[14..34]), 0);
        let mut other = frame.clone();
        assert!(turn_around(&mut other));
        assert_eq!(other, udp(end(2), end(1), b"payload"));
        assert!(turn_around(&mut other));
        assert_eq!(other, frame);
        assert!(!turn_around(&mut [0; 42]));
    }
}
