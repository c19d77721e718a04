//! Instructions in words, for the message about a program that the kernel refuses.
//!
//! Owns the names of the instructions that [`assembler`](crate::assembler) makes; any other is
//! shown as its number. Pure. The kernel's verifier names an instruction by its index, so each line
//! begins with that.

use crate::assembler::{
    ADD, ADD_IMMEDIATE, AND_32, AND_IMMEDIATE, CALL, EXIT, FROM_NETWORK, JUMP, JUMP_AT_MOST_IMMEDIATE,
    JUMP_BITS_IMMEDIATE, JUMP_EQUAL, JUMP_EQUAL_IMMEDIATE, JUMP_GREATER, JUMP_LESS_IMMEDIATE, JUMP_NOT_EQUAL,
    JUMP_NOT_EQUAL_IMMEDIATE, LOAD_IMMEDIATE_64, LOAD_U8, LOAD_U16, LOAD_U32, LOAD_U64, MAP_DESCRIPTOR, MOVE,
    MOVE_32, MOVE_IMMEDIATE, OR, OR_IMMEDIATE, SHIFT_LEFT_IMMEDIATE, STORE_IMMEDIATE_U32,
    STORE_IMMEDIATE_U64, STORE_U32, STORE_U64, SUBTRACT,
};

/// Returns one line for each instruction: its index, and what it does.
pub(crate) fn disassemble(code: &[u64]) -> Vec<String> {
    let mut lines = Vec::with_capacity(code.len());
    let mut rest = code.iter().enumerate();
    while let Some((index, &instruction)) = rest.next() {
        lines.push(format!("{index}: {}", line(index, instruction)));
        if opcode(instruction) == LOAD_IMMEDIATE_64 {
            // Its second half has the high bytes of the constant, which for a map are zero.
            rest.next();
        }
    }
    lines
}

const fn opcode(instruction: u64) -> u8 {
    instruction as u8
}

/// Returns what one instruction does; jumps name the index of the instruction that they go to.
fn line(index: usize, instruction: u64) -> String {
    let (to, from) = (instruction >> 8 & 0xf, instruction >> 12 & 0xf);
    let offset = (instruction >> 16) as i16;
    let immediate = (instruction >> 32) as i32;
    let target = index as i64 + 1 + i64::from(offset);
    let load = |bits: u32| format!("r{to} = u{bits} at r{from}{offset:+}");
    let store = |bits: u32| format!("u{bits} at r{to}{offset:+} = r{from}");
    let store_constant = |bits: u32| format!("u{bits} at r{to}{offset:+} = {immediate:#x}");
    match opcode(instruction) {
        LOAD_U8 => load(8),
        LOAD_U16 => load(16),
        LOAD_U32 => load(32),
        LOAD_U64 => load(64),
        LOAD_IMMEDIATE_64 if from == u64::from(MAP_DESCRIPTOR) => {
            format!("r{to} = map of descriptor {immediate}")
        }
        LOAD_IMMEDIATE_64 => format!("r{to} = {immediate:#x}, of 64 bits"),
        STORE_U32 => store(32),
        STORE_U64 => store(64),
        STORE_IMMEDIATE_U32 => store_constant(32),
        STORE_IMMEDIATE_U64 => store_constant(64),
        ADD => format!("r{to} += r{from}"),
        ADD_IMMEDIATE => format!("r{to} += {immediate}"),
        SUBTRACT => format!("r{to} -= r{from}"),
        AND_IMMEDIATE => format!("r{to} &= {immediate:#x}"),
        AND_32 => format!("w{to} &= w{from}"),
        OR_IMMEDIATE => format!("r{to} |= {immediate:#x}"),
        OR => format!("r{to} |= r{from}"),
        SHIFT_LEFT_IMMEDIATE => format!("r{to} <<= {immediate}"),
        FROM_NETWORK => format!("r{to} = be{immediate} r{to}"),
        MOVE => format!("r{to} = r{from}"),
        MOVE_32 => format!("w{to} = w{from}"),
        MOVE_IMMEDIATE => format!("r{to} = {immediate}"),
        JUMP => format!("go to {target}"),
        JUMP_EQUAL => format!("if r{to} == r{from} go to {target}"),
        JUMP_EQUAL_IMMEDIATE => format!("if r{to} == {immediate:#x} go to {target}"),
        JUMP_NOT_EQUAL => format!("if r{to} != r{from} go to {target}"),
        JUMP_NOT_EQUAL_IMMEDIATE => format!("if r{to} != {immediate:#x} go to {target}"),
        JUMP_GREATER => format!("if r{to} > r{from} go to {target}"),
        JUMP_LESS_IMMEDIATE => format!("if r{to} < {immediate:#x} go to {target}"),
        JUMP_AT_MOST_IMMEDIATE => format!("if r{to} <= {immediate:#x} go to {target}"),
        JUMP_BITS_IMMEDIATE => format!("if r{to} & {immediate:#x} go to {target}"),
        CALL => format!("call helper {immediate}"),
        EXIT => "exit".to_owned(),
        _ => format!("instruction {instruction:#018x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembler::Assembler;

    #[test]
    fn a_program_is_shown_with_the_indices_that_the_verifier_names() {
        let mut asm = Assembler::new();
        asm.put(LOAD_U32, 7, 1, 4, 0);
        asm.map(1, 42);
        asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 7, 0, 0x0608, ());
        asm.put(STORE_IMMEDIATE_U32, 10, 0, -4, 0);
        asm.put(CALL, 0, 0, 0, 51);
        asm.place(());
        asm.put(EXIT, 0, 0, 0, 0);
        asm.put(0xcc, 2, 0, 0, 16);
        let expected = [
            "0: r7 = u32 at r1+4",
            "1: r1 = map of descriptor 42",
            "3: if r7 != 0x608 go to 6",
            "4: u32 at r10-4 = 0x0",
            "5: call helper 51",
            "6: exit",
            "7: instruction 0x00000010000002cc",
        ];
        assert_eq!(disassemble(&asm.finish()), expected);
    }
}
