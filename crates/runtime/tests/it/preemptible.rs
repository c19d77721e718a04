//! `#[tailwater::preemptible]`: each loop means what it did, and gives way to other threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tailwater::{debug, thread};
use tailwater_testkit::own_process;

/// Compiles functions as they are, and with poll points.
macro_rules! twice {
    ($($code:item)*) => {
        mod plain {
            use super::*;
            $($code)*
        }
        #[tailwater::preemptible]
        mod polled {
            use super::*;
            $($code)*
        }
    };
}

macro_rules! stop_if {
    ($condition:expr) => {
        if $condition {
            break;
        }
    };
}

struct Lent<T>(RefCell<T>);

impl<T> Lent<T> {
    /// By its name a cheap call, so that a loop that makes it runs in chunks.
    fn is_lent(&self) -> bool {
        self.0.try_borrow_mut().is_err()
    }
}

twice! {
    pub fn ranges(n: u64) -> u64 {
        let mut sum = 0u64;
        for i in 0..n {
            sum = sum.wrapping_mul(31).wrapping_add(i);
        }
        for i in 0..n as u8 {
            sum = sum.wrapping_add(u64::from(i));
        }
        for i in (-5..n as i32).rev() {
            sum ^= i as u64;
        }
        for i in 3..=n {
            sum = sum.wrapping_add(i);
        }
        for _ in n + 5..n {
            sum = 0;
        }
        for i in 250..=255u8 {
            sum = sum.wrapping_add(u64::from(i));
        }
        sum
    }

    pub fn slices(n: u64) -> u64 {
        let mut numbers: Vec<u64> = (0..n).collect();
        for x in &mut numbers {
            *x *= 3;
        }
        for x in numbers.iter_mut().rev() {
            *x += 1;
        }
        let mut sum = 0;
        for &x in &numbers {
            sum += x;
        }
        for (i, x) in numbers.iter().enumerate() {
            sum ^= i as u64 * x;
        }
        for pair in numbers.chunks(2) {
            sum += pair[0];
        }
        for x in numbers {
            sum += x;
        }
        sum
    }

    /// Returns a sum, and whether what the loops run over was borrowed until their ends.
    pub fn temporaries(n: u64) -> (u64, bool) {
        let bound = Lent(RefCell::new(n));
        let numbers: Lent<Vec<u64>> = Lent(RefCell::new((0..n).collect()));
        let (mut sum, mut lent) = (0u64, true);
        for i in 0..*bound.0.borrow() {
            sum += i;
            lent &= bound.is_lent();
        }
        for x in &*numbers.0.borrow() {
            sum += x;
            lent &= numbers.is_lent();
        }
        for x in &mut *numbers.0.borrow_mut() {
            *x += 1;
            lent &= numbers.is_lent();
        }
        for x in numbers.0.borrow().iter().rev() {
            sum ^= x;
            lent &= numbers.is_lent();
        }
        for byte in n.to_string().bytes() {
            if byte == b'7' {
                sum += 1;
            }
        }
        (sum, lent && !bound.is_lent() && !numbers.is_lent())
    }

    pub fn labels(n: u64) -> (u64, u64) {
        let (mut steps, mut found) = (0, 0);
        'rows: for row in 0..n {
            for column in 0..n {
                steps += 1;
                if column > row {
                    continue 'rows;
                }
                if row * column == 600 {
                    found = row;
                    break 'rows;
                }
                if column == 700 {
                    break;
                }
            }
            steps += 1_000;
        }
        let last = 'search: {
            for i in 0..n {
                if i == 513 {
                    break 'search i;
                }
            }
            n
        };
        (steps + last, found)
    }

    pub fn breaks(n: u64) -> u64 {
        let mut sum = 0;
        // The 512th and the 513th item are the last of a part, and the first of the next.
        for stop in [0, 1, 510, 511, 512, 513, n] {
            for i in 0..n {
                if i == stop {
                    break;
                }
                sum += i;
            }
            for i in 0..n {
                stop_if!(i == stop);
                if i % 3 == 0 {
                    continue;
                }
                sum += i;
            }
        }
        sum
    }

    pub fn whiles(n: u64) -> u64 {
        let (mut i, mut sum) = (0, 0);
        while i < n {
            i += 1;
            if i % 7 == 0 {
                continue;
            }
            sum += i;
        }
        let mut stack: Vec<u64> = (0..n).collect();
        while let Some(top) = stack.pop() {
            if top % 5 == 4 {
                stack.pop();
            }
            sum ^= top;
        }
        while let Some(x) = stack.first()
            && *x > 0
        {
            stack.remove(0);
        }
        sum + loop {
            i += 1;
            if i.is_multiple_of(1_000) {
                break i;
            }
        }
    }

    pub fn closures(n: u64) -> u64 {
        let mut total = 0;
        let mut add = |upto: u64| {
            for i in 0..upto {
                total += i;
            }
        };
        add(n);
        add(3);
        let count = |v: &[u64]| -> u64 {
            let mut even = 0;
            for x in v {
                even += u64::from(x % 2 == 0);
            }
            even
        };
        let numbers: Vec<u64> = (0..n).collect();
        total + count(&numbers) + numbers.iter().map(|x| x * 2).sum::<u64>()
    }

    pub fn questions(text: &str) -> Result<u64, std::num::ParseIntError> {
        let mut sum = 0;
        for word in text.split(' ') {
            sum += word.parse::<u64>()?;
        }
        for digit in text.bytes() {
            if digit == b'9' {
                return Ok(9);
            }
        }
        Ok(sum)
    }

    pub fn generic<I: IntoIterator<Item = T>, T: Copy + Into<u64>>(items: I) -> u64 {
        let mut sum = 0;
        for item in items {
            sum += item.into();
        }
        sum
    }

    pub fn recursive(n: u64) -> u64 {
        if n < 2 { n } else { recursive(n - 1) + recursive(n - 2) }
    }

    pub struct Tree(pub BTreeMap<u64, u64>);

    impl Tree {
        pub fn sum(&self) -> u64 {
            let mut sum = 0;
            for (key, value) in &self.0 {
                sum += key * value;
            }
            sum
        }
    }

    pub async fn asynchronous(n: u64) -> u64 {
        let part = async {
            let mut sum = 0;
            for i in 0..n {
                sum += std::future::ready(i).await;
            }
            sum
        };
        let mut sum = part.await;
        while sum % 10 != 0 {
            sum += 1;
        }
        sum
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

#[test]
fn loops_with_poll_points_mean_what_they_did() {
    for n in [0, 1, 2, 7, 100, 511, 512, 513, 1_024, 1_500] {
        assert_eq!(plain::ranges(n), polled::ranges(n), "{n}");
        assert_eq!(plain::slices(n), polled::slices(n), "{n}");
        assert_eq!(plain::temporaries(n), polled::temporaries(n), "{n}");
        assert_eq!(plain::labels(n), polled::labels(n), "{n}");
        assert_eq!(plain::breaks(n), polled::breaks(n), "{n}");
        assert_eq!(plain::whiles(n), polled::whiles(n), "{n}");
        assert_eq!(plain::closures(n), polled::closures(n), "{n}");
        assert_eq!(plain::generic(0..n), polled::generic(0..n), "{n}");
        assert_eq!(plain::generic(vec![3u8; n as usize]), polled::generic(vec![3u8; n as usize]));
        let map: BTreeMap<u64, u64> = (0..n).map(|i| (i, i % 9)).collect();
        assert_eq!(plain::Tree(map.clone()).sum(), polled::Tree(map).sum(), "{n}");
        assert_eq!(block_on(plain::asynchronous(n)), block_on(polled::asynchronous(n)), "{n}");
    }
    for text in ["1 2 3", "1 x", "19"] {
        assert_eq!(plain::questions(text), polled::questions(text));
    }
    assert_eq!(plain::recursive(15), polled::recursive(15));
}

#[tailwater::preemptible]
mod endless {
    use super::*;

    pub fn range(done: &AtomicBool) {
        for i in 0..u64::MAX {
            if done.load(Ordering::Relaxed) && i > 0 {
                break;
            }
        }
    }

    pub fn repeat(done: &AtomicBool) {
        for _ in std::iter::repeat(()) {
            if done.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    pub fn while_loop(done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {}
    }

    pub fn nested(done: &AtomicBool) {
        'outer: loop {
            for _ in 0..1_000_000 {
                if done.load(Ordering::Relaxed) {
                    break 'outer;
                }
            }
        }
    }

    pub fn closure(done: &AtomicBool) {
        let wait = || while !done.load(Ordering::Relaxed) {};
        wait();
    }

    pub fn future(done: &AtomicBool) {
        block_on(async {
            loop {
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
    }

    pub fn recursion(done: &AtomicBool) {
        if !done.load(Ordering::Relaxed) && !deeper(done, 12) {
            recursion(done);
        }
    }

    fn deeper(done: &AtomicBool, depth: u32) -> bool {
        done.load(Ordering::Relaxed) || (depth > 0 && (deeper(done, depth - 1) || deeper(done, depth - 1)))
    }
}

/// Runs `shape`, which computes until another thread has set its flag, until that has been so at a
/// poll point and not by signal.
fn gives_way(name: &str, shape: fn(&AtomicBool)) {
    // A signal may be first where Linux does not run this program for a tick.
    const ATTEMPTS: u32 = 1_000;
    for _ in 0..ATTEMPTS {
        let (done, before) = (AtomicBool::new(false), debug::counters().yields);
        thread::scope(|s| {
            s.spawn(|| done.store(true, Ordering::Relaxed));
            shape(&done);
        });
        if debug::counters().yields > before {
            return;
        }
    }
    panic!("{name} has not reached a poll point");
}

#[test]
fn each_kind_of_loop_gives_way_to_a_waiting_thread() {
    own_process(|| {
        let quantum = Duration::from_micros(50);
        let run = tailwater::RuntimeBuilder::new().kthreads(1).quantum(quantum).run(|| {
            gives_way("a range", endless::range);
            gives_way("an iterator", endless::repeat);
            gives_way("while", endless::while_loop);
            gives_way("nested loops", endless::nested);
            gives_way("a closure", endless::closure);
            gives_way("an async block", endless::future);
            gives_way("recursion", endless::recursion);
            no_preempt_keeps_the_core();
        });
        run.unwrap();
    });
}

fn no_preempt_keeps_the_core() {
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| done.store(true, Ordering::Relaxed));
        tailwater::no_preempt(|| {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_millis(2) {
                tailwater::poll();
                assert!(!done.load(Ordering::Relaxed), "another thread ran meanwhile");
            }
        });
        endless::while_loop(&done);
    });
}
