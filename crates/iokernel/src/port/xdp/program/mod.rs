//! The eBPF programs, as instructions, that redirect frames of an interface to AF_XDP sockets.
//!
//! Owns two programs, put together by [`tailwater_bpf::assembler`] when a port starts; makes no
//! system call.
//!
//! [`redirect_all`] redirects every frame to the socket of the queue it arrived on.
//! [`redirect_foreign`] leaves Linux its own frames, for interfaces that Linux uses too:
//!
//! | frame | goes to |
//! |---|---|
//! | to the interface's own MAC address | Linux |
//! | to any other unicast MAC address | the IOKernel |
//! | ARP to a group, for an address of the runtimes' network that is not the interface's own | the IOKernel |
//! | all others to groups: other ARP, IPv6 neighbour discovery | Linux |
//!
//! A frame cannot go to both. A queue without a socket, and a frame too short to be read, go to
//! Linux.

use std::net::Ipv4Addr;

use crate::frame::{ARP_FRAME, ETHERNET_HEADER, ETHERTYPE_ARP, MacAddr};
use tailwater_bpf::assembler::{
    ADD_IMMEDIATE, AND_IMMEDIATE_32, Assembler, CALL, EXIT, JUMP, JUMP_BITS_IMMEDIATE, JUMP_EQUAL,
    JUMP_GREATER, JUMP_NOT_EQUAL, JUMP_NOT_EQUAL_IMMEDIATE, LOAD_U8, LOAD_U16, LOAD_U32, MOVE,
    MOVE_IMMEDIATE, MOVE_IMMEDIATE_32,
};

/// The verdict that passes a frame to Linux (linux/bpf.h, `XDP_PASS`).
pub(crate) const PASS: u32 = 2;
/// The verdict that follows a redirection (`XDP_REDIRECT`).
#[cfg(test)]
pub(crate) const REDIRECT: u32 = 4;
/// `bpf_redirect_map(map, key, flags)`; the low bits of the flags are the verdict when the map has
/// no such key.
pub(crate) const REDIRECT_MAP: u32 = 51;

/// Offset of the target protocol address in an ARP frame (RFC 826).
const ARP_TARGET: i16 = 38;
const ETHERTYPE: i16 = 12;

/// Offsets of the frame's addresses and the queue number in a program's context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextLayout {
    data: i16,
    data_end: i16,
    queue: i16,
    /// Opcode that loads one of the two addresses.
    load_address: u8,
}

/// `struct xdp_md` (linux/bpf.h). The verifier turns the 32-bit loads of the addresses into 64-bit
/// ones.
pub(crate) const KERNEL: ContextLayout =
    ContextLayout { data: 0, data_end: 4, queue: 16, load_address: LOAD_U32 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Group,
    Redirect,
}

/// Ends a program with the redirection, through the context in register 6.
fn redirect(asm: &mut Assembler<Label>, map: i32, layout: ContextLayout) {
    asm.put(LOAD_U32, 2, 6, layout.queue, 0);
    asm.map(1, map);
    asm.put(MOVE_IMMEDIATE, 3, 0, 0, PASS);
    asm.put(CALL, 0, 0, 0, REDIRECT_MAP);
    asm.put(EXIT, 0, 0, 0, 0);
}

/// Returns the program that redirects every frame to the socket that map `map` has for the frame's
/// queue.
pub(crate) fn redirect_all(map: i32, layout: ContextLayout) -> Vec<u64> {
    let mut asm = Assembler::new();
    asm.put(MOVE, 6, 1, 0, 0);
    redirect(&mut asm, map, layout);
    asm.finish()
}

/// What belongs to Linux on an interface that is shared with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) mac: MacAddr,
    /// Linux's address on the interface, if it has one.
    pub(crate) ip: Option<Ipv4Addr>,
    /// An address of the runtimes' network.
    pub(crate) network: Ipv4Addr,
    pub(crate) prefix_len: u8,
}

/// Returns the program that redirects only frames that are not Linux's; the module documentation
/// has the table.
pub(crate) fn redirect_foreign(map: i32, layout: ContextLayout, owned: &Owned) -> Vec<u64> {
    let (data, end) = (7, 8);
    let mut asm = Assembler::new();
    asm.put(MOVE, 6, 1, 0, 0);
    asm.put(layout.load_address, data, 6, layout.data, 0);
    asm.put(layout.load_address, end, 6, layout.data_end, 0);
    asm.put(MOVE, 4, data, 0, 0);
    asm.put(ADD_IMMEDIATE, 4, 0, 0, ETHERNET_HEADER as u32);
    asm.jump(JUMP_GREATER, 4, end, 0, Label::Pass);
    asm.put(LOAD_U8, 2, data, 0, 0);
    asm.jump(JUMP_BITS_IMMEDIATE, 2, 0, 1, Label::Group);
    // Unicast: compare with Linux's own address, in two parts.
    let [a, b, c, d, e, f] = owned.mac.0;
    asm.put(LOAD_U16, 2, data, 0, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, u16::from_le_bytes([a, b]).into(), Label::Redirect);
    asm.put(LOAD_U32, 2, data, 2, 0);
    asm.put(MOVE_IMMEDIATE_32, 3, 0, 0, u32::from_le_bytes([c, d, e, f]));
    asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, Label::Redirect);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
    asm.place(Label::Group);
    asm.put(LOAD_U16, 2, data, ETHERTYPE, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, ETHERTYPE_ARP.swap_bytes().into(), Label::Pass);
    asm.put(MOVE, 4, data, 0, 0);
    asm.put(ADD_IMMEDIATE, 4, 0, 0, ARP_FRAME as u32);
    asm.jump(JUMP_GREATER, 4, end, 0, Label::Pass);
    asm.put(LOAD_U32, 2, data, ARP_TARGET, 0);
    if let Some(ip) = owned.ip {
        asm.put(MOVE_IMMEDIATE_32, 3, 0, 0, u32::from_le_bytes(ip.octets()));
        asm.jump(JUMP_EQUAL, 2, 3, 0, Label::Pass);
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(owned.prefix_len)).unwrap_or(0);
    asm.put(AND_IMMEDIATE_32, 2, 0, 0, mask.swap_bytes());
    asm.put(MOVE_IMMEDIATE_32, 3, 0, 0, (owned.network.to_bits() & mask).swap_bytes());
    asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, Label::Pass);
    asm.place(Label::Redirect);
    redirect(&mut asm, map, layout);
    asm.place(Label::Pass);
    asm.put(MOVE_IMMEDIATE, 0, 0, 0, PASS);
    asm.put(EXIT, 0, 0, 0, 0);
    asm.finish()
}

#[cfg(test)]
mod tests;
