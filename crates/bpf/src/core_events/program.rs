//! The eBPF programs, as instructions, that write down what happens on a core.
//!
//! Owns the programs and the layout of what they write; makes no system call. Each program runs at
//! one tracepoint and writes one record into the ring: that the current thread leaves the core, or
//! that an interrupt begins or ends. No program reads the memory of the kernel. One that finds the
//! ring full counts that in the record of its core, and does nothing else.

use crate::assembler::{
    ADD_IMMEDIATE, Assembler, CALL, EXIT, JUMP_EQUAL_IMMEDIATE, LOAD_U64, MOVE, MOVE_IMMEDIATE, OR_IMMEDIATE,
    STACK, STORE_IMMEDIATE_U64, STORE_U32, STORE_U64,
};
use crate::core_time::helpers::{COMMAND, COMMAND_LEN, CORE, LOOKUP, NANOSECONDS, THREAD};

/// `bpf_ringbuf_output(ring, data, size, flags)` (linux/bpf.h).
const OUTPUT: u32 = 130;
/// `BPF_RB_NO_WAKEUP`: nothing waits for the ring.
const NO_WAKEUP: u32 = 1;

/// What is written: time in nanoseconds; core and [`What`], and in the high half how many records
/// of the core were lost before; thread number, and that of the process in the high half; name of
/// the thread.
pub(super) type Record = [u64; 3 + COMMAND_LEN / 8];

/// Of a core: whether it is watched, and the number of records for which the ring had no room.
pub(super) type Core = [u64; 2];

/// What a record is about: above the number of the core, which has 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The current thread leaves the core.
    Switch,
    /// The interrupt of this number begins.
    Begin(u16),
    /// It ends.
    End(u16),
}

impl What {
    fn bits(self) -> u32 {
        match self {
            What::Switch => 0,
            What::Begin(number) => 1 | u32::from(number) << 2,
            What::End(number) => 2 | u32::from(number) << 2,
        }
    }

    /// Returns what the second word of a record says, and its core.
    pub(super) fn of(word: u64) -> Option<(u16, Self)> {
        let bits = word as u32 >> 16;
        let number = (bits >> 2) as u16;
        let what = match bits & 3 {
            0 => What::Switch,
            1 => What::Begin(number),
            2 => What::End(number),
            _ => return None,
        };
        Some((word as u16, what))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Done,
}

/// Registers that survive calls.
const STATE: u8 = 7;
const HERE: u8 = 9;

/// The record on the stack, and the key before it.
const RECORD: i16 = -(size_of::<Record>() as i16);
const KEY: i16 = RECORD - 8;

/// Returns the program that writes `what`.
pub(super) fn write(cores: i32, ring: i32, what: What) -> Vec<u64> {
    let mut asm = Assembler::new();
    asm.put(CALL, 0, 0, 0, CORE);
    asm.put(MOVE, HERE, 0, 0, 0);
    asm.put(STORE_U32, STACK, 0, KEY, 0);
    asm.put(MOVE, 2, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(KEY) as u32);
    asm.map(1, cores);
    asm.put(CALL, 0, 0, 0, LOOKUP);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Done);
    asm.put(MOVE, STATE, 0, 0, 0);
    asm.put(LOAD_U64, 1, STATE, 0, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 1, 0, 0, Label::Done);
    asm.put(CALL, 0, 0, 0, NANOSECONDS);
    asm.put(STORE_U64, STACK, 0, RECORD, 0);
    asm.put(OR_IMMEDIATE, HERE, 0, 0, what.bits() << 16);
    asm.put(STORE_U32, STACK, HERE, RECORD + 8, 0);
    asm.put(LOAD_U64, 1, STATE, 8, 0);
    asm.put(STORE_U32, STACK, 1, RECORD + 12, 0);
    asm.put(CALL, 0, 0, 0, THREAD);
    asm.put(STORE_U64, STACK, 0, RECORD + 16, 0);
    for word in 0..COMMAND_LEN / 8 {
        asm.put(STORE_IMMEDIATE_U64, STACK, 0, RECORD + 24 + 8 * word as i16, 0);
    }
    if what == What::Switch {
        asm.put(MOVE, 1, STACK, 0, 0);
        asm.put(ADD_IMMEDIATE, 1, 0, 0, i32::from(RECORD + 24) as u32);
        asm.put(MOVE_IMMEDIATE, 2, 0, 0, COMMAND_LEN as u32);
        asm.put(CALL, 0, 0, 0, COMMAND);
    }
    asm.map(1, ring);
    asm.put(MOVE, 2, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(RECORD) as u32);
    asm.put(MOVE_IMMEDIATE, 3, 0, 0, size_of::<Record>() as u32);
    asm.put(MOVE_IMMEDIATE, 4, 0, 0, NO_WAKEUP);
    asm.put(CALL, 0, 0, 0, OUTPUT);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Done);
    asm.put(LOAD_U64, 1, STATE, 8, 0);
    asm.put(ADD_IMMEDIATE, 1, 0, 0, 1);
    asm.put(STORE_U64, STATE, 1, 8, 0);
    asm.place(Label::Done);
    asm.put(MOVE_IMMEDIATE, 0, 0, 0, 0);
    asm.put(EXIT, 0, 0, 0, 0);
    asm.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for what in [What::Switch, What::Begin(0), What::End(12), What::Begin((1 << 13) - 1)] {
            let word = u64::from(what.bits() << 16) | 7;
            assert!(what.bits() << 16 < 1 << 31, "an immediate is extended by its sign");
            assert_eq!(What::of(word), Some((7, what)));
            assert_eq!(What::of(word | 0xffff_ffff << 32), Some((7, what)), "lost records are above");
        }
        assert_eq!(What::of(3 << 16), None);
    }
}
