//! The replies of one connection, between the threads that run its requests and the one that
//! writes: a pure machine.
//!
//! Owns their order, and the count of what the connection holds: bytes of requests, those reserved
//! for their replies, then the replies. A request is *outstanding* from [`Replies::begin`] until
//! its reply is written.
//!
//! | event | what follows |
//! |---|---|
//! | a request begins | it has the next number |
//! | it is completed | in order: its reply, and those complete behind it, are ready when it is the oldest; else it is ready at once |
//! | it has no reply, because it panicked | the replies before it are ready, in order; no later one ever is: the connection is *over* |
//! | a write fails | over: replies are discarded and counted |
//! | nothing more is read | over when no request is outstanding |

use super::framing::Limits;
use core::mem::take;
use std::collections::VecDeque;

/// What became of a request.
#[derive(Debug)]
enum Fate {
    Runs,
    Replied(Vec<u8>),
    Lost,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Replies {
    in_order: bool,
    max_outstanding: usize,
    max_held: usize,
    /// In order: the requests from number `first` on whose replies are not ready.
    line: VecDeque<Fate>,
    first: u64,
    ready: Vec<Vec<u8>>,
    outstanding: usize,
    held: usize,
    /// Bytes of the budget that the connection has taken. At most `held`, except until
    /// [`Replies::take_surplus`].
    room: usize,
    /// Requests completed, for which the idle time begins anew.
    completed: u64,
    /// No request begins any more.
    has_ended: bool,
    /// No reply becomes ready any more.
    is_broken: bool,
    unsent: u64,
    /// Discarded replies, to be freed without the lock.
    discarded: Vec<Vec<u8>>,
}

/// What the writer does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Write {
    /// It writes these.
    Replies(Vec<Vec<u8>>),
    /// It waits.
    Nothing,
    /// The connection is over.
    End,
}

impl Replies {
    /// Returns those of a new connection.
    pub fn new(limits: &Limits) -> Self {
        Self {
            in_order: limits.in_order,
            max_outstanding: limits.outstanding,
            max_held: limits.held,
            line: VecDeque::new(),
            first: 0,
            ready: Vec::new(),
            outstanding: 0,
            held: 0,
            room: 0,
            completed: 0,
            has_ended: false,
            is_broken: false,
            unsent: 0,
            discarded: Vec::new(),
        }
    }

    /// Returns whether one more request may begin; also if none is of use, because the connection
    /// is over.
    pub fn has_room(&self) -> bool {
        self.is_broken || self.outstanding < self.max_outstanding && self.held < self.max_held
    }

    /// Returns whether no reply becomes ready any more.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the number of requests outstanding, and of those completed since the beginning.
    pub fn progress(&self) -> (usize, u64) {
        (self.outstanding, self.completed)
    }

    /// Returns how many replies were discarded.
    pub fn unsent(&self) -> u64 {
        self.unsent
    }

    /// Takes the discarded replies out, for the caller to free when it has left the lock.
    pub fn take_discarded(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.discarded)
    }

    /// Takes the room out that is not needed any more, for the caller to give back.
    pub fn take_surplus(&mut self) -> usize {
        let surplus = self.room.saturating_sub(self.held);
        self.room -= surplus;
        surplus
    }

    /// Begins a request that holds `len` bytes with its reply, of which `room` are taken from the
    /// budget; returns its number.
    pub fn begin(&mut self, len: usize, room: usize) -> u64 {
        self.outstanding += 1;
        self.held += len;
        self.room += room;
        if self.in_order {
            self.line.push_back(Fate::Runs);
        }
        self.first + self.line.len() as u64 - u64::from(self.in_order)
    }

    /// Completes the request with this number, which holds `len` bytes. `None`: it has no reply,
    /// because it panicked.
    pub fn complete(&mut self, number: u64, len: usize, reply: Option<Vec<u8>>) {
        self.held -= len;
        self.held += reply.as_ref().map_or(0, Vec::len);
        self.completed += 1;
        let fate = reply.map_or(Fate::Lost, Fate::Replied);
        if !self.in_order {
            return self.settle(fate);
        }
        self.line[(number - self.first) as usize] = fate;
        while let Some(Fate::Replied(_) | Fate::Lost) = self.line.front() {
            self.first += 1;
            let fate = self.line.pop_front().expect("it was there");
            self.settle(fate);
        }
    }

    /// Passes a completed request whose turn it is to the writer.
    fn settle(&mut self, fate: Fate) {
        match fate {
            Fate::Replied(reply) if !self.is_broken && !reply.is_empty() => self.ready.push(reply),
            Fate::Replied(reply) => {
                self.outstanding -= 1;
                self.held -= reply.len();
                if !reply.is_empty() {
                    self.unsent += 1;
                    self.discarded.push(reply);
                }
            }
            Fate::Lost => {
                self.outstanding -= 1;
                self.is_broken = true;
            }
            Fate::Runs => unreachable!("only completed requests are settled"),
        }
    }

    /// Returns what the writer does next.
    pub fn next(&mut self) -> Write {
        if !self.ready.is_empty() {
            return Write::Replies(take(&mut self.ready));
        }
        let is_over = self.is_broken || self.has_ended && self.outstanding == 0;
        if is_over { Write::End } else { Write::Nothing }
    }

    /// Records that these many replies of `bytes` in all were written.
    pub fn written(&mut self, replies: usize, bytes: usize) {
        self.outstanding -= replies;
        self.held -= bytes;
    }

    /// Records that a write failed: no reply is written any more. Of `replies` taken, `bytes` in
    /// all, none counts as sent.
    pub fn break_off(&mut self, replies: usize, bytes: usize) {
        self.written(replies, bytes);
        self.unsent += replies as u64;
        self.is_broken = true;
        for reply in take(&mut self.ready) {
            self.settle(Fate::Replied(reply));
        }
    }

    /// Records that no request begins any more.
    pub fn end(&mut self) {
        self.has_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::framing::{Frame, Framing};
    use super::*;
    use proptest::prelude::*;

    fn replies(framing: impl FnOnce(Framing) -> Framing) -> Replies {
        Replies::new(&framing(Framing::new(|_, _| Frame::Partial)).limits)
    }

    /// Writes what is ready; returns the first bytes.
    fn write(replies: &mut Replies) -> Vec<u8> {
        let Write::Replies(batch) = replies.next() else { return Vec::new() };
        replies.written(batch.len(), batch.iter().map(Vec::len).sum());
        batch.iter().map(|reply| reply[0]).collect()
    }

    proptest! {
        #[test]
        fn replies_keep_the_order_of_requests_however_they_end(
            order in Just((0_u8..50).collect::<Vec<_>>()).prop_shuffle(),
            writes in prop::collection::vec(any::<bool>(), 50),
        ) {
            let mut all = replies(|framing| framing.held(1_000_000));
            let numbers: Vec<_> = order.iter().map(|_| all.begin(3, 0)).collect();
            let mut written = Vec::new();
            for (at, &i) in order.iter().enumerate() {
                // Every seventh has no reply to send.
                let reply = if i % 7 == 3 { Vec::new() } else { vec![i; 5] };
                all.complete(numbers[usize::from(i)], 3, Some(reply));
                if writes[at] {
                    written.extend(write(&mut all));
                }
            }
            written.extend(write(&mut all));
            prop_assert_eq!(written, (0..50).filter(|i| i % 7 != 3).collect::<Vec<u8>>());
            prop_assert_eq!((all.outstanding, all.held, all.unsent()), (0, 0, 0));
        }
    }

    #[test]
    fn numbered_replies_are_ready_at_once() {
        let mut all = replies(Framing::numbered);
        let (first, second) = (all.begin(1, 0), all.begin(1, 0));
        all.complete(second, 1, Some(vec![2]));
        assert_eq!(write(&mut all), [2]);
        all.complete(first, 1, Some(vec![1]));
        assert_eq!(write(&mut all), [1]);
        all.end();
        assert_eq!(all.next(), Write::End);
    }

    #[test]
    fn a_request_counts_until_its_reply_is_written() {
        let mut all = replies(|framing| framing.outstanding(2).held(100));
        let (first, second) = (all.begin(10, 0), all.begin(10, 0));
        assert!(!all.has_room());
        all.complete(second, 10, Some(vec![2; 95]));
        all.complete(first, 10, Some(vec![1; 1]));
        assert!(!all.has_room(), "neither is written");
        let Write::Replies(batch) = all.next() else { panic!("both are ready") };
        assert!(!all.has_room(), "they are being written");
        all.written(1, batch[0].len());
        assert!(all.has_room(), "95 bytes are held");
        let third = all.begin(5, 0);
        assert!(!all.has_room(), "two are outstanding");
        all.written(1, batch[1].len());
        assert!(all.has_room());
        all.end();
        assert_eq!(all.next(), Write::Nothing);
        all.complete(third, 5, Some(Vec::new()));
        assert_eq!(all.next(), Write::End);
    }

    #[test]
    fn bytes_held_bound_what_begins() {
        let mut all = replies(|framing| framing.held(100));
        all.begin(99, 0);
        assert!(all.has_room());
        all.begin(1, 0);
        assert!(!all.has_room());
    }

    #[test]
    fn room_is_returned_as_soon_as_it_is_not_needed() {
        let mut all = replies(|framing| framing);
        // The second has taken less than it holds, as one larger than the budget does.
        let (first, second) = (all.begin(100, 100), all.begin(100, 40));
        assert_eq!(all.take_surplus(), 0);
        all.complete(second, 100, Some(vec![2; 10]));
        assert_eq!((all.held, all.take_surplus()), (110, 30));
        // Longer than announced.
        all.complete(first, 100, Some(vec![1; 500]));
        assert_eq!((all.held, all.take_surplus()), (510, 0));
        let Write::Replies(batch) = all.next() else { panic!("both are ready") };
        all.written(1, batch[0].len());
        assert_eq!(all.take_surplus(), 100);
        all.break_off(1, batch[1].len());
        assert_eq!((all.held, all.take_surplus(), all.room), (0, 10, 0));
    }

    #[test]
    fn after_a_request_without_a_reply_nothing_is_sent() {
        let mut all = replies(|framing| framing);
        let numbers = [(); 4].map(|()| all.begin(1, 0));
        all.complete(numbers[2], 1, Some(vec![2]));
        all.complete(numbers[1], 1, None);
        assert_eq!(all.next(), Write::Nothing);
        all.complete(numbers[0], 1, Some(vec![0]));
        assert_eq!(write(&mut all), [0]);
        assert_eq!((all.next(), all.unsent()), (Write::End, 1));
        all.complete(numbers[3], 1, Some(vec![3]));
        assert_eq!((all.next(), all.unsent(), all.outstanding, all.held), (Write::End, 2, 0, 0));
    }

    #[test]
    fn after_a_failed_write_replies_are_counted_as_unsent() {
        let mut all = replies(|framing| framing.outstanding(3));
        let numbers = [(); 3].map(|()| all.begin(1, 0));
        all.complete(numbers[0], 1, Some(vec![0; 9]));
        let Write::Replies(batch) = all.next() else { panic!("it is ready") };
        all.complete(numbers[1], 1, Some(vec![1; 9]));
        assert!(!all.has_room());
        all.break_off(batch.len(), 9);
        assert!(all.has_room() && all.is_broken(), "so that the reader ends");
        all.complete(numbers[2], 1, Some(vec![2; 9]));
        assert_eq!((all.next(), all.unsent(), all.outstanding, all.held), (Write::End, 3, 0, 0));
        assert_eq!(all.take_discarded(), [[1; 9], [2; 9]], "the writer has the first");
    }
}
