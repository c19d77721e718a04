//! The program in a virtual machine in this process, and in the kernel, against a second reading of
//! the table.

use super::super::DROP;
use super::super::tests::{BEGUN, MACHINE, MAPS, OWN, run_here};
use super::super::{KERNEL, PASS, REDIRECT, Settings};
use super::*;
use proptest::prelude::*;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError, atomic::Ordering};
use tailwater_bpf::sys as bpf;
use tailwater_bpf::sys::map::Map;
use tailwater_wire::MacAddr;

const RANGE: RangeInclusive<u16> = 61_000..=61_999;
/// As the virtual machine has them.
const PORT_MAPS: Maps = Maps { addresses: 46, fragments: 47, ..MAPS };
const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const PEER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);
const TCP_KV: (u8, u16) = (6, 6_379);

/// The map of fragments of the virtual machine is one for all tests.
static TURN: Mutex<()> = Mutex::new(());

fn own4() -> Ipv4Addr {
    OWN.ip.expect("it has one")
}

fn own6() -> Ipv6Addr {
    OWN.ip6.expect("it has one")
}

fn ethernet(to: MacAddr, ethertype: u16) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET_HEADER];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..].copy_from_slice(&ethertype.to_be_bytes());
    frame
}

/// Returns an IPv4 packet with this many bytes of options.
fn ipv4_packet(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    fragment: u16,
    options: usize,
    rest: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0; 20 + options];
    packet[0] = 0x40 | (5 + options as u8 / 4);
    packet[2..4].copy_from_slice(&((20 + options + rest.len()) as u16).to_be_bytes());
    packet[4..6].copy_from_slice(&[7, 7]);
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet.extend_from_slice(rest);
    packet
}

fn ipv6_packet(from: Ipv6Addr, to: Ipv6Addr, next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(rest.len() as u16).to_be_bytes());
    packet[6] = next;
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&to.octets());
    packet.extend_from_slice(rest);
    packet
}

fn transport(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 16]].concat()
}

fn frame4(to: MacAddr, packet: Vec<u8>) -> Vec<u8> {
    [ethernet(to, ETHERTYPE_IPV4), packet].concat()
}

fn frame6(to: MacAddr, packet: Vec<u8>) -> Vec<u8> {
    [ethernet(to, ETHERTYPE_IPV6), packet].concat()
}

/// Returns frames with the verdict that the table gives for each: to a program or not.
fn samples() -> Vec<(&'static str, Vec<u8>, bool)> {
    let mac = OWN.mac;
    let four = |protocol, fragment, options, rest: &[u8]| {
        frame4(mac, ipv4_packet(PEER, own4(), protocol, fragment, options, rest))
    };
    let six = |next, rest: &[u8]| frame6(mac, ipv6_packet(PEER6, own6(), next, rest));
    let kv = transport(40_000, 6_379);
    let error4 = |kind: u8, from: Ipv4Addr, source: u16| {
        let quoted = ipv4_packet(from, PEER, 6, 0, 4, &transport(source, 80));
        four(1, 0, 0, &[&[kind, 1, 0, 0, 0, 0, 0, 0][..], &quoted].concat())
    };
    let error6 = |kind: u8, source: u16| {
        let quoted = ipv6_packet(own6(), PEER6, 17, &transport(source, 80));
        six(58, &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &quoted].concat())
    };
    let options = |next: u8, rest: &[u8]| [&[next, 1][..], &[0; 14], rest].concat();
    let walked = options(60, &options(6, &kv));
    let many = options(60, &options(60, &options(60, &options(60, &options(6, &kv)))));
    vec![
        ("a port at which a program listens", four(6, 0, 0, &kv), true),
        ("the same port of another protocol", four(17, 0, 0, &kv), false),
        ("behind options", four(6, 0, 40, &kv), true),
        ("Linux's port", four(6, 0, 0, &transport(40_000, 22)), false),
        ("the first port of the range", four(17, 0, 0, &transport(53, 61_000)), true),
        ("the last port of the range", four(6, 0, 0, &transport(53, 61_999)), true),
        ("before the range", four(6, 0, 0, &transport(53, 60_999)), false),
        ("behind the range", four(6, 0, 0, &transport(53, 62_000)), false),
        ("a ping", four(1, 0, 0, &[8, 0, 0, 0, 0, 0, 0, 0]), false),
        ("another protocol", four(47, 0, 0, &kv), false),
        ("another address", frame4(mac, ipv4_packet(PEER, PEER, 6, 0, 0, &kv)), false),
        ("another station", frame4(MacAddr([2; 6]), ipv4_packet(PEER, own4(), 6, 0, 0, &kv)), false),
        ("a broadcast", frame4(MacAddr::BROADCAST, ipv4_packet(PEER, own4(), 6, 0, 0, &kv)), false),
        ("an error about a program's port", error4(3, own4(), 61_500), true),
        ("an error about Linux's port", error4(3, own4(), 40_000), false),
        ("an error about another host's packet", error4(3, PEER, 61_500), false),
        ("a redirect", error4(5, own4(), 61_500), false),
        ("IPv6", six(6, &kv), true),
        ("Linux's port, IPv6", six(6, &transport(1, 22)), false),
        ("behind two extension headers", six(0, &walked), true),
        ("behind five extension headers", six(60, &many), false),
        ("an ICMPv6 error", error6(2, 61_001), true),
        ("an ICMPv6 error about Linux's port", error6(1, 53_000), false),
        ("an echo request", error6(128, 61_001), false),
        ("ARP", [ethernet(mac, 0x0806), vec![0; 46]].concat(), false),
        ("cut before the ports", four(6, 0, 0, &kv[..3]), false),
        (
            "a header of 16 bytes",
            {
                let mut f = four(6, 0, 0, &kv);
                f[14] = 0x44;
                f
            },
            false,
        ),
    ]
}

#[test]
fn the_port_decides() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let code = redirect_ports(PORT_MAPS, &RANGE, MACHINE);
    for (what, frame, is_theirs) in samples() {
        let expected = if is_theirs { REDIRECT } else { PASS };
        assert_eq!(run_here(&code, &frame, 0), expected, "{what}");
        // A queue without a socket: Linux would answer with a reset.
        let expected = if is_theirs { DROP } else { PASS };
        assert_eq!(run_here(&code, &frame, 9), expected, "{what}");
    }
}

#[test]
fn later_fragments_go_where_the_first_one_went() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let code = redirect_ports(PORT_MAPS, &RANGE, MACHINE);
    let four = |from, fragment: u16, port| {
        frame4(OWN.mac, ipv4_packet(from, own4(), 17, fragment, 0, &transport(5, port)))
    };
    let six = |offset: u16, port: u16| {
        let header = [&[17, 0][..], &offset.to_be_bytes(), &[0, 0, 0, 9]].concat();
        frame6(OWN.mac, ipv6_packet(PEER6, own6(), 44, &[header, transport(5, port)].concat()))
    };
    for (first, later, linuxs) in [
        (four(PEER, 0x2000, 53), four(PEER, 0x2001, 9), four(PEER, 0x2000, 9)),
        (six(1, 53), six(9, 9), six(1, 9)),
    ] {
        BEGUN.store(0, Ordering::Relaxed);
        assert_eq!(run_here(&code, &later, 0), PASS, "it comes first");
        assert_eq!(run_here(&code, &linuxs, 0), PASS);
        assert_eq!(run_here(&code, &later, 0), PASS, "of Linux's datagram");
        assert_eq!(run_here(&code, &first, 0), REDIRECT);
        assert_eq!(run_here(&code, &later, 0), REDIRECT);
        // The same identification once more, of a datagram that is Linux's.
        assert_eq!(run_here(&code, &linuxs, 0), PASS);
        assert_eq!(run_here(&code, &later, 0), PASS, "of Linux's later datagram");
    }
    BEGUN.store(0, Ordering::Relaxed);
    assert_eq!(run_here(&code, &four(PEER, 0x2000, 53), 0), REDIRECT);
    assert_eq!(run_here(&code, &four(Ipv4Addr::new(192, 0, 2, 8), 0x0001, 9), 0), PASS, "of another host");
}

proptest! {
    #[test]
    fn no_frame_is_read_beyond_its_end((number, at, byte, len) in (0usize..27, 0usize..200, any::<u8>(), 0usize..200)) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let all = samples();
        let mut frame = all[number % all.len()].1.clone();
        if let Some(place) = frame.get_mut(at) { *place = byte; }
        frame.truncate(len);
        // The machine fails on a load that is out of bounds.
        let verdict = run_here(&redirect_ports(PORT_MAPS, &RANGE, MACHINE), &frame, 0);
        prop_assert!(matches!(verdict, PASS | REDIRECT));
    }
}

#[test]
fn the_kernel_accepts_the_program_and_drops_what_is_for_a_program_that_has_no_socket() {
    let maps = bpf::socket_map(1).and_then(|sockets| {
        Ok((
            sockets,
            Map::<u32, Settings>::array(1)?,
            Map::<u32, u32>::hash(8)?,
            Map::<[u64; 3], u32>::recent(64)?,
        ))
    });
    let (sockets, settings, ports, fragments) = match maps {
        Ok(maps) => maps,
        Err(error @ (Errno::PERM | Errno::NOSYS | Errno::INVAL)) => {
            return eprintln!("skipped: no eBPF map can be made here ({error})");
        }
        Err(error) => panic!("{error}"),
    };
    settings.set(0, OWN.settings()).unwrap();
    ports.set(port_key(TCP_KV.0, TCP_KV.1), 0).unwrap();
    let numbers = Maps {
        sockets: sockets.as_raw_fd(),
        settings: settings.number(),
        addresses: ports.number(),
        fragments: fragments.number(),
    };
    let program = match bpf::load_xdp(&redirect_ports(numbers, &RANGE, KERNEL)) {
        Ok(program) => program,
        Err(error) if error.errno == Errno::PERM => {
            return eprintln!("skipped: no XDP program can be loaded ({error})");
        }
        Err(error) => panic!("{error}\n{}", error.program.replace(" | ", "\n")),
    };
    for (what, frame, is_theirs) in samples() {
        let expected = if is_theirs { DROP } else { PASS };
        assert_eq!(bpf::test_run(&program, &frame).unwrap(), expected, "{what}");
    }
    let first = frame4(OWN.mac, ipv4_packet(PEER, own4(), 6, 0x2000, 0, &transport(5, TCP_KV.1)));
    let later = frame4(OWN.mac, ipv4_packet(PEER, own4(), 6, 0x0003, 0, &transport(5, 9)));
    assert_eq!(bpf::test_run(&program, &later).unwrap(), PASS);
    assert_eq!(bpf::test_run(&program, &first).unwrap(), DROP);
    assert_eq!(bpf::test_run(&program, &later).unwrap(), DROP, "the first one was a program's");
    let linuxs = frame4(OWN.mac, ipv4_packet(PEER, own4(), 6, 0x2000, 0, &transport(5, 22)));
    assert_eq!(bpf::test_run(&program, &linuxs).unwrap(), PASS);
    assert_eq!(bpf::test_run(&program, &later).unwrap(), PASS, "the next one was Linux's");
}
