//! The word between a thread and the one that joins it.

use super::Waiter;
use crate::ground::words::join::{Found, JoinWord, MIN_TOKEN};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// A thread's end and its handle. Loom watches the result, and the mark that what both share was
/// freed.
struct Joined {
    word: JoinWord,
    result: UnsafeCell<u32>,
    freed: UnsafeCell<bool>,
    waiter: Waiter,
}

impl Joined {
    fn new() -> Arc<Self> {
        let (result, freed) = (UnsafeCell::new(0), UnsafeCell::new(false));
        Arc::new(Self { word: JoinWord::new(), result, freed, waiter: Waiter::new() })
    }

    /// Returns the thread that ends.
    fn start(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let joined = Arc::clone(self);
        thread::spawn(move || joined.end())
    }

    fn free(&self) {
        // SAFETY: loom checks that no other thread is in here.
        self.freed.with_mut(|freed| unsafe {
            assert!(!*freed, "freed twice");
            *freed = true;
        });
    }

    /// `Completer::store` and `finish`.
    fn end(&self) {
        // SAFETY: as in `free`.
        self.result.with_mut(|result| unsafe { *result = 7 });
        match self.word.finish() {
            Found::NoJoiner => {}
            Found::Waiter(_) => self.waiter.wake(),
            Found::Abandoned => self.free(),
        }
    }

    /// `Joiner::join`, with the drop at its end.
    fn join(&self) {
        if !self.word.is_finished() && self.word.enlist(MIN_TOKEN) {
            self.waiter.wait();
        }
        // SAFETY: as in `free`.
        assert_eq!(self.result.with(|result| unsafe { *result }), 7);
        assert!(self.word.abandon(), "the thread has ended");
        self.free();
    }
}

#[test]
fn a_joined_thread_hands_over_its_result_and_the_packet_is_freed_once() {
    loom::model(|| {
        let joined = Joined::new();
        let thread = joined.start();
        joined.join();
        thread.join().unwrap();
    });
}

#[test]
fn a_detached_thread_s_packet_is_freed_once_by_the_last_to_let_go() {
    loom::model(|| {
        let joined = Joined::new();
        let thread = joined.start();
        if joined.word.abandon() {
            joined.free();
        }
        thread.join().unwrap();
        // SAFETY: as in `free`.
        assert!(joined.freed.with(|freed| unsafe { *freed }), "leaked");
    });
}
