//! How far poll points are apart in what `#[preemptible]` makes of each kind of loop, by counting.
//!
//! This crate takes the place of `tailwater` for the expansions: their poll points record how much
//! was done since the last one.

extern crate self as tailwater;

use std::cell::Cell;
use tailwater_macros::preemptible;

#[allow(unreachable_pub)]
#[path = "../../runtime/src/preemptible.rs"]
mod __preemptible;

/// What the module above imports of the runtime.
mod verbs {
    pub(crate) mod switch {
        pub(crate) fn poll_at_edge() {
            crate::note_poll();
        }
        pub(crate) fn poll_at_entry() {
            crate::note_poll();
        }
    }
}

thread_local! {
    static DONE: Cell<u32> = const { Cell::new(0) };
    static MOST: Cell<u32> = const { Cell::new(0) };
    static POLLS: Cell<u32> = const { Cell::new(0) };
}

fn note_poll() {
    MOST.set(MOST.get().max(DONE.take()));
    POLLS.set(POLLS.get() + 1);
}

/// Does something, once. By its name the macro takes it for a cheap call.
fn is_work() -> bool {
    DONE.set(DONE.get() + 1);
    true
}

/// Returns the most that `f` does between two poll points, and their number.
fn spacing(f: impl FnOnce()) -> (u32, u32) {
    DONE.set(0);
    MOST.set(0);
    POLLS.set(0);
    f();
    (MOST.get().max(DONE.get()), POLLS.get())
}

/// Most of what a tight loop does between two poll points, and a `for` over a range or a slice.
const FULL: u32 = __preemptible::FULL;
const SPLIT: u32 = 4 * FULL;

#[preemptible]
mod polled {
    use super::is_work;

    pub fn tight_while(n: u32) {
        let mut i = 0;
        while i < n {
            i += 1;
            is_work();
        }
    }

    pub fn continued(n: u32) {
        let mut i = 0;
        while i < n {
            i += 1;
            is_work();
            if i % 3 != 0 {
                continue;
            }
        }
    }

    pub fn while_let(n: u32) {
        let mut left: Vec<u32> = (0..n).collect();
        while let Some(_) = left.pop() {
            is_work();
        }
    }

    pub fn endless(n: u32) {
        let mut i = 0;
        loop {
            i += 1;
            is_work();
            if i == n {
                break;
            }
        }
    }

    pub fn range(n: u32) {
        for _ in 0..n {
            is_work();
        }
    }

    pub fn slice(n: u32) {
        for _ in &vec![0; n as usize] {
            is_work();
        }
    }

    pub fn mutable_slice(n: u32) {
        for item in &mut vec![0; n as usize] {
            *item = u8::from(is_work());
        }
    }

    pub fn iterator(n: u32) {
        for _ in (0..n).zip(0..) {
            is_work();
        }
    }

    pub fn with_calls(n: u32) {
        for _ in 0..n {
            is_work();
            unknown();
        }
    }

    /// Each inner loop is as long as it may be without a poll point of its own.
    pub fn nested(n: u32) {
        for _ in 0..n {
            for _ in 0..n % 256 {
                is_work();
            }
            let mut i = 0;
            while i < 1_000 {
                i += 1;
                is_work();
            }
        }
    }

    pub fn short_in_a_loop(n: u32) {
        for _ in 0..n {
            for _ in 0..(n % 256).max(255) {
                is_work();
            }
        }
    }

    pub fn through_functions(n: u32) {
        let mut i = 0;
        while i < n {
            i += 1;
            middle();
        }
    }

    fn middle() {
        inner();
    }

    fn inner() {
        let mut i = 0;
        while i < 1_000 {
            i += 1;
            is_work();
        }
    }

    pub fn tree(depth: u32) {
        is_work();
        if depth > 0 {
            tree(depth - 1);
            tree(depth - 1);
        }
    }

    pub fn circle(depth: u32) {
        is_work();
        children(depth);
    }

    fn children(depth: u32) {
        let mut i = 0;
        while i < 2 && depth > 0 {
            i += 1;
            circle(depth - 1);
        }
    }

    pub fn closure(n: u32) {
        let work = || {
            let mut i = 0;
            while i < n {
                i += 1;
                is_work();
            }
        };
        work();
    }

    pub async fn future(n: u32) {
        let part = async {
            let mut i = 0;
            while i < n {
                i += 1;
                is_work();
            }
        };
        part.await;
    }

    fn unknown() {}
}

/// Its name, the loop, and the most between two poll points.
type Loop = (&'static str, fn(u32), u32);

#[test]
fn loops_poll_within_their_bound() {
    use polled::*;
    let loops: [Loop; 11] = [
        ("while", tight_while, FULL),
        ("while with continue", continued, FULL),
        ("while let", while_let, FULL),
        ("loop", endless, FULL),
        ("range", range, SPLIT),
        ("slice", slice, SPLIT),
        ("mutable slice", mutable_slice, SPLIT),
        ("iterator", iterator, FULL),
        ("calls", with_calls, FULL / 16),
        ("closure", closure, FULL),
        ("async", |n| assert!(is_ready(future(n))), FULL),
    ];
    for (name, run, bound) in loops {
        // The first turn of a `while` does not count.
        let bound = bound + 1;
        let (most, polls) = spacing(|| run(100_000));
        assert!(most <= bound, "{name}: {most} of {bound}");
        // They are not closer than that by an order of magnitude either.
        assert!(polls >= 100_000 / bound && polls <= 10 * 100_000 / bound, "{name}: {polls}");
        assert_eq!(spacing(|| run(3)).1, 0, "{name}: a short loop has no poll point");
    }
}

#[test]
fn loops_within_loops_do_not_multiply() {
    let (most, _) = spacing(|| polled::nested(500));
    assert!(most <= 4 * FULL, "{most}");
    let (most, _) = spacing(|| polled::short_in_a_loop(5_000));
    assert!(most <= 4 * FULL, "{most}");
    let (most, polls) = spacing(|| polled::through_functions(500));
    assert!(most <= 2 * FULL && polls >= 500, "{most}, {polls}");
}

#[test]
fn recursion_polls_in_each_circle() {
    let (most, polls) = spacing(|| polled::tree(10));
    assert!(most <= 2 && polls >= 1_023, "{most}, {polls}");
    let (most, polls) = spacing(|| polled::circle(10));
    assert!(most <= 2 && polls >= 1_023, "{most}, {polls}");
}

fn is_ready(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut context).is_ready()
}
