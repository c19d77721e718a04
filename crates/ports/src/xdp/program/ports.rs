//! The eBPF program for programs that share the interface's own IP addresses with Linux.
//!
//! Owns the table below: one address, and the port decides. Ports of programs are those of the map
//! of ports, where they listen, and all of one range, from which their own connections leave.
//!
//! | frame to the interface's own MAC and IP address | goes to |
//! |---|---|
//! | TCP and UDP to a port of programs | the IOKernel |
//! | ICMP and ICMPv6 errors about a packet from a port of programs | the IOKernel |
//! | later fragments of a datagram of which the first one was for a port of programs | the IOKernel |
//! | all others: other ports, pings, ARP, neighbour discovery, later fragments that come first | Linux |
//!
//! The ports of a later fragment are in the first one, so that enters its source and identification
//! into the map of fragments, or takes them out of it if it is Linux's. Options of IPv4 are
//! skipped, and up to [`MOST_EXTENSIONS`] extension headers of IPv6; a packet with more of them is
//! Linux's.
//!
//! A frame of programs for which no socket is there is dropped. It is never passed to Linux, which
//! would answer it with a reset: the program stays attached when its IOKernel dies, and connections
//! wait for the next one.

use super::{
    ContextLayout, DESTINATION4, DESTINATION6, DROP, ETHERTYPE, Label, Maps, NEXT_HEADER, OWN_IP, OWN_IP6,
    SETTINGS, begin, compare_mac, end_with, loaded, look_up, need,
};
use core::ops::RangeInclusive;
use tailwater_bpf::assembler::{
    ADD, ADD_IMMEDIATE, AND_IMMEDIATE, Assembler, CALL, FROM_NETWORK, JUMP, JUMP_AT_MOST_IMMEDIATE,
    JUMP_BITS_IMMEDIATE, JUMP_EQUAL_IMMEDIATE, JUMP_GREATER, JUMP_LESS_IMMEDIATE, JUMP_NOT_EQUAL,
    JUMP_NOT_EQUAL_IMMEDIATE, LOAD_U8, LOAD_U16, LOAD_U32, LOAD_U64, MOVE, MOVE_IMMEDIATE, OR,
    SHIFT_LEFT_IMMEDIATE, STACK, STORE_IMMEDIATE_U64, STORE_U32, STORE_U64,
};
use tailwater_wire::ETHERNET_HEADER;
use tailwater_wire::frame::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_FRAME, IPV6_FRAME};
use tailwater_wire::packet::{ICMP, ICMPV6, TCP, UDP};

/// Maximum number of IPv6 extension headers that are skipped.
pub(crate) const MOST_EXTENSIONS: u8 = 4;
/// `bpf_map_update_elem(map, key, value, flags)`.
pub(crate) const UPDATE: u32 = 2;
/// `bpf_map_delete_elem(map, key)`.
pub(crate) const DELETE: u32 = 3;

/// Offset of the key of the map of ports from the end of the stack,
const PORT: i16 = -4;
/// of the key of the map of fragments,
const FRAGMENT: i16 = -32;
/// of a word that is not 0 if the packet is a first fragment,
const IS_FIRST: i16 = -40;
/// and of the address of a header during a call.
const KEPT: i16 = -48;

/// Registers of the protocol and of the address of its header.
const PROTOCOL: u8 = 2;
const HEADER: u8 = 3;

/// Offsets in an IPv4 frame: version and length of the header, identification, fragment and
/// protocol, source.
const LENGTH4: i16 = ETHERNET_HEADER as i16;
const IDENTIFICATION: i16 = 18;
const FRAGMENT4: i16 = 20;
const PROTOCOL4: i16 = 23;
const SOURCE4: i16 = 26;
const SOURCE6: i16 = 22;
/// Bits of the fragment's offset, and the flag that more follow, as a program loads them (RFC 791
/// section 3.1, RFC 8200 section 4.5).
const OFFSET4: u32 = 0xff1f;
const MORE4: u32 = 0x0020;
const OFFSET6: u32 = 0xf8ff;
const MORE6: u32 = 0x0100;
/// Extension headers (RFC 8200 section 4).
const HOP_BY_HOP: u32 = 0;
const ROUTING: u32 = 43;
const FRAGMENT_HEADER: u32 = 44;
const DESTINATION_OPTIONS: u32 = 60;
/// Length of the part of an ICMP error before the quoted packet.
const ERROR_HEADER: u32 = 8;

/// Returns the key in the map of ports.
pub(crate) fn port_key(protocol: u8, port: u16) -> u32 {
    u32::from(protocol) << 16 | u32::from(port)
}

/// Goes on only if at least `len` bytes of the frame follow the address in a register.
fn need_from(asm: &mut Assembler<Label>, register: u8, len: u32) {
    asm.put(MOVE, 4, register, 0, 0);
    asm.put(ADD_IMMEDIATE, 4, 0, 0, len);
    asm.jump(JUMP_GREATER, 4, super::END, 0, Label::Pass);
}

/// Moves the address in register `at` behind the IPv4 header that it is of.
fn skip_ipv4(asm: &mut Assembler<Label>, at: u8) {
    asm.put(LOAD_U8, 5, at, 0, 0);
    asm.put(AND_IMMEDIATE, 5, 0, 0, 0x0f);
    asm.jump(JUMP_LESS_IMMEDIATE, 5, 0, 5, Label::Pass);
    asm.put(SHIFT_LEFT_IMMEDIATE, 5, 0, 0, 2);
    asm.put(ADD, at, 5, 0, 0);
}

/// Takes the datagram whose first fragment this is out of the map of fragments: an earlier one of
/// the same key may have been a program's. `number` tells the places apart.
fn forget(asm: &mut Assembler<Label>, maps: Maps, number: u8) {
    asm.jump(JUMP_EQUAL_IMMEDIATE, 4, 0, 0, Label::Forgotten(number));
    asm.map(1, maps.fragments);
    asm.put(MOVE, 2, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(FRAGMENT) as u32);
    asm.put(CALL, 0, 0, 0, DELETE);
    asm.place(Label::Forgotten(number));
}

/// Returns the program for these maps and this range of ports.
pub(crate) fn redirect_ports(maps: Maps, range: &RangeInclusive<u16>, layout: ContextLayout) -> Vec<u64> {
    let mut asm = Assembler::new();
    begin(&mut asm, maps, layout);
    compare_mac(&mut asm, Label::Pass);
    asm.put(STORE_IMMEDIATE_U64, STACK, 0, IS_FIRST, 0);
    asm.put(LOAD_U16, 2, super::DATA, ETHERTYPE, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_IPV6), Label::Ipv6);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_IPV4), Label::Pass);
    ipv4(&mut asm, maps);
    asm.place(Label::Group);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
    asm.place(Label::Ipv6);
    ipv6(&mut asm, maps);
    error4(&mut asm);
    error6(&mut asm);
    asm.place(Label::Transport);
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, TCP.into(), Label::Ported);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, PROTOCOL, 0, UDP.into(), Label::Pass);
    asm.place(Label::Ported);
    need_from(&mut asm, HEADER, 4);
    asm.put(LOAD_U16, 5, HEADER, 2, 0);
    asm.place(Label::Port);
    judge_port(&mut asm, maps, range);
    asm.place(Label::Later);
    look_up(&mut asm, maps.fragments, FRAGMENT);
    end_with(&mut asm, maps, DROP, layout);
    asm.finish()
}

/// Finds protocol and header of an IPv4 packet.
fn ipv4(asm: &mut Assembler<Label>, maps: Maps) {
    need(asm, IPV4_FRAME);
    asm.put(LOAD_U32, 2, super::DATA, DESTINATION4, 0);
    asm.put(LOAD_U32, 3, SETTINGS, OWN_IP, 0);
    asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, Label::Pass);
    // Source, identification and protocol tell datagrams apart (RFC 791 section 3.2).
    asm.put(LOAD_U8, PROTOCOL, super::DATA, PROTOCOL4, 0);
    asm.put(STORE_IMMEDIATE_U64, STACK, 0, FRAGMENT, 0);
    asm.put(LOAD_U32, 4, super::DATA, SOURCE4, 0);
    asm.put(STORE_U64, STACK, 4, FRAGMENT + 8, 0);
    asm.put(LOAD_U16, 4, super::DATA, IDENTIFICATION, 0);
    asm.put(MOVE, 5, PROTOCOL, 0, 0);
    asm.put(SHIFT_LEFT_IMMEDIATE, 5, 0, 0, 32);
    asm.put(OR, 4, 5, 0, 0);
    asm.put(STORE_U64, STACK, 4, FRAGMENT + 16, 0);
    asm.put(LOAD_U16, 4, super::DATA, FRAGMENT4, 0);
    asm.jump(JUMP_BITS_IMMEDIATE, 4, 0, OFFSET4, Label::Later);
    asm.put(AND_IMMEDIATE, 4, 0, 0, MORE4);
    asm.put(STORE_U64, STACK, 4, IS_FIRST, 0);
    forget(asm, maps, MOST_EXTENSIONS);
    asm.put(LOAD_U8, PROTOCOL, super::DATA, PROTOCOL4, 0);
    asm.put(MOVE, HEADER, super::DATA, 0, 0);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, LENGTH4 as u32);
    skip_ipv4(asm, HEADER);
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, ICMP.into(), Label::Error4);
    asm.jump(JUMP, 0, 0, 0, Label::Transport);
}

/// Finds protocol and header of an IPv6 packet.
fn ipv6(asm: &mut Assembler<Label>, maps: Maps) {
    need(asm, IPV6_FRAME);
    for half in [0, 8] {
        asm.put(LOAD_U64, 2, super::DATA, DESTINATION6 + half, 0);
        asm.put(LOAD_U64, 3, SETTINGS, OWN_IP6 + half, 0);
        asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, Label::Pass);
        asm.put(LOAD_U64, 4, super::DATA, SOURCE6 + half, 0);
        asm.put(STORE_U64, STACK, 4, FRAGMENT + half, 0);
    }
    asm.put(STORE_IMMEDIATE_U64, STACK, 0, FRAGMENT + 16, 0);
    asm.put(LOAD_U8, PROTOCOL, super::DATA, NEXT_HEADER, 0);
    asm.put(MOVE, HEADER, super::DATA, 0, 0);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, IPV6_FRAME as u32);
    for number in 0..MOST_EXTENSIONS {
        extension(asm, maps, number);
    }
    asm.place(Label::Upper);
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, ICMPV6.into(), Label::Error6);
    asm.jump(JUMP, 0, 0, 0, Label::Transport);
}

/// Skips one extension header, or goes to the upper-layer header.
fn extension(asm: &mut Assembler<Label>, maps: Maps, number: u8) {
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, FRAGMENT_HEADER, Label::Fragment(number));
    for header in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS] {
        asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, header, Label::Options(number));
    }
    asm.jump(JUMP, 0, 0, 0, Label::Upper);
    asm.place(Label::Fragment(number));
    need_from(asm, HEADER, 8);
    asm.put(LOAD_U32, 4, HEADER, 4, 0);
    asm.put(STORE_U64, STACK, 4, FRAGMENT + 16, 0);
    asm.put(LOAD_U16, 4, HEADER, 2, 0);
    asm.jump(JUMP_BITS_IMMEDIATE, 4, 0, OFFSET6, Label::Later);
    asm.put(AND_IMMEDIATE, 4, 0, 0, MORE6);
    asm.put(STORE_U64, STACK, 4, IS_FIRST, 0);
    asm.put(STORE_U64, STACK, HEADER, KEPT, 0);
    forget(asm, maps, number);
    asm.put(LOAD_U64, HEADER, STACK, KEPT, 0);
    asm.put(LOAD_U8, PROTOCOL, HEADER, 0, 0);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, 8);
    asm.jump(JUMP, 0, 0, 0, Label::Next(number));
    asm.place(Label::Options(number));
    need_from(asm, HEADER, 8);
    asm.put(LOAD_U8, PROTOCOL, HEADER, 0, 0);
    asm.put(LOAD_U8, 5, HEADER, 1, 0);
    asm.put(SHIFT_LEFT_IMMEDIATE, 5, 0, 0, 3);
    asm.put(ADD_IMMEDIATE, 5, 0, 0, 8);
    asm.put(ADD, HEADER, 5, 0, 0);
    asm.place(Label::Next(number));
}

/// Finds the port that an ICMP error is about: the source port of the quoted packet (RFC 792).
fn error4(asm: &mut Assembler<Label>) {
    asm.place(Label::Error4);
    need_from(asm, HEADER, ERROR_HEADER + (IPV4_FRAME - ETHERNET_HEADER) as u32);
    asm.put(LOAD_U8, 4, HEADER, 0, 0);
    // Destination unreachable, time exceeded, parameter problem.
    for kind in [3, 11, 12] {
        asm.jump(JUMP_EQUAL_IMMEDIATE, 4, 0, kind, Label::Quote4);
    }
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
    asm.place(Label::Quote4);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, ERROR_HEADER);
    asm.put(LOAD_U32, 4, HEADER, SOURCE4 - LENGTH4, 0);
    asm.put(LOAD_U32, 5, SETTINGS, OWN_IP, 0);
    asm.jump(JUMP_NOT_EQUAL, 4, 5, 0, Label::Pass);
    asm.put(LOAD_U16, 4, HEADER, FRAGMENT4 - LENGTH4, 0);
    asm.jump(JUMP_BITS_IMMEDIATE, 4, 0, OFFSET4, Label::Pass);
    asm.put(LOAD_U8, PROTOCOL, HEADER, PROTOCOL4 - LENGTH4, 0);
    skip_ipv4(asm, HEADER);
    quoted_port(asm);
}

/// As [`error4`], of ICMPv6 (RFC 4443 section 3); the quoted packet has no extension headers.
fn error6(asm: &mut Assembler<Label>) {
    asm.place(Label::Error6);
    need_from(asm, HEADER, ERROR_HEADER + (IPV6_FRAME - ETHERNET_HEADER) as u32);
    asm.put(LOAD_U8, 4, HEADER, 0, 0);
    asm.jump(JUMP_LESS_IMMEDIATE, 4, 0, 1, Label::Pass);
    asm.jump(JUMP_AT_MOST_IMMEDIATE, 4, 0, 4, Label::Quote6);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
    asm.place(Label::Quote6);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, ERROR_HEADER);
    for half in [0, 8] {
        asm.put(LOAD_U64, 4, HEADER, SOURCE6 - LENGTH4 + half, 0);
        asm.put(LOAD_U64, 5, SETTINGS, OWN_IP6 + half, 0);
        asm.jump(JUMP_NOT_EQUAL, 4, 5, 0, Label::Pass);
    }
    asm.put(LOAD_U8, PROTOCOL, HEADER, NEXT_HEADER - LENGTH4, 0);
    asm.put(ADD_IMMEDIATE, HEADER, 0, 0, (IPV6_FRAME - ETHERNET_HEADER) as u32);
    quoted_port(asm);
}

/// Goes on with the source port of the quoted packet.
fn quoted_port(asm: &mut Assembler<Label>) {
    need_from(asm, HEADER, 4);
    asm.put(LOAD_U16, 5, HEADER, 0, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, TCP.into(), Label::Port);
    asm.jump(JUMP_EQUAL_IMMEDIATE, PROTOCOL, 0, UDP.into(), Label::Port);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
}

/// Redirects if the port in register 5, as in the packet, is one of programs.
fn judge_port(asm: &mut Assembler<Label>, maps: Maps, range: &RangeInclusive<u16>) {
    asm.put(FROM_NETWORK, 5, 0, 0, 16);
    asm.put(SHIFT_LEFT_IMMEDIATE, PROTOCOL, 0, 0, 16);
    asm.put(OR, PROTOCOL, 5, 0, 0);
    asm.put(STORE_U32, STACK, PROTOCOL, PORT, 0);
    asm.jump(JUMP_LESS_IMMEDIATE, 5, 0, (*range.start()).into(), Label::Listening);
    asm.jump(JUMP_AT_MOST_IMMEDIATE, 5, 0, (*range.end()).into(), Label::Theirs);
    asm.place(Label::Listening);
    look_up(asm, maps.addresses, PORT);
    asm.place(Label::Theirs);
    asm.put(LOAD_U64, 4, STACK, IS_FIRST, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 4, 0, 0, Label::Redirect);
    asm.map(1, maps.fragments);
    for (register, offset) in [(2, FRAGMENT), (3, PORT)] {
        asm.put(MOVE, register, STACK, 0, 0);
        asm.put(ADD_IMMEDIATE, register, 0, 0, i32::from(offset) as u32);
    }
    asm.put(MOVE_IMMEDIATE, 4, 0, 0, 0);
    asm.put(CALL, 0, 0, 0, UPDATE);
    asm.jump(JUMP, 0, 0, 0, Label::Redirect);
}

#[cfg(test)]
mod tests;
