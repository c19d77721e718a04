//! The eBPF programs, as instructions, that add up on whom a core spends its time.
//!
//! Owns the programs and the layout of what they write; makes no system call. [`switch`] runs at
//! `sched_switch` and enters the time of the thread that is being switched out, which is the
//! current one; so no program reads the memory of the kernel, and none needs the layout of its
//! structures. [`enter`] and [`leave`] run where an interrupt begins and ends; they only divide the
//! time of the current thread. There is one of each for each kind of [`Interrupt`].
//!
//! | map | from | to | written by |
//! |---|---|---|---|
//! | cores | core | [`Record`] | the programs, each on its own core |
//! | threads | kthread | the core it waits for, plus 1, or 0 | this process, then the programs |
//! | strangers | [`Key`]: core, thread and the kthread that waits | [`Strange`]: nanoseconds and names | the programs |
//!
//! A core whose record has [`Field::Since`] 0 is not watched. A thread that is neither a kthread
//! nor idle is a stranger: a program of Linux's or a thread of the kernel, told apart by the
//! reader. It runs at one of two moments: while a kthread waits for the core, having been switched
//! out although it could run on; or while none is known to.
//!
//! What can go wrong inside:
//!
//! - An interrupt in the middle of one of the programs is entered nowhere, since its programs find
//!   [`Field::Busy`] at both ends. Its time stays with the surroundings.
//! - Linux runs no program within itself. Interrupts of one kind do not interrupt each other, so
//!   this misses none. A few handlers call those of other interrupts themselves; what such a
//!   handler does behind the inner one counts as the thread's.
//! - An end that is missed all the same leaves [`Field::Inside`] wrong, for no longer than until
//!   the next interrupt of that kind ends or the thread is switched out. For a hard interrupt
//!   the next beginning or end of a soft one corrects it: soft ones do not occur inside hard ones.
//! - A kthread that waits and is moved to another core counts as waiting for the first one until
//!   it has run.
//! - With more strangers than the map holds, their time is in [`Field::Untold`], by moment.

use super::helpers::{COMMAND, COMMAND_LEN, CORE, LOOKUP, NANOSECONDS, THREAD, UPDATE};
use crate::assembler::{
    ADD, ADD_IMMEDIATE, AND_IMMEDIATE, Assembler, CALL, EXIT, JUMP, JUMP_EQUAL_IMMEDIATE, JUMP_NOT_EQUAL,
    JUMP_NOT_EQUAL_IMMEDIATE, LOAD_U32, LOAD_U64, MOVE, MOVE_32, MOVE_IMMEDIATE, OR_IMMEDIATE, STACK,
    STORE_IMMEDIATE_U32, STORE_IMMEDIATE_U64, STORE_U32, STORE_U64, SUBTRACT,
};

/// What [`switch`] returns if it has entered nothing, having interrupted one of the programs.
pub(super) const FOUND_BUSY: u32 = 1;

/// Arguments of [`switch`] that a reader passes: the thread could run on, and none is named.
pub(super) const LOOK: [u64; 4] = [1, 0, 0, 0];

/// `BPF_NOEXIST`: an update does not replace a value.
const ONLY_NEW: u32 = 1;

/// What a stranger's time is time of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// No kthread is known to wait for the core.
    Free,
    /// A kthread waits for the core.
    Taken,
}

impl Moment {
    /// Offset of this moment's sum among two.
    const fn offset(self) -> i16 {
        8 * self as i16
    }
}

/// What interrupts a thread. A hard interrupt may interrupt a soft one, and none its own kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Soft = 1,
    Hard = 2,
}

/// What the programs write about one core: integers, by [`Field`]. It fills whole lines of the
/// cache, for another core writes the record behind it.
pub(super) type Record = [u64; 16];

const _: () =
    assert!(size_of::<Record>().is_multiple_of(64) && Field::Untold as usize + 2 <= size_of::<Record>() / 8);

/// Whose time a stranger's sum is: its thread number in the low half and the core in the high half;
/// then the kthread that waited meanwhile, 0 for none.
pub(super) type Key = [u64; 2];

/// What is known of a key: nanoseconds; thread number, and that of the process in the high half;
/// the name of the thread, as of the last time that it was switched out.
pub(super) type Strange = [u64; 2 + COMMAND_LEN / 8];

/// Places in a [`Record`]; all but the first six are sums of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// Time up to which everything is entered; 0 where the core is not watched.
    Since,
    /// Nanoseconds that the current thread ran since it was switched in.
    Ran,
    /// Nanoseconds of interrupts since then.
    Interrupted,
    /// Kinds of [`Interrupt`] that have begun and not ended, as bits.
    Inside,
    /// The kthread that was the last to be switched out although it could run on; 0 for none.
    Waiter,
    /// 1 while one of the programs runs.
    Busy,
    /// Kthreads ran.
    Kthreads,
    /// The core was idle, with the interrupts of an idle core.
    Idle,
    /// Interrupts of strangers, by [`Moment`]; those of kthreads are in the second.
    Interrupts,
    /// Strangers that found no place in the map, by [`Moment`].
    Untold = 10,
}

impl Field {
    const fn offset(self) -> i16 {
        self as i16 * 8
    }
}

/// Descriptors of the three maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maps {
    pub(super) cores: i32,
    pub(super) threads: i32,
    pub(super) strangers: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    NotWatched,
    Busy,
    Interrupted,
    Entered,
    Kept,
    Thread,
    Stranger,
    Runnable,
    Sleeps,
    Moment,
    Found,
    Untold,
    Clear,
}

/// Registers that survive calls, by use.
const ARGUMENTS: u8 = 6;
const RECORD: u8 = 7;
const TID: u8 = 8;
const HERE: u8 = 9;
/// Offset of the moment at which a stranger runs; of strangers, no argument is read.
const MOMENT: u8 = 6;

/// The value of a stranger in the map.
const SUMS: u8 = 6;

/// Variables on the stack.
const KEY: i16 = -8;
const WHOSE: i16 = KEY - size_of::<Key>() as i16;
const FRESH: i16 = WHOSE - size_of::<Strange>() as i16;

impl Assembler<Label> {
    /// Looks a key on the stack up in a map; the result is in register 0.
    fn look_up(&mut self, map: i32, key: i16) {
        self.put(MOVE, 2, STACK, 0, 0);
        self.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(key) as u32);
        self.map(1, map);
        self.put(CALL, 0, 0, 0, LOOKUP);
    }

    /// Adds register `from` to a field of the record, through register 1.
    fn add(&mut self, field: Field, from: u8) {
        self.put(LOAD_U64, 1, RECORD, field.offset(), 0);
        self.put(ADD, 1, from, 0, 0);
        self.put(STORE_U64, RECORD, 1, field.offset(), 0);
    }

    /// Leaves the record of this core in its register and the time since the last entry in register
    /// 0; leaves the program if the core is not watched or one of the programs runs there.
    fn begin(&mut self, maps: Maps) {
        self.put(CALL, 0, 0, 0, CORE);
        self.put(MOVE, HERE, 0, 0, 0);
        self.put(STORE_U32, STACK, 0, KEY, 0);
        self.look_up(maps.cores, KEY);
        self.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::NotWatched);
        self.put(MOVE, RECORD, 0, 0, 0);
        self.put(LOAD_U64, 1, RECORD, Field::Since.offset(), 0);
        self.jump(JUMP_EQUAL_IMMEDIATE, 1, 0, 0, Label::NotWatched);
        self.put(LOAD_U64, 1, RECORD, Field::Busy.offset(), 0);
        self.jump(JUMP_NOT_EQUAL_IMMEDIATE, 1, 0, 0, Label::Busy);
        self.put(STORE_IMMEDIATE_U64, RECORD, 0, Field::Busy.offset(), 1);
        self.put(CALL, 0, 0, 0, NANOSECONDS);
        self.put(LOAD_U64, 1, RECORD, Field::Since.offset(), 0);
        self.put(STORE_U64, RECORD, 0, Field::Since.offset(), 0);
        self.put(SUBTRACT, 0, 1, 0, 0);
    }

    /// Enters the time in register 0 as the current thread's or, if one has begun and not ended, as
    /// an interrupt's. Leaves the kinds of those in register 2.
    fn divide(&mut self) {
        self.put(LOAD_U64, 2, RECORD, Field::Inside.offset(), 0);
        self.jump(JUMP_NOT_EQUAL_IMMEDIATE, 2, 0, 0, Label::Interrupted);
        self.add(Field::Ran, 0);
        self.jump(JUMP, 0, 0, 0, Label::Entered);
        self.place(Label::Interrupted);
        self.add(Field::Interrupted, 0);
        self.place(Label::Entered);
    }

    /// Ends the program, and has the jumps of [`begin`](Self::begin) end here. It returns
    /// [`FOUND_BUSY`] or 0.
    fn end(&mut self) {
        self.put(STORE_IMMEDIATE_U64, RECORD, 0, Field::Busy.offset(), 0);
        self.place(Label::NotWatched);
        self.put(MOVE_IMMEDIATE, 0, 0, 0, 0);
        self.put(EXIT, 0, 0, 0, 0);
        self.place(Label::Busy);
        self.put(MOVE_IMMEDIATE, 0, 0, 0, FOUND_BUSY);
        self.put(EXIT, 0, 0, 0, 0);
    }
}

/// Returns the program for the beginning of interrupts of one kind.
pub(super) fn enter(maps: Maps, kind: Interrupt) -> Vec<u64> {
    border(maps, kind, kind as u32)
}

/// Returns the program for the end of interrupts of one kind.
pub(super) fn leave(maps: Maps, kind: Interrupt) -> Vec<u64> {
    border(maps, kind, 0)
}

/// Returns a program behind which an interrupt is within those kinds that may surround it, and
/// within `inside`.
fn border(maps: Maps, kind: Interrupt, inside: u32) -> Vec<u64> {
    let around = match kind {
        Interrupt::Soft => 0,
        Interrupt::Hard => Interrupt::Soft as u32,
    };
    let mut asm = Assembler::new();
    asm.begin(maps);
    asm.divide();
    asm.put(AND_IMMEDIATE, 2, 0, 0, around);
    asm.put(OR_IMMEDIATE, 2, 0, 0, inside);
    asm.put(STORE_U64, RECORD, 2, Field::Inside.offset(), 0);
    asm.end();
    asm.finish()
}

/// Returns the program for a switch of threads. It reads three arguments: whether the thread was
/// preempted, whether there is one at all, and the state it is left in, where 0 is runnable
/// (kernel/sched/core.c, since Linux 5.18; no program that reads an argument that a tracepoint
/// lacks can be attached to it). [`LOOK`] has it enter what has passed as if the current thread had
/// been switched out.
pub(super) fn switch(maps: Maps) -> Vec<u64> {
    let mut asm = Assembler::new();
    asm.put(MOVE, ARGUMENTS, 1, 0, 0);
    asm.begin(maps);
    asm.divide();
    // No interrupt contains a switch, so one that has not ended was missed.
    asm.put(LOAD_U64, 1, ARGUMENTS, 8, 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 1, 0, 0, Label::Kept);
    asm.put(STORE_IMMEDIATE_U64, RECORD, 0, Field::Inside.offset(), 0);
    asm.place(Label::Kept);
    // Whose time it is.
    asm.put(CALL, 0, 0, 0, THREAD);
    asm.put(MOVE_32, TID, 0, 0, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, TID, 0, 0, Label::Thread);
    for part in [Field::Ran, Field::Interrupted] {
        asm.put(LOAD_U64, 2, RECORD, part.offset(), 0);
        asm.add(Field::Idle, 2);
    }
    asm.jump(JUMP, 0, 0, 0, Label::Clear);
    asm.place(Label::Thread);
    asm.put(STORE_U32, STACK, TID, KEY, 0);
    asm.look_up(maps.threads, KEY);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Stranger);
    kthread(&mut asm);
    asm.place(Label::Stranger);
    stranger(&mut asm, maps);
    asm.place(Label::Clear);
    for part in [Field::Ran, Field::Interrupted] {
        asm.put(STORE_IMMEDIATE_U64, RECORD, 0, part.offset(), 0);
    }
    asm.end();
    asm.finish()
}

/// Enters the time of a kthread, whose value in the map register 0 points to, and whether it waits.
fn kthread(asm: &mut Assembler<Label>) {
    asm.put(LOAD_U64, 2, RECORD, Field::Ran.offset(), 0);
    asm.add(Field::Kthreads, 2);
    asm.put(LOAD_U64, 2, RECORD, Field::Interrupted.offset(), 0);
    asm.put(LOAD_U64, 1, RECORD, Field::Interrupts.offset() + Moment::Taken.offset(), 0);
    asm.put(ADD, 1, 2, 0, 0);
    asm.put(STORE_U64, RECORD, 1, Field::Interrupts.offset() + Moment::Taken.offset(), 0);
    asm.put(LOAD_U64, 1, ARGUMENTS, 0, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 1, 0, 0, Label::Runnable);
    asm.put(LOAD_U64, 1, ARGUMENTS, 3 * 8, 0);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 1, 0, 0, Label::Sleeps);
    asm.place(Label::Runnable);
    asm.put(ADD_IMMEDIATE, HERE, 0, 0, 1);
    asm.put(STORE_U32, 0, HERE, 0, 0);
    asm.put(STORE_U64, RECORD, TID, Field::Waiter.offset(), 0);
    asm.jump(JUMP, 0, 0, 0, Label::Clear);
    asm.place(Label::Sleeps);
    asm.put(STORE_IMMEDIATE_U32, 0, 0, 0, 0);
    asm.put(LOAD_U64, 1, RECORD, Field::Waiter.offset(), 0);
    asm.jump(JUMP_NOT_EQUAL, 1, TID, 0, Label::Clear);
    asm.put(STORE_IMMEDIATE_U64, RECORD, 0, Field::Waiter.offset(), 0);
    asm.jump(JUMP, 0, 0, 0, Label::Clear);
}

/// Enters the time of any other thread.
fn stranger(asm: &mut Assembler<Label>, maps: Maps) {
    find_waiter(asm, maps);
    asm.put(LOAD_U64, 2, RECORD, Field::Interrupted.offset(), 0);
    asm.put(MOVE, 0, RECORD, 0, 0);
    add_by_moment(asm, Field::Interrupts.offset());
    // Its own sum, made if it has none.
    asm.put(STORE_U32, STACK, TID, WHOSE, 0);
    asm.put(STORE_U32, STACK, HERE, WHOSE + 4, 0);
    asm.look_up(maps.strangers, WHOSE);
    asm.jump(JUMP_NOT_EQUAL_IMMEDIATE, 0, 0, 0, Label::Found);
    for word in 0..size_of::<Strange>() / 8 {
        asm.put(STORE_IMMEDIATE_U64, STACK, 0, FRESH + 8 * word as i16, 0);
    }
    asm.put(MOVE, 2, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, i32::from(WHOSE) as u32);
    asm.put(MOVE, 3, STACK, 0, 0);
    asm.put(ADD_IMMEDIATE, 3, 0, 0, i32::from(FRESH) as u32);
    asm.put(MOVE_IMMEDIATE, 4, 0, 0, ONLY_NEW);
    asm.map(1, maps.strangers);
    asm.put(CALL, 0, 0, 0, UPDATE);
    asm.look_up(maps.strangers, WHOSE);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Untold);
    asm.place(Label::Found);
    asm.put(MOVE, SUMS, 0, 0, 0);
    asm.put(LOAD_U64, 2, RECORD, Field::Ran.offset(), 0);
    asm.put(LOAD_U64, 1, SUMS, 0, 0);
    asm.put(ADD, 1, 2, 0, 0);
    asm.put(STORE_U64, SUMS, 1, 0, 0);
    // Its names, which a program changes when it starts another one.
    asm.put(CALL, 0, 0, 0, THREAD);
    asm.put(STORE_U64, SUMS, 0, 8, 0);
    asm.put(MOVE, 1, SUMS, 0, 0);
    asm.put(ADD_IMMEDIATE, 1, 0, 0, 16);
    asm.put(MOVE_IMMEDIATE, 2, 0, 0, COMMAND_LEN as u32);
    asm.put(CALL, 0, 0, 0, COMMAND);
    asm.jump(JUMP, 0, 0, 0, Label::Clear);
    asm.place(Label::Untold);
    asm.put(LOAD_U64, 2, RECORD, Field::Ran.offset(), 0);
    asm.put(MOVE, 0, RECORD, 0, 0);
    add_by_moment(asm, Field::Untold.offset());
}

/// Leaves the moment in its register, and in the second half of the key the kthread that waits.
fn find_waiter(asm: &mut Assembler<Label>, maps: Maps) {
    asm.put(MOVE_IMMEDIATE, MOMENT, 0, 0, Moment::Free.offset() as u32);
    asm.put(STORE_IMMEDIATE_U64, STACK, 0, WHOSE + 8, 0);
    asm.put(LOAD_U64, 1, RECORD, Field::Waiter.offset(), 0);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 1, 0, 0, Label::Moment);
    asm.put(STORE_U32, STACK, 1, KEY, 0);
    asm.look_up(maps.threads, KEY);
    asm.jump(JUMP_EQUAL_IMMEDIATE, 0, 0, 0, Label::Moment);
    asm.put(LOAD_U32, 1, 0, 0, 0);
    asm.put(MOVE, 2, HERE, 0, 0);
    asm.put(ADD_IMMEDIATE, 2, 0, 0, 1);
    asm.jump(JUMP_NOT_EQUAL, 1, 2, 0, Label::Moment);
    asm.put(MOVE_IMMEDIATE, MOMENT, 0, 0, Moment::Taken.offset() as u32);
    asm.put(LOAD_U32, 1, STACK, KEY, 0);
    asm.put(STORE_U32, STACK, 1, WHOSE + 8, 0);
    asm.place(Label::Moment);
}

/// Adds register 2 to the sum of the stranger's moment, of the two sums at an offset from register
/// 0.
fn add_by_moment(asm: &mut Assembler<Label>, offset: i16) {
    asm.put(ADD, 0, MOMENT, 0, 0);
    asm.put(LOAD_U64, 1, 0, offset, 0);
    asm.put(ADD, 1, 2, 0, 0);
    asm.put(STORE_U64, 0, 1, offset, 0);
}

#[cfg(test)]
mod tests;
