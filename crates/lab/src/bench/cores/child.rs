//! The measured process: creates threads, and prints when they began as one line of JSON; or how
//! long a background thread takes to give way; or when requested cores run a user thread, how the
//! estimate follows a load, the memory in use, or where an exclusive thread and others ran.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use tailwater::thread::{self, Placement, ThreadClass};
use tailwater_shm::{Clock, clock};

use super::{estimator, exclusive, memory, request};

/// Threads of one burst.
const BURST: usize = 16;
/// Bursts of a run, and of its warm-up.
const BURSTS: usize = 2_000;
const WARM_UP: usize = 200;
/// Time between two wakes of the thread to which the background gives way.
const NAP: Duration = Duration::from_micros(100);
/// Work of a thread.
const WORK_NS: u64 = 2_000;

/// Measure one case of `bench cores`
#[derive(Debug, Args)]
pub struct ChildArgs {
    load: Load,
    /// For bursts and skew only
    way: Option<Way>,
    /// Number of requests, steps or threads
    #[arg(long, default_value_t = 0)]
    count: u32,
    /// Rest before each request, in microseconds
    #[arg(long, default_value_t = 0)]
    rest_us: u64,
    /// Request no core
    #[arg(long)]
    work_alone: bool,
}

/// What else runs.
#[derive(Debug, Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Nothing.
    Bursts,
    /// A thread that computes.
    Skew,
    /// A background thread, which gives way.
    Background,
    /// Nothing; cores are requested.
    Requests,
    /// Steps of load, which the estimate follows.
    Steps,
    /// Parked threads.
    Memory,
    /// An exclusive thread, and others that come and go.
    Exclusive,
}

impl Load {
    /// Those beside which threads are created.
    pub const ALL: [Self; 2] = [Self::Bursts, Self::Skew];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bursts => "bursts",
            Self::Skew => "skew",
            Self::Background => "background",
            Self::Requests => "requests",
            Self::Steps => "steps",
            Self::Memory => "memory",
            Self::Exclusive => "exclusive",
        }
    }
}

/// How threads are placed.
#[derive(Debug, Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// As by default.
    Parent,
    /// On the less loaded one of two kthreads.
    LeastLoaded,
}

impl Way {
    pub const ALL: [Self; 2] = [Self::Parent, Self::LeastLoaded];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::LeastLoaded => "least-loaded",
        }
    }

    fn placement(self) -> Placement {
        match self {
            Self::Parent => Placement::Parent,
            Self::LeastLoaded => Placement::LeastLoaded(2),
        }
    }
}

/// Measures and prints.
///
/// # Errors
/// If the runtime does not start, or a requested core does not come.
pub fn run(args: &ChildArgs) -> anyhow::Result<()> {
    match args.load {
        Load::Requests => {
            return request::child::run(args.count, Duration::from_micros(args.rest_us), !args.work_alone);
        }
        Load::Steps => return estimator::run_child(args.count),
        Load::Memory => return memory::run_child(args.count),
        Load::Exclusive => return exclusive::child::run(),
        Load::Bursts | Load::Skew | Load::Background => {}
    }
    let placement = args.way.map_or(Placement::Parent, Way::placement);
    let (load, clock) = (args.load, Clock::calibrate(20));
    let figures = tailwater::RuntimeBuilder::new().run(move || {
        if matches!(load, Load::Background) {
            return give_way(clock);
        }
        let ended = Arc::new(AtomicBool::new(false));
        let hog = matches!(load, Load::Skew).then(|| {
            let ended = Arc::clone(&ended);
            thread::spawn(move || compute_until(&ended))
        });
        let figures = bursts(placement, clock);
        ended.store(true, Relaxed);
        hog.into_iter().for_each(|hog| hog.join().expect("it does not panic"));
        figures
    })?;
    println!("{figures}");
    Ok(())
}

/// Computes without giving the kthread up.
fn compute_until(ended: &AtomicBool) {
    let mut value = 1u64;
    while !ended.load(Relaxed) {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

/// Returns the median time from the last loop of a background thread to the first instruction of
/// the ordinary thread to which it gives way.
fn give_way(clock: Clock) -> serde_json::Value {
    let (last, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (stamp, stop) = (Arc::clone(&last), Arc::clone(&ended));
    let body = move || {
        while !stop.load(Relaxed) {
            stamp.store(clock::now(), Relaxed);
            tailwater::poll();
        }
    };
    let batch = thread::Builder::new().class(ThreadClass::Background).spawn(body).expect("a stack");
    let mut switches = Vec::with_capacity(BURSTS);
    for n in 0..WARM_UP + BURSTS {
        thread::sleep(NAP);
        let switch = clock::now().saturating_sub(last.load(Relaxed));
        if n >= WARM_UP {
            switches.push(switch);
        }
    }
    ended.store(true, Relaxed);
    batch.join().expect("it does not panic");
    switches.sort_unstable();
    json!({ "switch_ns": clock.to_ns(switches[switches.len() / 2]) })
}

/// Returns percentiles of the time to the first instruction, and the creator's time.
fn bursts(placement: Placement, clock: Clock) -> serde_json::Value {
    let work = clock.from_ns(WORK_NS);
    let mut starts = Vec::with_capacity(BURSTS * BURST);
    let mut creates = Vec::with_capacity(BURSTS);
    for burst in 0..WARM_UP + BURSTS {
        let began: [AtomicU64; BURST] = std::array::from_fn(|_| AtomicU64::new(0));
        let mut created = [0; BURST];
        let mut spent = 0;
        thread::scope(|scope| {
            for (began, created) in began.iter().zip(&mut created) {
                *created = clock::now();
                let body = move || {
                    let first = clock::now();
                    began.store(first, Relaxed);
                    while clock::now().saturating_sub(first) < work {}
                };
                let builder = thread::Builder::new().placement(placement);
                builder.spawn_scoped(scope, body).expect("a stack");
                spent += clock::now().saturating_sub(*created);
            }
        });
        if burst >= WARM_UP {
            let start = |(began, created): (&AtomicU64, &u64)| began.load(Relaxed).saturating_sub(*created);
            starts.extend(began.iter().zip(&created).map(start));
            creates.push(spent / BURST as u64);
        }
    }
    let at = |all: &mut Vec<u64>, percent: usize| {
        all.sort_unstable();
        clock.to_ns(all[all.len() * percent / 100]) as f64
    };
    json!({
        "p50_us": at(&mut starts, 50) / 1e3,
        "p99_us": at(&mut starts, 99) / 1e3,
        "create_ns": at(&mut creates, 50),
    })
}
