//! The steps of an owner and of two threads that close its descriptors, in every order.
//!
//! A store waits in its thread's buffer until an arbitrary later step; a thread reads its own
//! buffer first, and a read-modify-write or a barrier empties it (x86-TSO, Sewell et al., CACM
//! 2010). The owner makes three calls: on the first descriptor, the second, the first.

use std::collections::HashSet;

const BIAS: usize = 0;
const USING: usize = 2;
const GIVEN: usize = 3;
const RELEASED: usize = 4;
const TURN: usize = 6;
/// No descriptor in `USING` and `GIVEN`.
const NONE: i8 = -1;
const CALLS: [i8; 3] = [0, 1, 0];

/// What the model leaves out, to see that it is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Barrier,
    LookAtGiven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Begin,
    Store,
    Recheck,
    Use,
    Leave,
    LookAtGiven,
    Take,
    TakeAway,
    Lock,
    Check,
    Give,
    Barrier,
    Look,
    TakeBack,
    Release,
    Unlock,
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    memory: [i8; 7],
    /// Of the owner, and of the two that close.
    buffers: [Vec<(usize, i8)>; 3],
    at: [At; 3],
    call: usize,
    in_use: i8,
}

impl State {
    fn read(&self, thread: usize, word: usize) -> i8 {
        let own = self.buffers[thread].iter().rev().find(|(stored, _)| *stored == word);
        own.map_or(self.memory[word], |(_, value)| *value)
    }

    fn store(&mut self, thread: usize, word: usize, value: i8) {
        self.buffers[thread].push((word, value));
    }

    fn drain(&mut self, thread: usize) {
        for (word, value) in core::mem::take(&mut self.buffers[thread]) {
            self.memory[word] = value;
        }
    }

    fn exchange(&mut self, thread: usize, word: usize, value: i8) -> i8 {
        self.drain(thread);
        core::mem::replace(&mut self.memory[word], value)
    }

    fn release(&mut self, thread: usize, descriptor: i8) -> Result<(), &'static str> {
        self.drain(thread);
        if self.in_use == descriptor {
            return Err("released in use");
        }
        let before = core::mem::replace(&mut self.memory[RELEASED + descriptor as usize], 1);
        if before == 0 { Ok(()) } else { Err("released twice") }
    }

    /// Makes the owner's next step; false if it has none.
    fn step_owner(&mut self) -> Result<bool, &'static str> {
        let descriptor = CALLS.get(self.call).copied();
        let bias = descriptor.map_or(0, |descriptor| self.read(0, BIAS + descriptor as usize));
        self.at[0] = match (self.at[0], descriptor) {
            (At::Begin, None) => return Ok(false),
            (At::Begin, Some(_)) if bias == 1 => At::Store,
            (At::Store, Some(descriptor)) => {
                self.store(0, USING, descriptor);
                At::Recheck
            }
            (At::Recheck, Some(descriptor)) if bias == 1 => {
                self.in_use = descriptor;
                At::Use
            }
            (At::Recheck, _) => At::Leave,
            (At::Use, Some(descriptor)) if self.memory[RELEASED + descriptor as usize] == 1 => {
                return Err("used after its release");
            }
            (At::Use, _) => {
                self.in_use = NONE;
                At::Leave
            }
            (At::Leave, _) => {
                self.store(0, USING, NONE);
                At::LookAtGiven
            }
            (At::LookAtGiven, _) if self.read(0, GIVEN) != NONE => At::Take,
            (At::Take, _) => {
                let given = self.exchange(0, GIVEN, NONE);
                if given != NONE {
                    self.release(0, given)?;
                }
                self.call += 1;
                At::Begin
            }
            _ => {
                self.call += 1;
                At::Begin
            }
        };
        Ok(true)
    }

    /// Makes the next step of the thread that closes `descriptor`; false if it has none.
    fn step_close(&mut self, descriptor: i8, without: Without) -> Result<bool, &'static str> {
        let me = 1 + descriptor as usize;
        self.at[me] = match self.at[me] {
            At::TakeAway => {
                self.exchange(me, BIAS + descriptor as usize, 0);
                At::Lock
            }
            At::Lock if self.memory[TURN] == 1 => return Ok(false),
            At::Lock => {
                self.exchange(me, TURN, 1);
                At::Check
            }
            At::Check if without != Without::LookAtGiven && self.read(me, GIVEN) != NONE => At::Release,
            At::Check => At::Give,
            At::Give => {
                self.store(me, GIVEN, descriptor);
                At::Barrier
            }
            At::Barrier => {
                self.drain(me);
                if without != Without::Barrier {
                    self.drain(0);
                }
                At::Look
            }
            At::Look if self.read(me, USING) == descriptor => At::Unlock,
            At::Look => At::TakeBack,
            At::TakeBack => {
                self.drain(me);
                if self.memory[GIVEN] == descriptor {
                    self.memory[GIVEN] = NONE;
                    self.release(me, descriptor)?;
                }
                At::Unlock
            }
            At::Release => {
                self.release(me, descriptor)?;
                At::Unlock
            }
            At::Unlock => {
                self.store(me, TURN, 0);
                At::End
            }
            _ => return Ok(false),
        };
        Ok(true)
    }
}

/// Returns what is wrong with an order of the steps, if one is.
fn explore(without: Without) -> Result<usize, &'static str> {
    let mut waiting = vec![State {
        memory: [1, 1, NONE, NONE, 0, 0, 0],
        buffers: Default::default(),
        at: [At::Begin, At::TakeAway, At::TakeAway],
        call: 0,
        in_use: NONE,
    }];
    let mut seen = HashSet::new();
    while let Some(state) = waiting.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let before = waiting.len();
        for thread in 0..3 {
            let mut later = state.clone();
            if !later.buffers[thread].is_empty() {
                let (word, value) = later.buffers[thread].remove(0);
                later.memory[word] = value;
                waiting.push(later);
            }
            let mut next = state.clone();
            let moved =
                if thread == 0 { next.step_owner() } else { next.step_close(thread as i8 - 1, without) };
            if moved? {
                waiting.push(next);
            }
        }
        if waiting.len() == before && state.memory[RELEASED..TURN] != [1, 1] {
            return Err("never released");
        }
    }
    Ok(seen.len())
}

#[test]
fn a_closed_descriptor_is_released_once_after_its_calls_in_every_order() {
    let states = explore(Without::Nothing).unwrap();
    assert!(states > 1000, "{states}");
}

#[test]
fn the_barrier_and_the_look_at_what_was_given_are_needed() {
    assert!(explore(Without::Barrier).is_err());
    assert!(explore(Without::LookAtGiven).is_err());
}
