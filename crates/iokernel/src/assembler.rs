//! A small assembler of eBPF instructions (RFC 9669 has the instruction set).
//!
//! Owns the encoding of an instruction and jumps to labels. Programs are some dozens of
//! instructions long and are assembled when they are loaded, so that neither building nor running
//! needs a compiler. Makes no system call: `sys::bpf` loads what is assembled here.

/// Classes and modes (RFC 9669 sections 3 to 5), as whole opcodes.
pub(crate) const LOAD_U8: u8 = 0x71;
pub(crate) const LOAD_U16: u8 = 0x69;
pub(crate) const LOAD_U32: u8 = 0x61;
pub(crate) const LOAD_U64: u8 = 0x79;
pub(crate) const LOAD_IMMEDIATE_64: u8 = 0x18;
pub(crate) const STORE_U32: u8 = 0x63;
pub(crate) const STORE_U64: u8 = 0x7b;
pub(crate) const STORE_IMMEDIATE_U32: u8 = 0x62;
pub(crate) const STORE_IMMEDIATE_U64: u8 = 0x7a;
pub(crate) const ADD: u8 = 0x0f;
pub(crate) const ADD_IMMEDIATE: u8 = 0x07;
pub(crate) const SUBTRACT: u8 = 0x1f;
pub(crate) const AND_IMMEDIATE: u8 = 0x57;
pub(crate) const OR_IMMEDIATE: u8 = 0x47;
pub(crate) const MOVE: u8 = 0xbf;
pub(crate) const MOVE_32: u8 = 0xbc;
pub(crate) const MOVE_IMMEDIATE: u8 = 0xb7;
pub(crate) const MOVE_IMMEDIATE_32: u8 = 0xb4;
pub(crate) const AND_IMMEDIATE_32: u8 = 0x54;
pub(crate) const JUMP: u8 = 0x05;
pub(crate) const JUMP_EQUAL: u8 = 0x1d;
pub(crate) const JUMP_EQUAL_IMMEDIATE: u8 = 0x15;
pub(crate) const JUMP_NOT_EQUAL: u8 = 0x5d;
pub(crate) const JUMP_NOT_EQUAL_IMMEDIATE: u8 = 0x55;
pub(crate) const JUMP_GREATER: u8 = 0x2d;
pub(crate) const JUMP_BITS_IMMEDIATE: u8 = 0x45;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const EXIT: u8 = 0x95;

/// The register that points behind the program's stack.
pub(crate) const STACK: u8 = 10;

/// Value of the source register of a 64-bit load whose immediate is a map's descriptor.
const MAP_DESCRIPTOR: u8 = 1;

/// Encodes one instruction: opcode, registers, offset, immediate (RFC 9669 section 3.1, little
/// endian).
pub(crate) const fn encode(opcode: u8, to: u8, from: u8, offset: i16, immediate: u32) -> u64 {
    (opcode as u64)
        | ((to as u64) << 8)
        | ((from as u64) << 12)
        | ((offset as u16 as u64) << 16)
        | ((immediate as u64) << 32)
}

/// Assembles instructions with forward jumps to labels of type `L`.
pub(crate) struct Assembler<L> {
    code: Vec<u64>,
    jumps: Vec<(usize, L)>,
}

impl<L: Copy + PartialEq + core::fmt::Debug> Assembler<L> {
    pub(crate) fn new() -> Self {
        Self { code: Vec::new(), jumps: Vec::new() }
    }

    pub(crate) fn put(&mut self, opcode: u8, to: u8, from: u8, offset: i16, immediate: u32) {
        self.code.push(encode(opcode, to, from, offset, immediate));
    }

    pub(crate) fn jump(&mut self, opcode: u8, left: u8, right: u8, immediate: u32, label: L) {
        self.jumps.push((self.code.len(), label));
        self.put(opcode, left, right, 0, immediate);
    }

    /// Loads the address of the map with this descriptor.
    pub(crate) fn map(&mut self, to: u8, descriptor: i32) {
        self.put(LOAD_IMMEDIATE_64, to, MAP_DESCRIPTOR, 0, descriptor as u32);
        self.put(0, 0, 0, 0, 0);
    }

    /// Places `label` here and resolves the jumps to it: their offsets count from the instruction
    /// after the jump.
    pub(crate) fn place(&mut self, label: L) {
        let here = self.code.len();
        self.jumps.retain(|&(from, to)| {
            if to == label {
                self.code[from] |= ((here - from - 1) as u64 & 0xffff) << 16;
            }
            to != label
        });
    }

    pub(crate) fn finish(self) -> Vec<u64> {
        debug_assert!(self.jumps.is_empty(), "a jump to a label that was not placed: {:?}", self.jumps);
        self.code
    }
}
