//! A small assembler of eBPF instructions (RFC 9669 has the instruction set).
//!
//! Owns the encoding of an instruction and jumps to labels. Programs are some dozens of
//! instructions long and are assembled when they are loaded, so that neither building nor running
//! needs a compiler. Makes no system call: [`sys`](crate::sys) loads what is assembled here.

// Classes and modes (RFC 9669 sections 3 to 5), as whole opcodes.

/// Loads a byte.
pub const LOAD_U8: u8 = 0x71;
/// Loads two bytes.
pub const LOAD_U16: u8 = 0x69;
/// Loads four bytes.
pub const LOAD_U32: u8 = 0x61;
/// Loads eight bytes.
pub const LOAD_U64: u8 = 0x79;
/// Loads a constant of eight bytes, in two instructions.
pub const LOAD_IMMEDIATE_64: u8 = 0x18;
/// Stores four bytes of a register.
pub const STORE_U32: u8 = 0x63;
/// Stores eight bytes of a register.
pub const STORE_U64: u8 = 0x7b;
/// Stores a constant as four bytes.
pub const STORE_IMMEDIATE_U32: u8 = 0x62;
/// Stores a constant as eight bytes.
pub const STORE_IMMEDIATE_U64: u8 = 0x7a;
/// Adds a register.
pub const ADD: u8 = 0x0f;
/// Adds a constant.
pub const ADD_IMMEDIATE: u8 = 0x07;
/// Subtracts a register.
pub const SUBTRACT: u8 = 0x1f;
/// Keeps the bits of a constant.
pub const AND_IMMEDIATE: u8 = 0x57;
/// Sets the bits of a constant.
pub const OR_IMMEDIATE: u8 = 0x47;
/// Sets the bits of a register.
pub const OR: u8 = 0x4f;
/// Shifts left by a constant.
pub const SHIFT_LEFT_IMMEDIATE: u8 = 0x67;
/// Turns a number of the network's byte order, of as many bits as the constant says, into one of
/// the machine's.
pub const FROM_NETWORK: u8 = 0xdc;
/// Copies a register.
pub const MOVE: u8 = 0xbf;
/// Copies the low half of a register.
pub const MOVE_32: u8 = 0xbc;
/// Sets a register to a constant.
pub const MOVE_IMMEDIATE: u8 = 0xb7;
/// Keeps the bits of a register in the low half.
pub const AND_32: u8 = 0x5c;
/// Jumps.
pub const JUMP: u8 = 0x05;
/// Jumps if two registers are equal.
pub const JUMP_EQUAL: u8 = 0x1d;
/// Jumps if a register is equal to a constant.
pub const JUMP_EQUAL_IMMEDIATE: u8 = 0x15;
/// Jumps if two registers differ.
pub const JUMP_NOT_EQUAL: u8 = 0x5d;
/// Jumps if a register differs from a constant.
pub const JUMP_NOT_EQUAL_IMMEDIATE: u8 = 0x55;
/// Jumps if the first register is greater.
pub const JUMP_GREATER: u8 = 0x2d;
/// Jumps if a register is less than a constant.
pub const JUMP_LESS_IMMEDIATE: u8 = 0xa5;
/// Jumps if a register is at most a constant.
pub const JUMP_AT_MOST_IMMEDIATE: u8 = 0xb5;
/// Jumps if a register has any bit of a constant.
pub const JUMP_BITS_IMMEDIATE: u8 = 0x45;
/// Calls a function of the kernel.
pub const CALL: u8 = 0x85;
/// Ends the program.
pub const EXIT: u8 = 0x95;

/// The register that points behind the program's stack.
pub const STACK: u8 = 10;

/// Value of the source register of a 64-bit load whose immediate is a map's descriptor.
pub(crate) const MAP_DESCRIPTOR: u8 = 1;

/// Encodes one instruction: opcode, registers, offset, immediate (RFC 9669 section 3.1, little
/// endian).
#[must_use]
pub const fn encode(opcode: u8, to: u8, from: u8, offset: i16, immediate: u32) -> u64 {
    (opcode as u64)
        | ((to as u64) << 8)
        | ((from as u64) << 12)
        | ((offset as u16 as u64) << 16)
        | ((immediate as u64) << 32)
}

/// Assembles instructions with forward jumps to labels of type `L`.
#[derive(Debug)]
pub struct Assembler<L> {
    code: Vec<u64>,
    jumps: Vec<(usize, L)>,
}

impl<L: Copy + PartialEq + core::fmt::Debug> Default for Assembler<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Copy + PartialEq + core::fmt::Debug> Assembler<L> {
    /// Begins a program.
    #[must_use]
    pub fn new() -> Self {
        Self { code: Vec::new(), jumps: Vec::new() }
    }

    /// Appends an instruction.
    pub fn put(&mut self, opcode: u8, to: u8, from: u8, offset: i16, immediate: u32) {
        self.code.push(encode(opcode, to, from, offset, immediate));
    }

    /// Appends a jump, by this opcode, to a label that is placed later.
    pub fn jump(&mut self, opcode: u8, left: u8, right: u8, immediate: u32, label: L) {
        self.jumps.push((self.code.len(), label));
        self.put(opcode, left, right, 0, immediate);
    }

    /// Loads the address of the map with this descriptor.
    pub fn map(&mut self, to: u8, descriptor: i32) {
        self.put(LOAD_IMMEDIATE_64, to, MAP_DESCRIPTOR, 0, descriptor as u32);
        self.put(0, 0, 0, 0, 0);
    }

    /// Places `label` here and resolves the jumps to it: their offsets count from the instruction
    /// after the jump.
    pub fn place(&mut self, label: L) {
        let here = self.code.len();
        self.jumps.retain(|&(from, to)| {
            if to == label {
                self.code[from] |= ((here - from - 1) as u64 & 0xffff) << 16;
            }
            to != label
        });
    }

    /// Returns the program.
    #[must_use]
    pub fn finish(self) -> Vec<u64> {
        debug_assert!(self.jumps.is_empty(), "a jump to a label that was not placed: {:?}", self.jumps);
        self.code
    }
}
