//! Which constants a register may hold at an instruction: a backward search through one function.
//!
//! The search follows moves between registers and every branch of the function. It gives up, with
//! [`Value::Unknown`], at a branch from elsewhere, at a call for a register that calls change, and
//! at every write that is no move of a constant or register. So a set of constants is complete,
//! unless an indirect jump leads into the middle of what was searched. The caller's `is_target`
//! therefore includes what [`Code::table_targets`] returns.

use crate::image::Image;
use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Entries read of what may be a jump table.
const MAX_ENTRIES: usize = 1024;

/// The instructions of one function, in order of their addresses.
#[derive(Debug)]
pub struct Code {
    instructions: Vec<Instruction>,
    /// Index of the branching instruction by its target, in order of the targets.
    branches: Vec<(u64, usize)>,
}

/// What a register may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One of these.
    Constants(BTreeSet<u64>),
    /// What the function was called with in this register.
    Argument(Register),
    /// Anything.
    Unknown,
}

impl Code {
    /// Decodes the function at `address`.
    pub fn decode(bytes: &[u8], address: u64) -> Self {
        let decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let instructions: Vec<_> = decoder.into_iter().collect();
        let target = |(index, instruction): (usize, &Instruction)| {
            direct_target(instruction).map(|target| (target, index))
        };
        let mut branches: Vec<_> = instructions.iter().enumerate().filter_map(target).collect();
        branches.sort_unstable();
        Self { instructions, branches }
    }

    /// Returns the instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the addresses that the function's jump tables lead to, and a few more: whatever its
    /// constants could be read as tables of. Empty without an indirect jump.
    pub fn table_targets(&self, image: &Image<'_>) -> Vec<u64> {
        if !self.instructions.iter().any(|i| i.flow_control() == FlowControl::IndirectBranch) {
            return Vec::new();
        }
        let is_address = |i: &&Instruction| i.code() == Opcode::Lea_r64_m && i.is_ip_rel_memory_operand();
        let addresses = self.instructions.iter().filter(is_address).map(Instruction::ip_rel_memory_address);
        let (labels, mut tables): (Vec<u64>, Vec<u64>) = addresses.partition(|&at| image.is_code(at));
        tables.sort_unstable();
        tables.dedup();
        let mut targets = Vec::new();
        for (index, &table) in tables.iter().enumerate() {
            let end = tables.get(index + 1).copied().unwrap_or(u64::MAX);
            // Offsets from the table, or, for a computed goto, from a label.
            for &base in labels.iter().chain([&table]) {
                targets.extend(table_of(image, table..end, base));
            }
        }
        targets
    }

    /// Returns the constants that `register`, a 64-bit one, may hold before instruction `index`,
    /// truncated to 32 bits. `is_target` says whether any direct branch of the library leads to an
    /// address.
    pub fn value_before(&self, index: usize, register: Register, is_target: impl Fn(u64) -> bool) -> Value {
        let (info, constants) = (InstructionInfoFactory::new(), BTreeSet::new());
        let mut search = Search { code: self, info, constants, argument: None };
        let mut seen = HashSet::new();
        let mut todo = vec![(index, register)];
        while let Some(step) = todo.pop() {
            if seen.insert(step) && !search.step(step, &mut todo, &is_target) {
                let sole = search.constants.is_empty() && todo.is_empty();
                return search.argument.filter(|_| sole).map_or(Value::Unknown, Value::Argument);
            }
        }
        Value::Constants(search.constants)
    }

    /// Returns the instructions of this function that branch to `address`.
    fn sources(&self, address: u64) -> impl Iterator<Item = usize> {
        let first = self.branches.partition_point(|&(target, _)| target < address);
        self.branches[first..].iter().take_while(move |b| b.0 == address).map(|b| b.1)
    }
}

/// Returns where the 32-bit offsets from `base` in `table` lead, up to the first that leads to no
/// code.
fn table_of(image: &Image<'_>, table: Range<u64>, base: u64) -> impl Iterator<Item = u64> {
    let len = usize::try_from(table.end - table.start).unwrap_or(usize::MAX);
    let bytes = image.from(table.start);
    let entries = bytes[..bytes.len().min(len)].chunks_exact(4).take(MAX_ENTRIES);
    entries
        .map(move |entry| {
            let offset = i32::from_le_bytes(entry.try_into().expect("four bytes"));
            base.wrapping_add_signed(offset.into())
        })
        .take_while(|&target| image.is_code(target))
}

/// Returns where a direct jump leads. Calls are none: they come back.
pub fn direct_target(instruction: &Instruction) -> Option<u64> {
    let jumps = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::XbeginXabortXend
    );
    (jumps && instruction.is_jcc_short_or_near()
        || instruction.is_jmp_short_or_near()
        || is_loop(instruction))
    .then(|| instruction.near_branch_target())
}

fn is_loop(instruction: &Instruction) -> bool {
    instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short()
}

struct Search<'c> {
    code: &'c Code,
    info: InstructionInfoFactory,
    constants: BTreeSet<u64>,
    /// The register in question at the function's beginning, if the search came there.
    argument: Option<Register>,
}

impl Search<'_> {
    /// Goes from before instruction `index` to the ends of all instructions that may have run
    /// before it; returns false if any of them is not known.
    fn step(
        &mut self,
        (index, register): (usize, Register),
        todo: &mut Vec<(usize, Register)>,
        is_target: impl Fn(u64) -> bool,
    ) -> bool {
        let Some(instruction) = self.code.instructions.get(index) else { return false };
        let sources: Vec<_> = self.code.sources(instruction.ip()).collect();
        if sources.is_empty() && is_target(instruction.ip()) {
            return false;
        }
        let mut any = false;
        for source in sources {
            any = true;
            if !self.before_end_of(source, register, todo) {
                return false;
            }
        }
        let Some(previous) = index.checked_sub(1) else {
            self.argument = Some(register);
            return false;
        };
        let falls_through = !matches!(
            self.code.instructions[previous].flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        );
        if !falls_through {
            // Padding that nothing leads to never runs.
            return any || instruction.mnemonic() == Mnemonic::Nop;
        }
        if self.is_zero_behind(previous, register) {
            self.constants.insert(0);
            return true;
        }
        self.before_end_of(previous, register, todo)
    }

    /// Returns whether instruction `index` is a jump that is taken unless `register` is zero.
    fn is_zero_behind(&self, index: usize, register: Register) -> bool {
        let jump = self.code.instructions[index];
        let Some(test) = index.checked_sub(1).map(|before| self.code.instructions[before]) else {
            return false;
        };
        let tests = matches!(test.code(), Opcode::Test_rm32_r32 | Opcode::Test_rm64_r64)
            && test.op0_kind() == OpKind::Register
            && test.op0_register() == test.op1_register()
            && test.op0_register().full_register() == register;
        tests && matches!(jump.code(), Opcode::Jne_rel8_64 | Opcode::Jne_rel32_64)
    }

    /// Considers instruction `index`, after which `register` holds what is looked for.
    fn before_end_of(&mut self, index: usize, register: Register, todo: &mut Vec<(usize, Register)>) -> bool {
        let instruction = self.code.instructions[index];
        let is_system_call = instruction.code() == Opcode::Syscall;
        let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        if is_system_call && register == Register::RAX
            || is_call && !is_system_call && !is_preserved(register)
        {
            return false;
        }
        let writes = self.info.info(&instruction).used_registers().iter().any(|used| {
            used.register().full_register() == register
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
        });
        if !writes {
            todo.push((index, register));
            return true;
        }
        match source_of(&instruction) {
            Some(Source::Constant(constant)) => {
                self.constants.insert(constant);
                true
            }
            Some(Source::Register(source)) => {
                todo.push((index, source));
                true
            }
            None => false,
        }
    }
}

enum Source {
    Constant(u64),
    Register(Register),
}

/// Returns what a move of 32 or 64 bits to a register moves.
fn source_of(instruction: &Instruction) -> Option<Source> {
    match instruction.code() {
        Opcode::Mov_r32_imm32 | Opcode::Mov_rm32_imm32 | Opcode::Mov_r64_imm64 | Opcode::Mov_rm64_imm32 => {
            Some(Source::Constant(instruction.immediate(1) & u64::from(u32::MAX)))
        }
        Opcode::Mov_r32_rm32 | Opcode::Mov_rm32_r32 | Opcode::Mov_r64_rm64 | Opcode::Mov_rm64_r64
            if instruction.op1_kind() == OpKind::Register =>
        {
            Some(Source::Register(instruction.op1_register().full_register()))
        }
        Opcode::Xor_r32_rm32 | Opcode::Xor_rm32_r32
            if instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register() =>
        {
            Some(Source::Constant(0))
        }
        _ => None,
    }
}

/// Returns whether calls preserve a register (System V ABI, 3.2.1).
fn is_preserved(register: Register) -> bool {
    use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
    matches!(register, RBX | RBP | RSP | R12 | R13 | R14 | R15)
}
