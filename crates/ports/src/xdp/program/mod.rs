//! The eBPF programs, as instructions, that redirect frames of an interface to AF_XDP sockets.
//!
//! Owns the programs, put together by [`tailwater_bpf::assembler`] when a port starts; makes no
//! system call.
//!
//! [`redirect_all`] redirects every frame to the socket of the queue it arrived on. The others
//! leave Linux its own frames, for interfaces that Linux uses too. [`redirect_foreign`] is for
//! programs with MAC addresses of their own:
//!
//! | frame | goes to |
//! |---|---|
//! | to the interface's own MAC address | Linux |
//! | to any other unicast MAC address | the IOKernel |
//! | ARP to a group, for an address of the runtimes' network that is not the interface's own | the IOKernel |
//! | all others to groups: other ARP, IPv6 neighbour discovery | Linux |
//!
//! [`redirect_addresses`] is for programs behind the interface's own MAC address, of which the map
//! of addresses has the IP addresses:
//!
//! | frame | goes to |
//! |---|---|
//! | IPv4 and IPv6 to the interface's own MAC address and an address in the map | the IOKernel |
//! | ARP to the own MAC address or to a group, for an address in the map | the IOKernel |
//! | neighbour solicitation to a group, for an address in the map | the IOKernel |
//! | all others: other addresses, other MAC addresses, other groups, VLAN tags | Linux |
//!
//! Module [`ports`] has the one for programs that share its IP addresses, too.
//!
//! A frame cannot go to both. A queue without a socket, and a frame too short to be read, go to
//! Linux. What may change while a program is attached is in maps and not in its instructions: the
//! interface's own addresses in the map of [`Settings`], those of programs in the map of addresses.

pub(crate) mod ports;

use rustix::fd::RawFd;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tailwater_bpf::assembler::{
    ADD_IMMEDIATE, AND_32, Assembler, CALL, EXIT, JUMP, JUMP_BITS_IMMEDIATE, JUMP_EQUAL,
    JUMP_EQUAL_IMMEDIATE, JUMP_GREATER, JUMP_NOT_EQUAL, JUMP_NOT_EQUAL_IMMEDIATE, LOAD_U8, LOAD_U16,
    LOAD_U32, LOAD_U64, MOVE, MOVE_IMMEDIATE, STACK, STORE_IMMEDIATE_U32, STORE_IMMEDIATE_U64, STORE_U32,
    STORE_U64,
};
use tailwater_wire::frame::{
    ARP_FRAME, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_FRAME, IPV6_FRAME,
};
use tailwater_wire::{ETHERNET_HEADER, MacAddr};

/// The verdict that passes a frame to Linux (linux/bpf.h, `XDP_PASS`).
pub(crate) const PASS: u32 = 2;
/// The verdict that drops a frame (`XDP_DROP`).
const DROP: u32 = 1;
/// The verdict that follows a redirection (`XDP_REDIRECT`).
#[cfg(test)]
pub(crate) const REDIRECT: u32 = 4;
/// `bpf_redirect_map(map, key, flags)`; the low bits of the flags are the verdict when the map has
/// no such key.
pub(crate) const REDIRECT_MAP: u32 = 51;
/// `bpf_map_lookup_elem(map, key)`: the address of the value, or 0.
pub(crate) const LOOKUP: u32 = 1;

const ETHERTYPE: i16 = 12;
/// Offset of the target protocol address in an ARP frame (RFC 826).
const ARP_TARGET: i16 = 38;
/// Offset of the destination in an IPv4 frame.
const DESTINATION4: i16 = 30;
/// Offsets of the next header and of the destination in an IPv6 frame.
const NEXT_HEADER: i16 = 20;
const DESTINATION6: i16 = 38;
/// Offsets of type and target, and the length, of a frame with a neighbour solicitation without
/// extension headers (RFC 4861 section 4.3).
const SOLICITATION_TYPE: i16 = IPV6_FRAME as i16;
const SOLICITATION_TARGET: i16 = IPV6_FRAME as i16 + 8;
const SOLICITATION_FRAME: usize = IPV6_FRAME + 24;
const ICMPV6: u32 = 58;
const NEIGHBOUR_SOLICITATION: u32 = 135;

/// Registers with the addresses of a frame's beginning and end.
const DATA: u8 = 7;
const END: u8 = 8;
/// Register with the address of the settings.
const SETTINGS: u8 = 9;

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

/// Descriptors of the maps that a program uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maps {
    /// Sockets by queue.
    pub(crate) sockets: RawFd,
    /// [`Settings`] at key 0.
    pub(crate) settings: RawFd,
    /// Has an entry for each [`key`] of an address of a program, or for each
    /// [key](ports::port_key) of a port at which one listens.
    pub(crate) addresses: RawFd,
    /// Has an entry for each datagram of which the first fragment was for a program.
    pub(crate) fragments: RawFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Pass,
    Group,
    Redirect,
    Ipv4,
    Arp,
    Mapped,
    Whole,
    Lookup,
    Ipv6,
    Upper,
    Transport,
    Ported,
    Port,
    Listening,
    Theirs,
    Later,
    Error4,
    Quote4,
    Error6,
    Quote6,
    /// Of the extension header of this number: it is a fragment header, it has options, the next.
    Fragment(u8),
    Options(u8),
    Next(u8),
    /// Behind the removal from the map of fragments of this number.
    Forgotten(u8),
}

/// What belongs to Linux on an interface that is shared with it, as the programs read it: each part
/// as its bytes on the wire, in the first bytes of an integer.
pub(crate) type Settings = [u64; 6];

/// What [`Settings`] are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) mac: MacAddr,
    /// Linux's address on the interface, if it has one.
    pub(crate) ip: Option<Ipv4Addr>,
    /// Linux's IPv6 address there, if programs share it.
    pub(crate) ip6: Option<Ipv6Addr>,
    /// An address of the runtimes' network.
    pub(crate) network: Ipv4Addr,
    pub(crate) prefix_len: u8,
}

impl Owned {
    /// Returns Linux's addresses there that programs may share.
    pub(crate) fn ips(&self) -> impl Iterator<Item = IpAddr> + use<> {
        [self.ip.map(IpAddr::V4), self.ip6.map(IpAddr::V6)].into_iter().flatten()
    }
}

/// Offsets in [`Settings`].
const OWN_MAC: i16 = 0;
const OWN_IP: i16 = 8;
const NETWORK: i16 = 16;
const MASK: i16 = 24;
const OWN_IP6: i16 = 32;

impl Owned {
    pub(crate) fn settings(&self) -> Settings {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
        let wire = |bits: u32| u64::from(u32::from_le_bytes(bits.to_be_bytes()));
        let ip = self.ip.map_or(0, Ipv4Addr::to_bits);
        let [low, high] = self.ip6.map_or([0; 2], |ip6| key(ip6.into()));
        [self.mac.key(), wire(ip), wire(self.network.to_bits() & mask), wire(mask), low, high]
    }
}

/// Key of an address in the map of addresses: its 16 bytes, of IPv4 mapped into IPv6.
pub(crate) fn key(ip: IpAddr) -> [u64; 2] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = u128::from_le_bytes(ip.octets());
    [bits as u64, (bits >> 64) as u64]
}

/// Returns the address with this [`key`].
pub(crate) fn address([low, high]: [u64; 2]) -> IpAddr {
    let bits = u128::from(high) << 64 | u128::from(low);
    Ipv6Addr::from_octets(bits.to_le_bytes()).to_canonical()
}

/// Ends a program with the redirection, through the context in register 6.
/// `otherwise` is the verdict if the queue has no socket.
fn redirect(asm: &mut Assembler<Label>, map: RawFd, otherwise: u32, layout: ContextLayout) {
    asm.put(LOAD_U32, 2, 6, layout.queue, 0);
    asm.map(1, map);
    asm.put(MOVE_IMMEDIATE, 3, 0, 0, otherwise);
    asm.put(CALL, 0, 0, 0, REDIRECT_MAP);
    asm.put(EXIT, 0, 0, 0, 0);
}

/// Ends a program with both verdicts, at their labels.
fn end(asm: &mut Assembler<Label>, maps: Maps, layout: ContextLayout) {
    end_with(asm, maps, PASS, layout);
}

/// As [`end`], with this verdict for a frame of a queue without a socket.
fn end_with(asm: &mut Assembler<Label>, maps: Maps, otherwise: u32, layout: ContextLayout) {
    asm.place(Label::Redirect);
    redirect(asm, maps.sockets, otherwise, layout);
    asm.place(Label::Pass);
    asm.put(MOVE_IMMEDIATE, 0, 0, 0, PASS);
    asm.put(EXIT, 0, 0, 0, 0);
}

/// Goes on only with a frame of at least `len` bytes.
fn need(asm: &mut Assembler<Label>, len: usize) {
    asm.put(MOVE, 4, DATA, 0, 0);
    asm.put(ADD_IMMEDIATE, 4, 0, 0, len as u32);
    asm.jump(JUMP_GREATER, 4, END, 0, Label::Pass);
}

/// Calls `LOOKUP` in a map with the key at this offset from the end of the stack.
fn look_up(asm: &mut Assembler<Label>, map: RawFd, key: i16) {
    asm.put(MOVE, 2, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(key) as u32);
    asm.map(1, map);
    asm.put(CALL, 0, 0, 0, LOOKUP);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Pass);
}

/// Begins a program that reads frames: loads the addresses of the frame and of the settings, and
/// goes to [`Label::Group`] with a frame to a group.
fn begin(asm: &mut Assembler<Label>, maps: Maps, layout: ContextLayout) {
    asm.put(MOVE, 6, 1, 0, 0);
    asm.put(layout.load_address, DATA, 6, layout.data, 0);
    asm.put(layout.load_address, END, 6, layout.data_end, 0);
    asm.put(STORE_IMMEDIATE_U32, STACK, 0, -4, 0);
    look_up(asm, maps.settings, -4);
    asm.put(MOVE, SETTINGS, 0, 0, 0);
    need(asm, ETHERNET_HEADER);
    asm.put(LOAD_U8, 2, DATA, 0, 0);
    asm.jump(JUMP_BITS_IMMEDIATE, 2, 0, 1, Label::Group);
}

/// Goes to a label if the destination of the frame is not the interface's own MAC address, which is
/// compared in two parts.
fn compare_mac(asm: &mut Assembler<Label>, differs: Label) {
    for (load, at) in [(LOAD_U16, 0), (LOAD_U32, 2)] {
        asm.put(load, 2, DATA, at, 0);
        asm.put(load, 3, SETTINGS, OWN_MAC + at, 0);
        asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, differs);
    }
}

/// Returns an EtherType as a program loads it.
const fn loaded(ethertype: u16) -> u32 {
    ethertype.swap_bytes() as u32
}

/// Returns the program that redirects every frame to the socket that map `map` has for the frame's
/// queue.
pub(crate) fn redirect_all(map: RawFd, layout: ContextLayout) -> Vec<u64> {
    let mut asm = Assembler::new();
    asm.put(MOVE, 6, 1, 0, 0);
    redirect(&mut asm, map, PASS, layout);
    asm.finish()
}

/// Returns the program that redirects only frames that are not Linux's; the module documentation
/// has the table.
pub(crate) fn redirect_foreign(maps: Maps, layout: ContextLayout) -> Vec<u64> {
    let mut asm = Assembler::new();
    begin(&mut asm, maps, layout);
    compare_mac(&mut asm, Label::Redirect);
    asm.jump(JUMP, 0, 0, 0, Label::Pass);
    asm.place(Label::Group);
    asm.put(LOAD_U16, 2, DATA, ETHERTYPE, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_ARP), Label::Pass);
    need(&mut asm, ARP_FRAME);
    asm.put(LOAD_U32, 2, DATA, ARP_TARGET, 0);
    asm.put(LOAD_U32, 3, SETTINGS, OWN_IP, 0);
    asm.jump(JUMP_EQUAL, 2, 3, 0, Label::Pass);
    asm.put(LOAD_U32, 3, SETTINGS, MASK, 0);
    asm.put(AND_32, 2, 3, 0, 0);
    asm.put(LOAD_U32, 3, SETTINGS, NETWORK, 0);
    asm.jump(JUMP_NOT_EQUAL, 2, 3, 0, Label::Pass);
    end(&mut asm, maps, layout);
    asm.finish()
}

/// Returns the program that redirects only frames for addresses in the map of addresses; the module
/// documentation has the table.
pub(crate) fn redirect_addresses(maps: Maps, layout: ContextLayout) -> Vec<u64> {
    /// Offset of the key of the map of addresses from the end of the stack.
    const KEY: i16 = -16;
    let mut asm = Assembler::new();
    begin(&mut asm, maps, layout);
    compare_mac(&mut asm, Label::Pass);
    asm.put(LOAD_U16, 2, DATA, ETHERTYPE, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_IPV4), Label::Ipv4);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_ARP), Label::Arp);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_IPV6), Label::Pass);
    need(&mut asm, IPV6_FRAME);
    asm.put(LOAD_U64, 2, DATA, DESTINATION6, 0);
    asm.put(LOAD_U64, 3, DATA, DESTINATION6 + 8, 0);
    asm.jump(JUMP, 0, 0, 0, Label::Whole);
    asm.place(Label::Group);
    asm.put(LOAD_U16, 2, DATA, ETHERTYPE, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_ARP), Label::Arp);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, loaded(ETHERTYPE_IPV6), Label::Pass);
    need(&mut asm, SOLICITATION_FRAME);
    asm.put(LOAD_U8, 2, DATA, NEXT_HEADER, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, ICMPV6, Label::Pass);
    asm.put(LOAD_U8, 2, DATA, SOLICITATION_TYPE, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, NEIGHBOUR_SOLICITATION, Label::Pass);
    asm.put(LOAD_U64, 2, DATA, SOLICITATION_TARGET, 0);
    asm.put(LOAD_U64, 3, DATA, SOLICITATION_TARGET + 8, 0);
    asm.place(Label::Whole);
    asm.put(STORE_U64, STACK, 2, KEY, 0);
    asm.put(STORE_U64, STACK, 3, KEY + 8, 0);
    asm.jump(JUMP, 0, 0, 0, Label::Lookup);
    asm.place(Label::Ipv4);
    need(&mut asm, IPV4_FRAME);
    asm.put(LOAD_U32, 3, DATA, DESTINATION4, 0);
    asm.jump(JUMP, 0, 0, 0, Label::Mapped);
    asm.place(Label::Arp);
    need(&mut asm, ARP_FRAME);
    asm.put(LOAD_U32, 3, DATA, ARP_TARGET, 0);
    asm.place(Label::Mapped);
    // ::ffff:0:0/96, and the address behind it (RFC 4291 section 2.5.5.2).
    asm.put(STORE_IMMEDIATE_U64, STACK, 0, KEY, 0);
    asm.put(STORE_IMMEDIATE_U32, STACK, 0, KEY + 8, 0xffff_0000);
    asm.put(STORE_U32, STACK, 3, KEY + 12, 0);
    asm.place(Label::Lookup);
    look_up(&mut asm, maps.addresses, KEY);
    end(&mut asm, maps, layout);
    asm.finish()
}

#[cfg(test)]
mod tests;
