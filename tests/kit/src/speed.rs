//! Whether two ways to do the same work take the same processor time.
//!
//! Owns the decision, which noise of the machine must not turn into a failure. In a *window* the
//! two ways run in turn, many times, and the first one a second time; the medians of the ratios of
//! neighbours are the window's result: of the second way to the first one, and of the first one to
//! itself, which is the noise. The speed of a virtual machine, which changes by a third within
//! seconds, is the same in neighbours. The first window in which all pairs of ways agree ends the
//! test. If none of many does, the medians over all windows must not be far off, and where
//! the noise itself is as far off, nothing is decided: the test passes and prints that.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::Program;

/// Largest relative difference of two ways that take the same time.
pub const TOLERANCE: f64 = 0.03;

/// The same where no window was quiet, beside the noise. A loop with two modes of speed takes twice
/// as long or half as long in the other one.
const FAR_OFF: f64 = 0.25;

/// Time for which a quiet window is looked for.
const SEARCH: Duration = Duration::from_secs(60);

/// Fewest windows that are measured, however long a busy machine needs for them.
const FEWEST: usize = 10;

/// Two ways to do the same work.
pub struct Ways<'a> {
    /// What it is, for the message.
    pub what: String,
    /// The first way.
    pub first: Box<dyn FnMut() + 'a>,
    /// The other way.
    pub other: Box<dyn FnMut() + 'a>,
    /// How often they run in turn in a window.
    pub turns: usize,
}

/// Result of one pair of ways in a window, both 1 if they are as fast and nothing disturbs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ratios {
    /// Of the other way to the first one.
    ways: f64,
    /// Of the first one to itself.
    noise: f64,
}

/// What all windows together say of a pair of ways.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decision {
    /// They differ by no more than this.
    WithinBound(f64),
    /// They differ by more than this.
    Differ(f64),
    /// The noise is as large as what would be a difference.
    Nothing,
}

/// Waits until the two ways of each pair take the same processor time, within [`TOLERANCE`], in one
/// window.
///
/// # Panics
/// If no window was like that, and two ways are far off.
pub fn take_the_same_time(where_: &str, pairs: &mut [Ways<'_>]) {
    let until = Instant::now() + SEARCH;
    let mut windows: Vec<Vec<Ratios>> = Vec::new();
    while windows.len() < FEWEST || Instant::now() < until {
        let window: Vec<Ratios> = pairs.iter_mut().map(measure).collect();
        if window.iter().all(|ratios| (ratios.ways - 1.0).abs() < TOLERANCE) {
            return;
        }
        windows.push(window);
    }
    for (at, pair) in pairs.iter().enumerate() {
        let all: Vec<Ratios> = windows.iter().map(|window| window[at]).collect();
        let ways = median(all.iter().map(|ratios| ratios.ways));
        let what =
            format!("{where_}, {}: no quiet window of {}, median ratio {ways:.3}", pair.what, all.len());
        match decide(&all) {
            Decision::WithinBound(bound) => println!("{what}: decided no more than within {bound:.2}"),
            Decision::Differ(bound) => panic!("{what}, further off than {bound:.2}"),
            Decision::Nothing => println!("{what}: too noisy, decided nothing"),
        }
    }
}

/// Runs the two ways in turn.
fn measure(pair: &mut Ways<'_>) -> Ratios {
    let turn = |_| {
        let [first, other, again] = [timed(&mut pair.first), timed(&mut pair.other), timed(&mut pair.first)];
        Ratios { ways: other / first, noise: again / first }
    };
    let turns: Vec<Ratios> = (0..pair.turns).map(turn).collect();
    let [ways, noise] = [|ratios: &Ratios| ratios.ways, |ratios: &Ratios| ratios.noise];
    Ratios { ways: median(turns.iter().map(ways)), noise: median(turns.iter().map(noise)) }
}

/// Returns the processor time of a run of this thread, in nanoseconds.
fn timed(run: &mut dyn FnMut()) -> f64 {
    let from = clock_gettime(ClockId::ThreadCPUTime);
    run();
    let to = clock_gettime(ClockId::ThreadCPUTime);
    ((to.tv_sec - from.tv_sec) * 1_000_000_000 + to.tv_nsec - from.tv_nsec) as f64
}

/// Decides by the windows of one pair: the bound is what is far off, and the median noise on top.
fn decide(windows: &[Ratios]) -> Decision {
    let noise = median(windows.iter().map(|ratios| (ratios.noise - 1.0).abs()));
    let off = (median(windows.iter().map(|ratios| ratios.ways)) - 1.0).abs();
    let bound = FAR_OFF + noise;
    match () {
        () if noise >= FAR_OFF => Decision::Nothing,
        () if off < bound => Decision::WithinBound(bound),
        () => Decision::Differ(bound),
    }
}

/// Returns the median; 1 of nothing.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    let middle = numbers.len() / 2;
    if numbers.is_empty() { 1.0 } else { *numbers.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

/// A process that computes on the core that the calling thread is bound to until this is dropped.
#[derive(Debug)]
pub struct Neighbour {
    process: Program,
    before: CpuSet,
}

impl Neighbour {
    /// Binds the calling thread to its first core and starts the process there.
    ///
    /// # Panics
    /// If either is refused.
    pub fn start() -> Self {
        let before = sched_getaffinity(None).expect("an affinity mask");
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|&core| before.is_set(core)).expect("a core"));
        sched_setaffinity(None, &one).expect("a core of its own");
        // It inherits the one core.
        Self { process: Program::start(Command::new("sh").args(["-c", "while :; do :; done"])), before }
    }

    /// Stops it, or lets it go on.
    ///
    /// # Panics
    /// If it has ended.
    pub fn pause(&self, pause: bool) {
        let pid = Pid::from_raw(self.process.pid() as i32).expect("a process number");
        kill_process(pid, if pause { Signal::STOP } else { Signal::CONT }).expect("it runs");
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.process.kill();
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_noise() {
        let windows = |ways: f64, noise: f64| [Ratios { ways, noise }; 3];
        assert_eq!(decide(&windows(1.2, 1.0)), Decision::WithinBound(0.25));
        assert_eq!(decide(&windows(2.0, 1.0)), Decision::Differ(0.25));
        assert_eq!(decide(&windows(0.5, 1.125)), Decision::Differ(0.375));
        assert_eq!(decide(&windows(1.3, 0.875)), Decision::WithinBound(0.375));
        assert_eq!(decide(&windows(2.0, 1.5)), Decision::Nothing);
        // One window in which the host took the core decides nothing.
        let [quiet, stalled] = [Ratios { ways: 1.0, noise: 1.0 }, Ratios { ways: 9.0, noise: 9.0 }];
        assert_eq!(decide(&[quiet, stalled, quiet]), Decision::WithinBound(0.25));
    }

    #[test]
    fn a_way_is_as_fast_as_itself_and_both_run_in_turn() {
        let runs = std::cell::RefCell::new(String::new());
        let run = |name: char| {
            runs.borrow_mut().push(name);
            (0..10_000).fold(0u64, |sum, n| std::hint::black_box(sum + n));
        };
        let ways = Ways {
            what: "itself".to_owned(),
            first: Box::new(|| run('a')),
            other: Box::new(|| run('b')),
            turns: 5,
        };
        take_the_same_time("here", &mut [ways]);
        assert!(runs.borrow().starts_with("abaabaabaabaaba"));
    }

    #[test]
    fn a_neighbour_ends_with_its_value_and_leaves_the_affinity_as_it_was() {
        let before = sched_getaffinity(None).unwrap();
        let neighbour = Neighbour::start();
        let pid = neighbour.process.pid();
        neighbour.pause(true);
        neighbour.pause(false);
        assert!(crate::is_running(pid));
        drop(neighbour);
        assert!(!crate::is_running(pid) && sched_getaffinity(None).unwrap() == before);
    }
}
