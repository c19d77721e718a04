//! Frames of hosts that have the MAC addresses which follow from their IPv4 addresses, without
//! checksums; and frames of any two hosts, with headers that a test chooses.

use std::net::Ipv4Addr;

/// Returns the MAC address that a program at `ip` has.
fn mac(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x74, a, b, c, d]
}

/// Returns a minimal UDP frame of `len` bytes.
///
/// # Panics
/// If `len` has no room for the headers, 42 bytes.
pub fn udp(from: Ipv4Addr, to: Ipv4Addr, ports: (u16, u16), len: usize) -> Vec<u8> {
    let mut f = vec![0; len];
    f[..6].copy_from_slice(&mac(to));
    f[6..12].copy_from_slice(&mac(from));
    f[12..14].copy_from_slice(&[8, 0]);
    f[14] = 0x45;
    f[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    f[22] = 64;
    f[23] = 17;
    f[26..30].copy_from_slice(&from.octets());
    f[30..34].copy_from_slice(&to.octets());
    f[34..36].copy_from_slice(&ports.0.to_be_bytes());
    f[36..38].copy_from_slice(&ports.1.to_be_bytes());
    f[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
    f
}

/// Returns an ARP request.
pub fn arp(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut f = vec![0; 42];
    f[..6].fill(0xff);
    f[6..12].copy_from_slice(&mac(from));
    f[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    f[22..28].copy_from_slice(&mac(from));
    f[28..32].copy_from_slice(&from.octets());
    f[38..42].copy_from_slice(&to.octets());
    f
}

/// Returns an IPv4 frame with these options, a multiple of four bytes.
pub fn ipv4(source: u32, destination: u32, protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x40 | (5 + options.len() as u8 / 4), 0]);
    frame.extend(((20 + options.len() + payload.len()) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend(destination.to_be_bytes());
    frame.extend(options);
    frame.extend(payload);
    frame
}

/// Returns an IPv6 frame with this chain: the number of the first header, then the bytes after the
/// fixed header.
pub fn ipv6(source: u128, destination: u128, first: u8, hop_limit: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend((rest.len() as u16).to_be_bytes());
    frame.extend([first, hop_limit]);
    frame.extend(source.to_be_bytes());
    frame.extend(destination.to_be_bytes());
    frame.extend(rest);
    frame
}

/// Returns an IPv6 fragment header.
pub fn fragment(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let [a, b] = (offset << 3 | u16::from(more)).to_be_bytes();
    [next, 0, a, b, 0, 0, 0, 9]
}
