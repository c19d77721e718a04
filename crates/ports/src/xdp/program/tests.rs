//! The programs at two levels: in a virtual machine in this process, without privileges, and in the
//! kernel, which runs them on synthetic frames. The third level, traffic over a veth pair, is a
//! system test.

use super::*;
use proptest::prelude::*;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use tailwater_bpf::assembler::encode;
use tailwater_bpf::sys as bpf;
use tailwater_bpf::sys::map::Map;
use tailwater_testkit::machine::integer_at;

/// The context of the virtual machine differs: its addresses have 64 bits.
pub(super) const MACHINE: ContextLayout =
    ContextLayout { data: 0, data_end: 8, queue: 16, load_address: LOAD_U64 };

pub(super) const OWN: Owned = Owned {
    mac: MacAddr([0x82, 0xfe, 1, 2, 3, 0xf4]),
    ip: Some(Ipv4Addr::new(10, 77, 0, 1)),
    ip6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    network: Ipv4Addr::new(10, 77, 0, 0),
    prefix_len: 16,
};

/// Numbers of the maps in the virtual machine.
pub(super) const MAPS: Maps = Maps { sockets: 42, settings: 43, addresses: 44, fragments: 45 };

/// Addresses of programs.
const THEIRS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 77, 255, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x7477, 0, 0, 0, 0, 0, 2)),
];

/// Returns the verdict that the table of the module documentation gives for programs with MAC
/// addresses of their own.
fn expected(frame: &[u8]) -> u32 {
    let foreign = match frame {
        [] | [_, ..] if frame.len() < ETHERNET_HEADER => false,
        [first, ..] if first & 1 == 0 => frame[..6] != OWN.mac.0,
        _ => {
            frame[12..14] == [8, 6] && frame.len() >= ARP_FRAME && {
                let target = Ipv4Addr::from_octets(frame[38..42].try_into().unwrap());
                target.octets()[..2] == [10, 77] && Some(target) != OWN.ip
            }
        }
    };
    if foreign { REDIRECT } else { PASS }
}

/// Returns the verdict that the table gives for programs behind the own MAC address.
fn expected_by_address(frame: &[u8]) -> u32 {
    let four = |at: usize| frame.get(at..at + 4).map(|b| IpAddr::from(<[u8; 4]>::try_from(b).unwrap()));
    let sixteen = |at: usize| frame.get(at..at + 16).map(|b| IpAddr::from(<[u8; 16]>::try_from(b).unwrap()));
    let group = frame.first().is_some_and(|first| first & 1 != 0);
    let target = match frame.get(12..14) {
        _ if frame.get(..6).is_none_or(|to| to != OWN.mac.0 && !group) => None,
        Some([8, 0]) if !group => four(30),
        Some([8, 6]) if frame.len() >= ARP_FRAME => four(38),
        Some([0x86, 0xdd]) if !group => sixteen(38),
        Some([0x86, 0xdd]) if frame.len() >= 78 && frame[20] == 58 && frame[54] == 135 => sixteen(62),
        _ => None,
    };
    if target.is_some_and(|target| THEIRS.contains(&target)) { REDIRECT } else { PASS }
}

static SETTINGS_THERE: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

/// Returns the address of a value of the virtual machine, or 0.
fn look_up(map: u64, at: u64, _: u64, _: u64, _: u64) -> u64 {
    let address = SETTINGS_THERE[0].as_ptr().expose_provenance() as u64;
    match map {
        43 if u32::from_le_bytes(integer_at(at)) == 0 => address,
        44 if THEIRS
            .iter()
            .any(|&ip| key(ip) == [integer_at(at), integer_at(at + 8)].map(u64::from_le_bytes)) =>
        {
            address
        }
        // Of ports.rs: a port at which a program listens, and a datagram that was begun.
        46 if [(6, 6_379), (17, 53)]
            .map(|(protocol, port)| ports::port_key(protocol, port))
            .contains(&u32::from_le_bytes(integer_at(at))) =>
        {
            address
        }
        47 if BEGUN.load(std::sync::atomic::Ordering::Relaxed) == fragment_at(at) => address,
        44 | 46 | 47 => 0,
        other => panic!("map {other}"),
    }
}

/// The datagram of which a first fragment was seen, as a sum of the key's words.
pub(super) static BEGUN: AtomicU64 = AtomicU64::new(0);

fn fragment_at(at: u64) -> u64 {
    [0, 8, 16].into_iter().fold(1, |sum: u64, word| {
        sum.wrapping_mul(31).wrapping_add(u64::from_le_bytes(integer_at(at + word)))
    })
}

/// `bpf_map_update_elem` of the map of fragments.
fn update(map: u64, at: u64, _: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, 47);
    BEGUN.store(fragment_at(at), std::sync::atomic::Ordering::Relaxed);
    0
}

/// `bpf_map_delete_elem` of the map of fragments. What is in the other registers is lost.
fn delete(map: u64, at: u64, _: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, 47);
    let (key, order) = (fragment_at(at), std::sync::atomic::Ordering::Relaxed);
    // Fails if the latest datagram is another one.
    let _ = BEGUN.compare_exchange(key, 0, order, order);
    0
}

/// `bpf_redirect_map` as in the kernel, for a map with sockets for queues 0 to 3.
fn redirect_map(map: u64, queue: u64, otherwise: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, 42);
    if queue < 4 { REDIRECT.into() } else { otherwise }
}

pub(super) fn run_here(code: &[u64], frame: &[u8], queue: u32) -> u32 {
    let bytes: Vec<u8> = code.iter().flat_map(|instruction| instruction.to_le_bytes()).collect();
    let mut machine = rbpf::EbpfVmMbuff::new(Some(&bytes)).expect("the program is well formed");
    machine.register_helper(REDIRECT_MAP, redirect_map).unwrap();
    machine.register_helper(LOOKUP, look_up).unwrap();
    machine.register_helper(ports::UPDATE, update).unwrap();
    machine.register_helper(ports::DELETE, delete).unwrap();
    for (word, value) in SETTINGS_THERE.iter().zip(OWN.settings()) {
        word.store(value, std::sync::atomic::Ordering::Relaxed);
    }
    let settings = SETTINGS_THERE[0].as_ptr().expose_provenance() as u64;
    machine.register_allowed_memory(settings..settings + size_of::<Settings>() as u64);
    let addresses = frame.as_ptr_range();
    let mut context = [addresses.start as u64, addresses.end as u64].map(u64::to_le_bytes).concat();
    context.extend(queue.to_le_bytes());
    machine.execute_program(frame, &context).unwrap() as u32
}

fn arp(destination: MacAddr, target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&destination.0);
    frame[12..14].copy_from_slice(&[8, 6]);
    frame[38..42].copy_from_slice(&target);
    frame
}

/// Returns a frame to an IP address, at least as long as a frame on a wire.
fn packet(destination: MacAddr, ip: IpAddr) -> Vec<u8> {
    let mut frame = vec![0; 90];
    frame[..6].copy_from_slice(&destination.0);
    match ip {
        IpAddr::V4(ip) => {
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[30..34].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[38..54].copy_from_slice(&ip.octets());
        }
    }
    frame
}

/// Returns a neighbour solicitation.
fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let group = MacAddr([0x33, 0x33, 0xff, 0, 0, target.octets()[15]]);
    let mut frame = packet(group, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, target.segments()[7]).into());
    (frame[20], frame[54]) = (58, 135);
    frame[62..78].copy_from_slice(&target.octets());
    frame
}

/// Returns frames at the borders of the table for programs behind the own MAC address.
fn samples_by_address() -> Vec<Vec<u8>> {
    let [v4, _, v6] = THEIRS;
    let IpAddr::V6(v6_address) = v6 else { unreachable!("the third is IPv6") };
    let mut near = OWN.mac;
    near.0[5] ^= 0x80;
    let other6 = Ipv6Addr::from_bits(v6_address.to_bits() ^ 1 << 64);
    let mut frames = vec![
        packet(OWN.mac, v4),
        packet(near, v4),
        packet(MacAddr::BROADCAST, v4),
        packet(OWN.mac, Ipv4Addr::new(10, 77, 0, 1).into()),
        packet(OWN.mac, v6),
        packet(near, v6),
        packet(OWN.mac, other6.into()),
        arp(MacAddr::BROADCAST, [10, 77, 0, 2]),
        arp(OWN.mac, [10, 77, 255, 254]),
        arp(near, [10, 77, 0, 2]),
        arp(MacAddr::BROADCAST, [10, 77, 0, 1]),
        solicitation(v6_address),
        solicitation(other6),
    ];
    for (sample, len) in [(0, 33), (0, 34), (4, 53), (4, 54), (7, 41), (7, 42), (11, 77), (11, 78)] {
        frames.push(frames[sample][..len].to_vec());
    }
    // An advertisement to a group, another protocol, and a tagged frame.
    for (at, byte) in [(54, 136), (20, 17), (12, 0x81)] {
        let mut frame = frames[11].clone();
        frame[at] = byte;
        frames.push(frame);
    }
    frames
}

fn samples() -> Vec<Vec<u8>> {
    let unicast = |mac: MacAddr| [&mac.0[..], &[2, 0, 0, 0, 0, 9, 8, 0], &[0; 46]].concat();
    let mut near = OWN.mac;
    near.0[5] ^= 0x80;
    let mut frames = vec![
        unicast(OWN.mac),
        unicast(near),
        unicast(MacAddr::derived(Ipv4Addr::new(10, 77, 0, 2))),
        unicast(MacAddr([0x33, 0x33, 0xff, 0, 0, 1])),
        unicast(MacAddr::BROADCAST),
        arp(MacAddr::BROADCAST, [10, 77, 0, 1]),
        arp(MacAddr::BROADCAST, [10, 77, 0, 2]),
        arp(MacAddr::BROADCAST, [10, 77, 255, 254]),
        arp(MacAddr::BROADCAST, [10, 78, 0, 2]),
        arp(OWN.mac, [10, 77, 0, 2]),
        arp(near, [10, 78, 0, 2]),
    ];
    frames.push(frames[6][..41].to_vec());
    frames.push(frames[6][..42].to_vec());
    frames
}

#[test]
fn everything_goes_to_the_socket_of_its_queue_and_to_linux_where_there_is_none() {
    let code = redirect_all(42, MACHINE);
    for frame in samples() {
        assert_eq!(run_here(&code, &frame, 3), REDIRECT);
        assert_eq!(run_here(&code, &frame, 4), PASS);
    }
}

#[test]
fn what_is_linuxs_own_stays_with_linux() {
    let code = redirect_foreign(MAPS, MACHINE);
    let (mut to_linux, mut to_us) = (0, 0);
    for frame in samples() {
        let verdict = run_here(&code, &frame, 0);
        assert_eq!(verdict, expected(&frame), "{frame:02x?}");
        *if verdict == PASS { &mut to_linux } else { &mut to_us } += 1;
    }
    assert!(to_linux >= 5 && to_us >= 5, "{to_linux} to Linux, {to_us} to us");
}

#[test]
fn what_is_for_an_address_of_a_program_leaves_linux() {
    let code = redirect_addresses(MAPS, MACHINE);
    let (mut to_linux, mut to_us) = (0, 0);
    for frame in samples_by_address().into_iter().chain(samples()) {
        let verdict = run_here(&code, &frame, 0);
        assert_eq!(verdict, expected_by_address(&frame), "{frame:02x?}");
        *if verdict == PASS { &mut to_linux } else { &mut to_us } += 1;
    }
    assert!(to_linux >= 5 && to_us >= 5, "{to_linux} to Linux, {to_us} to us");
}

#[test]
fn a_key_is_the_address_as_it_is_on_the_wire() {
    for ip in THEIRS {
        assert_eq!(address(key(ip)), ip);
    }
    assert_eq!(
        key(THEIRS[0]).map(u64::to_le_bytes).concat(),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 2]
    );
}

#[test]
fn without_an_address_of_linuxs_no_address_of_the_network_is_its_own() {
    let [mac, ip, network, mask, ..] = OWN.settings();
    assert_eq!(Owned { ip: None, ip6: None, ..OWN }.settings(), [mac, 0, network, mask, 0, 0]);
    assert_eq!(ip.to_le_bytes()[..4], [10, 77, 0, 1]);
    assert_eq!((network.to_le_bytes()[..4].to_vec(), mask), (vec![10, 77, 0, 0], 0xffff));
}

proptest! {
    #[test]
    fn any_frame_goes_where_the_table_says(
        frame in prop::collection::vec(any::<u8>(), 0..64),
        (head, kind, target) in (0..4usize, 0..3usize, 0..4usize),
    ) {
        let mut frame = frame;
        let heads = [OWN.mac, MacAddr::BROADCAST, MacAddr([0x82, 0xfe, 1, 2, 3, 0xf5])];
        let put = |frame: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            if frame.len() >= at + bytes.len() { frame[at..at + bytes.len()].copy_from_slice(bytes); }
        };
        if let Some(mac) = heads.get(head) { put(&mut frame, 0, &mac.0); }
        if kind > 0 { put(&mut frame, 12, &[8, 6]); }
        if let Some(ip) = [[10, 77, 0, 1], [10, 77, 9, 9], [10, 76, 0, 1]].get(target) { put(&mut frame, 38, ip); }
        prop_assert_eq!(run_here(&redirect_foreign(MAPS, MACHINE), &frame, 0), expected(&frame));
        let verdict = run_here(&redirect_addresses(MAPS, MACHINE), &frame, 0);
        prop_assert_eq!(verdict, expected_by_address(&frame));
    }

    #[test]
    fn any_frame_of_a_program_behind_the_own_mac_address_goes_where_the_table_says(
        sample in prop::sample::select(samples_by_address()),
        (at, byte, len) in (0usize..90, any::<u8>(), 0usize..=90),
    ) {
        let mut frame = sample;
        if let Some(place) = frame.get_mut(at) { *place = byte; }
        frame.truncate(len);
        let verdict = run_here(&redirect_addresses(MAPS, MACHINE), &frame, 0);
        prop_assert_eq!(verdict, expected_by_address(&frame), "{:02x?}", frame);
    }
}

/// The maps of a program in the kernel.
struct There {
    sockets: OwnedFd,
    settings: Map<u32, Settings>,
    addresses: Map<[u64; 2], u32>,
}

impl There {
    /// Returns maps that say what [`OWN`] and [`THEIRS`] do, without a socket.
    fn new() -> Result<Self, Errno> {
        let there =
            Self { sockets: bpf::socket_map(4)?, settings: Map::array(1)?, addresses: Map::hash(16)? };
        there.settings.set(0, OWN.settings())?;
        THEIRS.iter().try_for_each(|&ip| there.addresses.set(key(ip), 0))?;
        Ok(there)
    }

    fn numbers(&self) -> Maps {
        let (settings, addresses) = (self.settings.number(), self.addresses.number());
        Maps { sockets: self.sockets.as_raw_fd(), settings, addresses, fragments: 0 }
    }
}

/// Returns maps and a program in the kernel; `None`, with the reason printed, where that is not
/// possible.
fn in_kernel(code: impl FnOnce(Maps) -> Vec<u64>) -> Option<(There, OwnedFd)> {
    let there = match There::new() {
        Ok(there) => there,
        Err(error @ (Errno::PERM | Errno::NOSYS | Errno::INVAL)) => {
            eprintln!("skipped: no eBPF map can be made here ({error})");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    match bpf::load_xdp(&code(there.numbers())) {
        Ok(program) => Some((there, program)),
        Err(error) if error.errno == Errno::PERM => {
            eprintln!("skipped: no XDP program can be loaded here ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_kernel_accepts_all_programs_and_agrees_with_the_tables() {
    let Some((_maps, all)) = in_kernel(|maps| redirect_all(maps.sockets, KERNEL)) else { return };
    for frame in samples().into_iter().filter(|frame| frame.len() >= ETHERNET_HEADER) {
        // The map is empty, so the verdict is that of a queue without a socket.
        assert_eq!(bpf::test_run(&all, &frame).unwrap(), PASS);
    }
    // To make decisions visible, frames that would be redirected are dropped.
    let drop_instead = |mut code: Vec<u64>| {
        let flags = code.iter().position(|&i| i == encode(MOVE_IMMEDIATE, 3, 0, 0, PASS)).unwrap();
        code[flags] = encode(MOVE_IMMEDIATE, 3, 0, 0, 1);
        code
    };
    type Table = (fn(Maps, ContextLayout) -> Vec<u64>, fn(&[u8]) -> u32);
    let tables: [Table; 2] = [(redirect_foreign, expected), (redirect_addresses, expected_by_address)];
    for (code, expected) in tables {
        let Some((_maps, quiet)) = in_kernel(|maps| code(maps, KERNEL)) else { return };
        let Some((_maps, visible)) = in_kernel(|maps| drop_instead(code(maps, KERNEL))) else { return };
        let frames = samples_by_address().into_iter().chain(samples());
        for frame in frames.filter(|frame| frame.len() >= ETHERNET_HEADER) {
            assert_eq!(bpf::test_run(&quiet, &frame).unwrap(), PASS);
            let dropped = bpf::test_run(&visible, &frame).unwrap() == 1;
            assert_eq!(dropped, expected(&frame) == REDIRECT, "{frame:02x?}");
        }
    }
}
