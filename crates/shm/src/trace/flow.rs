//! Matches a frame with its answer: a key of a frame's flow, and one of the reverse direction.
//!
//! Pure functions of bytes. A frame with data of UDP or TCP over IPv4 or IPv6 has a key; fragments
//! other than the first, extension headers and truncated frames have none. Keys are 64 bits mixed
//! from addresses, ports and protocol: two flows are confused with probability 2^-64.

/// Keys of a frame's own flow and of the frames that answer it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowKeys {
    /// Key of the frame itself.
    pub there: u64,
    /// Key of a frame from its receiver to its sender.
    pub back: u64,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl FlowKeys {
    /// Returns the keys of an Ethernet frame that carries data; `None` if it carries none or is of
    /// another protocol.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let ethertype = u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]);
        let packet = frame.get(14..)?;
        let (protocol, source, destination, transport) = match ethertype {
            0x0800 => ipv4(packet)?,
            0x86dd => ipv6(packet)?,
            _ => return None,
        };
        let header = match protocol {
            UDP => 8,
            // Data offset: RFC 9293 section 3.1.
            TCP => usize::from(*transport.get(12)? >> 4) * 4,
            _ => return None,
        };
        if header < 8 || transport.len() <= header {
            return None;
        }
        let port = |at: usize| u64::from(transport[at]) << 8 | u64::from(transport[at + 1]);
        let (from, to) = (port(0), port(2));
        let protocol = u64::from(protocol) << 32;
        Some(Self {
            there: key(protocol | from << 16 | to, source, destination),
            back: key(protocol | to << 16 | from, destination, source),
        })
    }
}

type Address = (u64, u64);

/// Protocol, source, destination and payload, after RFC 791 section 3.1.
fn ipv4(packet: &[u8]) -> Option<(u8, Address, Address, &[u8])> {
    let header = usize::from(packet.first()? & 15) * 4;
    let total = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
    if packet[0] >> 4 != 4 || header < 20 || fragment != 0 {
        return None;
    }
    let word = |at: usize| {
        u64::from(u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]))
    };
    let transport = packet.get(header..total.min(packet.len()))?;
    Some((packet[9], (0, word(12)), (0, word(16)), transport))
}

/// Returns the same after RFC 8200 section 3, without extension headers.
fn ipv6(packet: &[u8]) -> Option<(u8, Address, Address, &[u8])> {
    let (header, rest) = packet.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let word = |at: usize| u64::from_be_bytes(core::array::from_fn(|i| header[at + i]));
    let transport = rest.get(..len.min(rest.len()))?;
    Some((header[6], (word(8), word(16)), (word(24), word(32)), transport))
}

fn key(ports: u64, source: Address, destination: Address) -> u64 {
    [source.0, source.1, destination.0, destination.1].into_iter().fold(mix(0, ports), mix)
}

fn mix(h: u64, word: u64) -> u64 {
    let h = (h ^ word ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^ (h >> 32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame4(protocol: u8, from: u16, to: u16, swap: bool, data: usize) -> Vec<u8> {
        let header = if protocol == TCP { 20 } else { 8 };
        let mut frame = vec![0; 14 + 20 + header + data];
        frame[12] = 8;
        frame[14] = 0x45;
        let total = (20 + header + data) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[23] = protocol;
        let (a, b) = if swap { ([10, 0, 0, 2], [10, 0, 0, 1]) } else { ([10, 0, 0, 1], [10, 0, 0, 2]) };
        frame[26..30].copy_from_slice(&a);
        frame[30..34].copy_from_slice(&b);
        frame[34..36].copy_from_slice(&from.to_be_bytes());
        frame[36..38].copy_from_slice(&to.to_be_bytes());
        if protocol == TCP {
            frame[46] = 0x50;
        }
        frame
    }

    #[test]
    fn a_reply_has_the_key_of_the_way_back_and_nothing_else_has() {
        for protocol in [TCP, UDP] {
            let request = FlowKeys::of(&frame4(protocol, 4000, 7, false, 13)).unwrap();
            let reply = FlowKeys::of(&frame4(protocol, 7, 4000, true, 100)).unwrap();
            assert_eq!((request.back, request.there), (reply.there, reply.back));
            for other in [
                frame4(protocol, 7, 4001, true, 100),
                frame4(protocol, 8, 4000, true, 100),
                frame4(protocol, 7, 4000, false, 100),
                frame4(TCP + UDP - protocol, 7, 4000, true, 100),
            ] {
                assert_ne!(FlowKeys::of(&other).unwrap().there, request.back);
            }
        }
    }

    #[test]
    fn acknowledgments_fragments_and_other_protocols_have_no_key() {
        assert_eq!(FlowKeys::of(&frame4(TCP, 1, 2, false, 0)), None, "an acknowledgment");
        assert_eq!(FlowKeys::of(&frame4(UDP, 1, 2, false, 0)), None, "no data");
        assert_eq!(FlowKeys::of(&frame4(1, 1, 2, false, 20)), None, "ICMP");
        let mut fragment = frame4(UDP, 1, 2, false, 20);
        fragment[21] = 3;
        assert_eq!(FlowKeys::of(&fragment), None);
        let mut padded = frame4(TCP, 1, 2, false, 0);
        padded.resize(60, 0);
        assert_eq!(FlowKeys::of(&padded), None, "padding is no data");
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0..3) {
            if bytes.len() > 14 && kind > 0 {
                bytes[12..14].copy_from_slice(if kind == 1 { &[8, 0] } else { &[0x86, 0xdd] });
                bytes[14] = if kind == 1 { 0x45 } else { 0x60 };
            }
            FlowKeys::of(&bytes);
        }
    }
}
