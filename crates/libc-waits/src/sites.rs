//! Finds the `syscall` instructions of a library that may be futex calls, and what has to be moved
//! to redirect each of them.
//!
//! A site is redirected by a jump of five bytes that takes the place of the instructions before the
//! `syscall`; these are moved into a stub. The `syscall` itself stays where it is, for calls that
//! are not redirected after all. So nothing may jump behind the first of the moved instructions.
//!
//! A `syscall` that is proven to be another call is left alone. One whose number is not known is a
//! site: its stub looks at the number. One that may be a futex call and cannot be redirected is
//! [`Unfit`], and the library as a whole is left alone then: a waiter that is not counted would be
//! missed by a wake that is.

use crate::flow::{Code, Value, direct_target};
use crate::image::{Image, Segment};
use iced_x86::{Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Register};
use std::collections::BTreeSet;
use std::ops::Range;

/// `SYS_futex` on x86-64.
pub const FUTEX: u32 = 202;
/// Bytes of a jump with a 32-bit displacement.
pub const JUMP: usize = 5;
/// Bytes of the `syscall` instruction.
pub const SYSCALL: usize = 2;

/// What is known of the number of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// It is [`FUTEX`], or one of several of which that is one.
    Futex,
    /// It is the function's second argument, as in `__syscall_cancel_arch`. From glibc 2.41 on all
    /// calls at which a thread may be cancelled go through that function, and a thread is cancelled
    /// only between its two labels, where the `syscall` lies.
    Cancellable,
    /// It is not known.
    Any,
}

/// A `syscall` instruction that is redirected.
#[derive(Debug, Clone)]
pub struct Site {
    /// Bounds of the function that it lies in.
    pub function: Range<u64>,
    /// What is known of its number.
    pub number: Number,
    /// The instructions before it that are moved, at least [`JUMP`] bytes.
    pub moved: Vec<Instruction>,
    /// Address of the `syscall`.
    pub syscall: u64,
}

impl Site {
    /// Returns where the jump to the stub is written.
    pub fn start(&self) -> u64 {
        self.moved[0].ip()
    }
}

/// A `syscall` that may be a futex call and cannot be redirected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the system call at {syscall:#x}: {why}")]
pub struct Unfit {
    /// Address of the `syscall`.
    pub syscall: u64,
    /// What is wrong with it.
    pub why: Shape,
}

/// Why a `syscall` cannot be redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shape {
    /// Fewer than five bytes of plain instructions come before it.
    #[error("there is no room for a jump before it")]
    NoRoom,
    /// A branch leads between the instructions that would be moved.
    #[error("a branch leads to it")]
    Target,
    /// It lies outside all functions that are described for unwinding.
    #[error("it lies in no known function")]
    Outside,
}

/// What [`find`] has found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// All sites, in order of their addresses.
    pub sites: Vec<Site>,
    /// What cannot be redirected.
    pub unfit: Vec<Unfit>,
    /// Number of `syscall` instructions that are other calls.
    pub others: usize,
}

/// Finds all sites of `image`.
pub fn find(image: &Image<'_>) -> Found {
    let (mut targets, calling) = survey(image);
    let codes: Vec<_> = calling.iter().map(|f| Code::decode(image.bytes(f), f.start)).collect();
    targets.extend(codes.iter().flat_map(|code| code.table_targets(image)));
    targets.sort_unstable();
    targets.dedup();
    let is_target = |address| targets.binary_search(&address).is_ok();
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    for (function, code) in calling.iter().zip(&codes) {
        for (index, instruction) in code.instructions().iter().enumerate() {
            if instruction.code() == Opcode::Syscall && seen.insert(instruction.ip()) {
                found.add(function, code, index, is_target);
            }
        }
    }
    let strays: Vec<_> = image.executable().flat_map(|segment| strays(segment, image, &seen)).collect();
    for (function, syscall) in strays {
        let code = Code::decode(image.bytes(&(function..syscall + SYSCALL as u64)), function);
        match code.instructions().iter().position(|i| i.ip() == syscall) {
            Some(index) if number(&code, index, is_target).is_none() => found.others += 1,
            _ => found.unfit.push(Unfit { syscall, why: Shape::Outside }),
        }
    }
    found.sites.sort_unstable_by_key(Site::start);
    found
}

impl Found {
    /// Adds the `syscall` at `index` of `code`, which is `function`.
    fn add(
        &mut self,
        function: &Range<u64>,
        code: &Code,
        index: usize,
        is_target: impl Fn(u64) -> bool + Copy,
    ) {
        let syscall = code.instructions()[index].ip();
        let Some(number) = number(code, index, is_target) else {
            self.others += 1;
            return;
        };
        match moved(code, index, is_target) {
            Ok(moved) => self.sites.push(Site { function: function.clone(), number, moved, syscall }),
            Err(why) => self.unfit.push(Unfit { syscall, why }),
        }
    }
}

/// Returns what is known of the number of the system call at `index`, `None` if it is no futex
/// call.
fn number(code: &Code, index: usize, is_target: impl Fn(u64) -> bool) -> Option<Number> {
    match code.value_before(index, Register::RAX, is_target) {
        Value::Constants(numbers) if !numbers.contains(&FUTEX.into()) => None,
        Value::Constants(_) => Some(Number::Futex),
        Value::Argument(Register::RSI) => Some(Number::Cancellable),
        Value::Argument(_) | Value::Unknown => Some(Number::Any),
    }
}

/// Decodes all functions. Returns the targets of their direct branches, and the functions with a
/// `syscall`.
fn survey(image: &Image<'_>) -> (Vec<u64>, Vec<Range<u64>>) {
    let (mut targets, mut calling) = (Vec::new(), Vec::new());
    let mut instruction = Instruction::default();
    for function in image.functions() {
        let mut decoder = Decoder::with_ip(64, image.bytes(function), function.start, DecoderOptions::NONE);
        let mut calls = false;
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            calls |= instruction.code() == Opcode::Syscall;
            targets.extend(direct_target(&instruction));
        }
        if calls {
            calling.push(function.clone());
        }
    }
    (targets, calling)
}

/// Returns the instructions to move for the `syscall` at `index`.
fn moved(code: &Code, index: usize, is_target: impl Fn(u64) -> bool) -> Result<Vec<Instruction>, Shape> {
    let instructions = code.instructions();
    if is_target(instructions[index].ip()) {
        return Err(Shape::Target);
    }
    let mut first = index;
    let mut bytes = 0;
    while bytes < JUMP {
        if first != index && is_target(instructions[first].ip()) {
            return Err(Shape::Target);
        }
        first = first.checked_sub(1).ok_or(Shape::NoRoom)?;
        let instruction = &instructions[first];
        if instruction.flow_control() != FlowControl::Next || instruction.is_invalid() {
            return Err(Shape::NoRoom);
        }
        bytes += instruction.len();
    }
    Ok(instructions[first..index].to_vec())
}

/// Returns the addresses of bytes outside all functions that read as a `syscall`, each with the
/// beginning of the last function before it: `clone` ends the description of its frame before its
/// system call, because there is none to unwind in the child.
fn strays(segment: &Segment<'_>, image: &Image<'_>, seen: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let opcode = [0x0f, 0x05];
    let candidates = segment.bytes.windows(SYSCALL).enumerate().filter(|(_, window)| *window == opcode);
    let addresses = candidates.map(|(offset, _)| segment.address + offset as u64);
    let functions = image.functions();
    addresses
        .filter_map(|at| {
            let after = functions.partition_point(|function| function.start <= at);
            let last = functions[..after].last();
            let outside = !seen.contains(&at) && last.is_none_or(|function| function.end <= at);
            outside.then(|| (last.map_or(at, |function| function.start), at))
        })
        .collect()
}
