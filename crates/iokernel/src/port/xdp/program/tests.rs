//! The programs at two levels: in a virtual machine in this process, without privileges, and in the
//! kernel, which runs them on synthetic frames. The third level, traffic over a veth pair, is a
//! system test.

use super::*;
use proptest::prelude::*;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use tailwater_bpf::assembler::{LOAD_U64, encode};
use tailwater_bpf::sys as bpf;

/// The context of the virtual machine differs: its addresses have 64 bits.
const MACHINE: ContextLayout = ContextLayout { data: 0, data_end: 8, queue: 16, load_address: LOAD_U64 };

const OWN: Owned = Owned {
    mac: MacAddr([0x82, 0xfe, 1, 2, 3, 0xf4]),
    ip: Some(Ipv4Addr::new(10, 77, 0, 1)),
    network: Ipv4Addr::new(10, 77, 0, 0),
    prefix_len: 16,
};

/// Returns the verdict that the table of the module documentation gives.
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

/// `bpf_redirect_map` as in the kernel, for a map with sockets for queues 0 to 3.
fn redirect_map(map: u64, queue: u64, otherwise: u64, _: u64, _: u64) -> u64 {
    assert_eq!(map, 42);
    if queue < 4 { REDIRECT.into() } else { otherwise }
}

fn run_here(code: &[u64], frame: &[u8], queue: u32) -> u32 {
    let bytes: Vec<u8> = code.iter().flat_map(|instruction| instruction.to_le_bytes()).collect();
    let mut machine = rbpf::EbpfVmMbuff::new(Some(&bytes)).expect("the program is well formed");
    machine.register_helper(REDIRECT_MAP, redirect_map).unwrap();
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
    let code = redirect_foreign(42, MACHINE, &OWN);
    let (mut to_linux, mut to_us) = (0, 0);
    for frame in samples() {
        let verdict = run_here(&code, &frame, 0);
        assert_eq!(verdict, expected(&frame), "{frame:02x?}");
        *if verdict == PASS { &mut to_linux } else { &mut to_us } += 1;
    }
    assert!(to_linux >= 5 && to_us >= 5, "{to_linux} to Linux, {to_us} to us");
}

#[test]
fn without_an_address_of_linuxs_the_whole_network_is_foreign() {
    let code = redirect_foreign(42, MACHINE, &Owned { ip: None, ..OWN });
    assert_eq!(run_here(&code, &arp(MacAddr::BROADCAST, [10, 77, 0, 1]), 0), REDIRECT);
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
        prop_assert_eq!(run_here(&redirect_foreign(42, MACHINE, &OWN), &frame, 0), expected(&frame));
    }
}

/// Returns a map and a program in the kernel; `None`, with the reason printed, where that is not
/// possible.
fn in_kernel(code: impl FnOnce(i32) -> Vec<u64>) -> Option<(OwnedFd, OwnedFd)> {
    let map = match bpf::socket_map(4) {
        Ok(map) => map,
        Err(error @ (Errno::PERM | Errno::NOSYS | Errno::INVAL)) => {
            eprintln!("skipped: no eBPF map can be made here ({error})");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    match bpf::load_xdp(&code(map.as_raw_fd())) {
        Ok(program) => Some((map, program)),
        Err(error) if error.errno == Errno::PERM => {
            eprintln!("skipped: no XDP program can be loaded here ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_kernel_accepts_both_programs_and_agrees_with_the_table() {
    let Some((_map, all)) = in_kernel(|map| redirect_all(map, KERNEL)) else { return };
    let Some((_other, foreign)) = in_kernel(|map| redirect_foreign(map, KERNEL, &OWN)) else { return };
    for frame in samples().into_iter().filter(|frame| frame.len() >= ETHERNET_HEADER) {
        // The map is empty, so both verdicts are those of a queue without a socket.
        assert_eq!(bpf::test_run(&all, &frame).unwrap(), PASS);
        assert_eq!(bpf::test_run(&foreign, &frame).unwrap(), PASS);
    }
    // To make the same decisions visible, frames that would be redirected are dropped.
    let drop_instead = |map| {
        let mut code = redirect_foreign(map, KERNEL, &OWN);
        let flags = code.iter().position(|&i| i == encode(MOVE_IMMEDIATE, 3, 0, 0, PASS)).unwrap();
        code[flags] = encode(MOVE_IMMEDIATE, 3, 0, 0, 1);
        code
    };
    let Some((_third, visible)) = in_kernel(drop_instead) else { return };
    for frame in samples().into_iter().filter(|frame| frame.len() >= ETHERNET_HEADER) {
        let dropped = bpf::test_run(&visible, &frame).unwrap() == 1;
        assert_eq!(dropped, expected(&frame) == REDIRECT, "{frame:02x?}");
    }
}
