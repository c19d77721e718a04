//! The table of requests in flight.
//!
//! Owns the numbers of requests that were sent and not yet answered or given up on. Requests are
//! numbered in the order in which they fall due, so the table is a ring over a window of numbers,
//! and the oldest entry expires first.
//!
//! Invariants: `oldest <= next <= oldest + slots`; if `oldest < next`, the slot of `oldest` is
//! waiting. A full table refuses entries; each slot is passed over once per use.

use crate::protocol::Ticket;

/// Number of a request within a run, from 0.
pub(crate) type Sequence = u64;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Outstanding {
    slots: Box<[Slot]>,
    /// The first number still waited for.
    oldest: Sequence,
    /// The number of the next request.
    next: Sequence,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Waiting { due_ns: u64, ticket: Ticket },
    Answered,
}

/// The meaning of a reply's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The first reply to a request that was waited for.
    First {
        /// When that was due.
        due_ns: u64,
        /// Its ticket.
        ticket: Ticket,
    },
    /// Its request was answered before.
    Duplicate,
    /// Its number was settled so long ago that its outcome is forgotten: given up on, or answered.
    Stale,
    /// No such request was sent.
    Unknown,
}

impl Outstanding {
    /// Creates a table with `slots` slots, a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "slots are found by masking");
        Self { slots: vec![Slot::Answered; slots].into_boxed_slice(), oldest: 0, next: 0 }
    }

    /// Enters the next request; `None` when the table is full.
    pub(crate) fn insert(&mut self, due_ns: u64, ticket: Ticket) -> Option<Sequence> {
        if self.next - self.oldest == self.slots.len() as u64 {
            return None;
        }
        let sequence = self.next;
        *self.slot_mut(sequence) = Slot::Waiting { due_ns, ticket };
        self.next += 1;
        Some(sequence)
    }

    /// Settles the request that a reply claims to answer.
    pub(crate) fn answer(&mut self, sequence: Sequence) -> Answer {
        if sequence >= self.next {
            return Answer::Unknown;
        }
        if sequence < self.oldest {
            return Answer::Stale;
        }
        match *self.slot_mut(sequence) {
            Slot::Answered => Answer::Duplicate,
            Slot::Waiting { due_ns, ticket } => {
                *self.slot_mut(sequence) = Slot::Answered;
                self.pass_answered();
                Answer::First { due_ns, ticket }
            }
        }
    }

    /// Returns the number of the next request.
    pub(crate) fn next(&self) -> Sequence {
        self.next
    }

    /// Returns true if `sequence` is still waited for.
    pub(crate) fn is_waiting(&self, sequence: Sequence) -> bool {
        (self.oldest..self.next).contains(&sequence)
            && matches!(self.slots[self.index(sequence)], Slot::Waiting { .. })
    }

    /// Gives up on the oldest request if it was due before `before_ns`; returns its due time and
    /// its ticket.
    pub(crate) fn poll_expired(&mut self, before_ns: u64) -> Option<(u64, Ticket)> {
        let expired = self.oldest_waiting().filter(|&(due_ns, _)| due_ns < before_ns)?;
        self.oldest += 1;
        self.pass_answered();
        Some(expired)
    }

    /// Returns the due time of the oldest request that is waited for.
    pub(crate) fn oldest_due(&self) -> Option<u64> {
        self.oldest_waiting().map(|(due_ns, _)| due_ns)
    }

    fn oldest_waiting(&self) -> Option<(u64, Ticket)> {
        if self.oldest == self.next {
            return None;
        }
        match self.slots[self.index(self.oldest)] {
            Slot::Waiting { due_ns, ticket } => Some((due_ns, ticket)),
            // Never: the oldest one is waited for.
            Slot::Answered => None,
        }
    }

    fn pass_answered(&mut self) {
        while self.oldest < self.next && matches!(self.slots[self.index(self.oldest)], Slot::Answered) {
            self.oldest += 1;
        }
    }

    fn index(&self, sequence: Sequence) -> usize {
        sequence as usize & (self.slots.len() - 1)
    }

    fn slot_mut(&mut self, sequence: Sequence) -> &mut Slot {
        &mut self.slots[sequence as usize & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Step {
        Insert,
        Answer { back: u64 },
        Expire { age: u64 },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Insert),
            4 => (0u64..12).prop_map(|back| Step::Answer { back }),
            1 => (0u64..12).prop_map(|age| Step::Expire { age }),
        ]
    }

    proptest! {
        /// The model: every number ever sent, with its due time and whether it is waited for.
        #[test]
        fn the_table_agrees_with_a_map(steps in prop::collection::vec(any_step(), 1..300)) {
            let mut table = Outstanding::new(8);
            let mut model: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
            let oldest = |model: &BTreeMap<u64, (u64, bool)>| {
                model.iter().find(|(_, (_, waiting))| *waiting).map_or(model.len() as u64, |(n, _)| *n)
            };
            for (now, step) in steps.into_iter().enumerate() {
                let now = now as u64;
                let (sent, first) = (model.len() as u64, oldest(&model));
                match step {
                    Step::Insert => {
                        let want = (sent - first < 8).then_some(sent);
                        prop_assert_eq!(table.insert(now, now + 1), want);
                        want.map(|n| model.insert(n, (now, true)));
                    }
                    Step::Answer { back } => {
                        let number = (sent + 2).saturating_sub(back);
                        let want = match model.get_mut(&number) {
                            None => Answer::Unknown,
                            Some(_) if number < first => Answer::Stale,
                            Some((due_ns, waiting @ true)) => {
                                *waiting = false;
                                Answer::First { due_ns: *due_ns, ticket: *due_ns + 1 }
                            }
                            Some(_) => Answer::Duplicate,
                        };
                        prop_assert_eq!(table.answer(number), want);
                    }
                    Step::Expire { age } => {
                        let before = now.saturating_sub(age);
                        let entry = model.get_mut(&first).filter(|m| m.0 < before);
                        let want = entry.map(|m| {
                            m.1 = false;
                            (m.0, m.0 + 1)
                        });
                        prop_assert_eq!(table.poll_expired(before), want);
                    }
                }
                for (number, (_, waiting)) in &model {
                    prop_assert_eq!(table.is_waiting(*number), *waiting);
                }
                prop_assert_eq!(table.oldest_due(), model.get(&oldest(&model)).map(|m| m.0));
            }
        }
    }
}
