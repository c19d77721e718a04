//! The measured process of [`super`]: a program with an exclusive thread, and user threads that
//! come and go.
//!
//! Owns both kinds of threads and the lines that it prints. The exclusive thread computes, with
//! poll points. Each other thread looks where it runs when it begins, and after each return from a
//! wait or a yield: a user thread gets a kthread in no other way.
//!
//! A look that finds the exclusive thread's kthread or core is a *suspect* only: the exclusive
//! thread may have lost the core just before, which it notices at its next loop. It counts if the
//! exclusive thread was at the same place before and after it, that is, within one [`Period`].
//!
//! | line of input | the program |
//! |---|---|
//! | first | begins to count, forgetting what was before |
//! | second | ends, and prints its periods, one a line, and an [`Ending`] |

use std::hint::black_box;
use std::io::{BufRead, stdin};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tailwater::thread::{self, Builder, JoinHandle, Placement, ThreadClass};
use tailwater_shm::clock;

/// Threads that create others, at most so many at a time each, and rest in between.
const PARENTS: usize = 4;
const CHILDREN: usize = 2;
const REST: Duration = Duration::from_micros(200);
/// Yields of a thread that was created.
const YIELDS: usize = 3;
/// Work of the exclusive thread between two poll points, and between two threads that it creates.
const STEPS: u64 = 1_000;
const LOOPS: u64 = 1_000;
/// Largest numbers that are kept; more are an error.
const MAX_PERIODS: usize = 1_000;
const MAX_SUSPECTS: usize = 100_000;

/// States of the program, in turn.
const STARTS: u8 = 0;
const COUNTS: u8 = 1;
const ENDS: u8 = 2;

/// The program has an exclusive thread, which runs on the core whose number follows.
pub const READY: &str = "ready ";

/// A time for which the exclusive thread was on one kthread and core, in cycles of the machine's
/// clock: from its first loop there to its last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    pub core: u32,
    /// The kthread's thread id.
    pub tid: u32,
    pub from: u64,
    pub to: u64,
}

/// The last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Looks that found another thread on the exclusive thread's kthread or core.
    pub other_user_threads: u64,
    /// All looks.
    pub looks: u64,
}

/// A look that found the place of a period, which is given by its number.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    period: u64,
    at: u64,
}

/// What all threads see.
#[derive(Debug, Default)]
struct Shared {
    /// Written by an ordinary thread. Relaxed: nothing else is published by it.
    state: AtomicU8,
    /// The place of the exclusive thread, as [`Place::pack`] writes it; 0: it has none. Written by
    /// that thread.
    place: AtomicU64,
    looks: AtomicU64,
    suspects: Mutex<Vec<Suspect>>,
}

/// Where a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    core: u32,
    tid: u32,
}

impl Place {
    /// Returns the calling thread's. It is not preempted meanwhile.
    fn here() -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Self { core: rustix::thread::sched_getcpu() as u32, tid }
    }

    /// Returns this place and the number of a period in one word: cores have 12 bits, thread ids
    /// have 22 (proc_sys_kernel(5), `pid_max`).
    fn pack(self, period: u64) -> u64 {
        period << 34 | u64::from(self.core) << 22 | u64::from(self.tid)
    }

    fn unpack(word: u64) -> (Self, u64) {
        let place = Self { core: (word >> 22) as u32 & 0xfff, tid: word as u32 & 0x3f_ffff };
        (place, word >> 34)
    }
}

impl Shared {
    fn state(&self) -> u8 {
        self.state.load(Ordering::Relaxed)
    }

    /// Looks where the calling thread runs, which is another than the exclusive one.
    fn look(&self) {
        tailwater::no_preempt(|| {
            let word = self.place.load(Ordering::SeqCst);
            let ((place, period), here) = (Place::unpack(word), Place::here());
            if word != 0 && (place.core == here.core || place.tid == here.tid) {
                let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
                if suspects.len() <= MAX_SUSPECTS {
                    suspects.push(Suspect { period, at: clock::now() });
                }
            }
        });
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs the program until its input has two lines.
///
/// # Errors
/// If the runtime does not start, no exclusive thread is made, or it moves too often.
pub fn run() -> anyhow::Result<()> {
    let shared = Arc::new(Shared::default());
    let reader = Arc::clone(&shared);
    let read = move || {
        for (state, _) in (COUNTS..=ENDS).zip(stdin().lock().lines()) {
            reader.state.store(state, Ordering::Relaxed);
        }
        // Also at the end of the input.
        reader.state.store(ENDS, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("input".to_owned()).spawn(read)?;
    let (periods, ending) = tailwater::RuntimeBuilder::new().run(move || {
        let body = {
            let shared = Arc::clone(&shared);
            move || compute(&shared)
        };
        let alone =
            Builder::new().class(ThreadClass::Exclusive).spawn(body).context("no exclusive thread")?;
        let parents: Vec<_> = (0..PARENTS)
            .map(|n| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || create(&shared, n))
            })
            .collect();
        while tailwater::cores::granted() == 0 || shared.place.load(Ordering::SeqCst) == 0 {
            anyhow::ensure!(shared.state() != ENDS, "no core was granted");
            thread::sleep(REST);
        }
        println!("{READY}{}", Place::unpack(shared.place.load(Ordering::SeqCst)).0.core);
        let periods = alone.join().expect("it does not panic")?;
        parents.into_iter().for_each(|parent| parent.join().expect("it does not panic"));
        let suspects = shared.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(suspects.len() <= MAX_SUSPECTS, "over {MAX_SUSPECTS} threads ran on its core");
        let ending = Ending {
            other_user_threads: confirmed(&suspects, &periods),
            looks: shared.looks.load(Ordering::Relaxed),
        };
        anyhow::Ok((periods, ending))
    })??;
    for period in periods.iter().map(|(_, period)| period) {
        println!("{}", serde_json::to_string(period)?);
    }
    println!("{}", serde_json::to_string(&ending)?);
    Ok(())
}

/// Returns how many suspects were within the period whose place they found.
fn confirmed(suspects: &[Suspect], periods: &[(u64, Period)]) -> u64 {
    let is_within = |suspect: &&Suspect| {
        let own = periods.iter().find(|(number, _)| *number == suspect.period);
        own.is_some_and(|(_, period)| (period.from..=period.to).contains(&suspect.at))
    };
    suspects.iter().filter(is_within).count() as u64
}

/// The exclusive thread: computes until the end; returns the periods that count, with their
/// numbers.
fn compute(shared: &Arc<Shared>) -> anyhow::Result<Vec<(u64, Period)>> {
    let (mut place, mut number, mut state) = (None, 0, STARTS);
    let mut periods: Vec<(u64, Period)> = Vec::new();
    let (mut value, mut created): (u64, Option<JoinHandle<()>>) = (1, None);
    for n in 0.. {
        for _ in 0..STEPS {
            value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
        }
        tailwater::poll();
        tailwater::no_preempt(|| {
            let (here, now, then) = (Place::here(), clock::now(), shared.state());
            if place == Some(here) && state == then {
                if let Some((_, period)) = periods.last_mut() {
                    period.to = now;
                }
                return;
            }
            if state != then && then == COUNTS {
                periods.clear();
                shared.looks.store(0, Ordering::Relaxed);
            }
            (place, state, number) = (Some(here), then, number + 1);
            periods.push((number, Period { core: here.core, tid: here.tid, from: now, to: now }));
            shared.place.store(here.pack(number), Ordering::SeqCst);
        });
        if state == ENDS {
            // That of the end itself.
            periods.pop();
            break;
        }
        anyhow::ensure!(periods.len() <= MAX_PERIODS, "it was moved over {MAX_PERIODS} times");
        if n % LOOPS == 0 && created.as_ref().is_none_or(JoinHandle::is_finished) {
            let shared = Arc::clone(shared);
            created = Some(thread::spawn(move || visit(&shared)));
        }
    }
    Ok(periods)
}

/// Creates threads until the end, in one way of several.
fn create(shared: &Arc<Shared>, way: usize) {
    let placement = if way.is_multiple_of(2) { Placement::Parent } else { Placement::LeastLoaded(2) };
    let class = if way == 3 { ThreadClass::Background } else { ThreadClass::Normal };
    while shared.state() != ENDS {
        let body = || {
            let shared = Arc::clone(shared);
            move || visit(&shared)
        };
        let spawn = |_| Builder::new().placement(placement).class(class).spawn(body()).expect("a stack");
        let children: Vec<_> = (0..CHILDREN).map(spawn).collect();
        for child in children {
            child.join().expect("it does not panic");
            shared.look();
        }
        thread::sleep(REST);
        shared.look();
    }
}

/// The life of a thread that was created.
fn visit(shared: &Shared) {
    shared.look();
    for _ in 0..YIELDS {
        thread::yield_now();
        shared.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_packed_with_the_number_of_its_period() {
        let place = Place { core: 4095, tid: (1 << 22) - 1 };
        assert_eq!(Place::unpack(place.pack(77)), (place, 77));
        assert_ne!(Place { core: 0, tid: 1 }.pack(0), 0);
    }

    #[test]
    fn a_look_counts_within_the_period_whose_place_it_found() {
        let period = |from, to| Period { core: 2, tid: 9, from, to };
        let periods = [(3, period(10, 20)), (4, period(30, 40))];
        let suspect = |period, at| Suspect { period, at };
        // Two within; one after the last loop there, one of a period that does not count.
        let suspects = [suspect(3, 15), suspect(4, 40), suspect(3, 25), suspect(2, 15)];
        assert_eq!(confirmed(&suspects, &periods), 2);
    }
}
