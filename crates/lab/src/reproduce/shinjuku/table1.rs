//! Table 1: what it costs to make another core stop what it does.
//!
//! Owns the measurement of a notification: one thread computes, another one notifies it, by a
//! signal, by a timer that sends one, or by a flag that the first one tests. The handler sets the
//! same flag. The other thread's signal goes to the process, whichever thread runs its handler; the
//! timer's goes to the thread that computes.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Signal, getpid, kill_process};
use rustix::thread::gettid;
use tailwater_iokernel_testing::ThreadTimer;
use tailwater_shm::{Clock, Cycles, clock};

use super::super::figure::{Bar, Claim, Context, Figure, Outcome, Panel, Spread, Table, draw, number};
use super::super::rounds::{self, in_turn};

/// How the other core is notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    Flag,
    Signal,
    /// The notification is due when the timer is; what it costs the sender is to set the timer.
    Timer,
}

const MECHANISMS: [(Mechanism, &str); 3] = [
    (Mechanism::Flag, "flag at a poll point"),
    (Mechanism::Signal, "signal from another core"),
    (Mechanism::Timer, "timer signal"),
];
/// What is not measured.
const USER_INTERRUPTS: &str = "user interrupts";
const ROUNDS: usize = 11;
const NOTIFICATIONS: u64 = 500;
const QUICK_NOTIFICATIONS: u64 = 20;
/// Time between two notifications, in which the receiver computes.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a notification may take before the machine is too busy for a result.
const PATIENCE: Duration = Duration::from_secs(120);
/// Shinjuku's interrupts without exits, in cycles.
const PAPERS_SENDER: f64 = 298.0;
const PAPERS_RECEIVER: f64 = 1_212.0;
/// "High": sender and receiver together, in nanoseconds.
const HIGH_NS: f64 = 2_500.0;

/// What a notification costs, medians of a round in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// From before the sender's instruction or call until after it.
    sender_ns: f64,
    /// The gap in what the receiver does.
    receiver_ns: f64,
    /// From before the sender's call until the receiver has seen it.
    total_ns: f64,
}

pub fn run(figure: &Figure, context: &Context) -> anyhow::Result<Outcome> {
    let clock = Clock::from_hz(context.machine.tsc_hz);
    let (rounds, count) = (context.rounds(ROUNDS), context.choose(NOTIFICATIONS, QUICK_NOTIFICATIONS));
    let mut costs = MECHANISMS.map(Point::new);
    in_turn(figure, context, (costs.len(), rounds), |index, _| {
        let cost = measure(costs[index].key.0, count, clock)?;
        costs[index].samples.push(cost);
        Ok(())
    })?;
    let hz = clock.hz() as f64;
    let own = [
        format!("{rounds} round(s) of {count} notifications, {} us apart; medians of a round.", PAUSE.as_micros()),
        format!(
            "Not measured: posted interrupts, which need a kernel module such as Dune; user interrupts, for which \
             {}.",
            if has_user_interrupts() {
                "Linux has no system calls, though this processor has them"
            } else {
                "this processor has no instructions, nor Linux system calls"
            }
        ),
        "A timer's sender sets it, 50 us ahead, and its total begins when it is due: the runtime sends such signals at \
         the kernel's own tick only, for code that reaches no poll point."
            .to_owned(),
    ];
    Ok(Outcome {
        svg: draw(figure.title, &panels(&costs)),
        data: rounds::data(&costs, "mechanism", cells, &VALUES),
        summary: summary(&costs, hz),
        claims: claims(&costs, hz),
        notes: context.notes(own, rounds)?,
    })
}

/// What sender and receiver share.
#[derive(Default)]
struct Shared {
    /// Set by the sender or by the signal handler; cleared by the receiver.
    flag: Arc<AtomicBool>,
    /// When the last notification began. Written before `flag`, read after it.
    sent: AtomicU64,
    /// Number of notifications that the receiver has seen.
    seen: AtomicU64,
    ended: AtomicBool,
}

/// Measures `count` notifications from a thread of its own to the calling one.
fn measure(mechanism: Mechanism, count: u64, clock: Clock) -> anyhow::Result<Cost> {
    let shared = Shared::default();
    let handler = signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&shared.flag))?;
    let timer = match mechanism {
        Mechanism::Timer => Some(ThreadTimer::new(gettid(), Signal::USR1).context("cannot make a timer")?),
        Mechanism::Flag | Mechanism::Signal => None,
    };
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let costs = send(mechanism, timer.as_ref(), count, clock, &shared);
            shared.ended.store(true, Release);
            costs
        });
        let received = receive(&shared);
        (sender.join().expect("the sender does not panic"), received)
    });
    signal_hook::low_level::unregister(handler);
    let sent = sent?;
    anyhow::ensure!(!received.is_empty(), "no notification was seen: the machine is too busy for this table");
    let median = |cycles: Vec<Cycles>| {
        Spread::of(cycles.into_iter().map(|cycles| clock.to_ns(cycles) as f64)).map_or(0.0, |all| all.median)
    };
    Ok(Cost {
        sender_ns: median(sent),
        receiver_ns: median(received.iter().map(|one| one.gap).collect()),
        total_ns: median(received.iter().map(|one| one.total).collect()),
    })
}

/// Sends notifications, each after the last one was seen; returns what each cost the sender. With a
/// `timer` that sends them.
fn send(
    mechanism: Mechanism,
    timer: Option<&ThreadTimer>,
    count: u64,
    clock: Clock,
    shared: &Shared,
) -> anyhow::Result<Vec<Cycles>> {
    let pause = clock.from_ns(PAUSE.as_nanos() as u64);
    let mut costs = Vec::with_capacity(count as usize);
    for sent in 0..count {
        let due = clock::now() + pause;
        while timer.is_none() && clock::now() < due {
            spin_loop();
        }
        let began = clock::now();
        shared.sent.store(if timer.is_some() { began + pause } else { began }, Relaxed);
        match (timer, mechanism) {
            (Some(timer), _) => timer.fire_in(PAUSE)?,
            // Pairs with the receiver's load.
            (None, Mechanism::Flag) => shared.flag.store(true, Release),
            (None, _) => kill_process(getpid(), Signal::USR1)?,
        }
        costs.push(clock::now().saturating_sub(began));
        let deadline = Instant::now() + PATIENCE;
        while shared.seen.load(Acquire) == sent {
            anyhow::ensure!(Instant::now() < deadline, "a notification took over {} s", PATIENCE.as_secs());
            spin_loop();
        }
    }
    Ok(costs)
}

/// One notification, as the receiver sees it.
#[derive(Debug, Clone, Copy)]
struct Received {
    gap: Cycles,
    total: Cycles,
}

/// Tests the flag until the sender has ended; returns what each notification cost.
fn receive(shared: &Shared) -> Vec<Received> {
    let mut all = Vec::new();
    let mut last = clock::now();
    while !shared.ended.load(Relaxed) {
        let seen = shared.flag.load(Acquire);
        let now = clock::now();
        if seen {
            let sent = shared.sent.load(Relaxed);
            all.push(Received { gap: now.saturating_sub(last), total: now.saturating_sub(sent) });
            shared.flag.store(false, Relaxed);
            shared.seen.fetch_add(1, Release);
        }
        last = clock::now();
    }
    all
}

/// A mechanism, and its costs in each round.
type Point = rounds::Point<(Mechanism, &'static str), Cost>;

/// Returns a figure's spread over the rounds of a mechanism.
fn spread(costs: &Point, of: rounds::Value<Cost>) -> Spread {
    costs.spread(of).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 })
}

const VALUES: [(&str, usize, rounds::Value<Cost>); 3] = [
    ("sender_ns", 1, |cost| cost.sender_ns),
    ("receiver_ns", 1, |cost| cost.receiver_ns),
    ("total_ns", 1, |cost| cost.total_ns),
];
const TITLES: [&str; 3] = ["sender", "receiver", "total"];

fn cells(&(_, name): &(Mechanism, &'static str)) -> Vec<String> {
    vec![name.to_owned()]
}

/// Returns whether this processor has user interrupts.
fn has_user_interrupts() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "uintr"))
}

fn panels(costs: &[Point; 3]) -> Vec<Panel> {
    let bar = |point: &Point, of| {
        let Spread { median, min, max } = spread(point, of);
        Bar { name: point.key.1.to_owned(), value: median, range: (min, max) }
    };
    let panel = |(title, (_, _, of)): (&str, _)| {
        Panel::of_bars(title, "ns", costs.iter().map(|point| bar(point, of)).collect())
    };
    TITLES.into_iter().zip(VALUES).map(panel).collect()
}

fn summary(costs: &[Point; 3], hz: f64) -> Table {
    let mut table =
        Table::new("mechanism | sender ns | receiver ns | total ns | sender cycles | receiver cycles");
    for costs in costs {
        let all = VALUES.map(|(_, _, of)| spread(costs, of));
        let in_cycles = all[..2].iter().map(|spread| number(cycles(spread.median, hz)));
        table.row(cells(&costs.key).into_iter().chain(all.map(|spread| spread.to_string())).chain(in_cycles));
    }
    let mut missing = vec!["not here".to_owned(); 6];
    USER_INTERRUPTS.clone_into(&mut missing[0]);
    table.row(missing);
    table
}

fn cycles(ns: f64, hz: f64) -> f64 {
    ns * hz / 1e9
}

fn claims([flag, signal, _timer]: &[Point; 3], hz: f64) -> Vec<Claim> {
    let of = |costs: &Point| VALUES.map(|(_, _, of)| spread(costs, of).median);
    let ([sender, receiver, total], [signal_sender, signal_receiver, signal_total]) = (of(flag), of(signal));
    vec![
        Claim::new(
            "signals incur high overheads for both the sender and the receiver, about 2.5 us on a machine of 2 GHz",
            format!(
                "{} ns for the sender, {} ns for the receiver, {} ns in all",
                number(signal_sender),
                number(signal_receiver),
                number(signal_total)
            ),
            signal_sender + signal_receiver >= HIGH_NS,
        ),
        Claim::new(
            "Shinjuku's interrupts cost the sender 298 cycles and the receiver 1,212, little enough to preempt every 5 us",
            format!(
                "a flag at a poll point costs {} and {} cycles, and is seen after {} ns",
                number(cycles(sender, hz)),
                number(cycles(receiver, hz)),
                number(total)
            ),
            cycles(sender, hz) <= PAPERS_SENDER && cycles(receiver, hz) <= PAPERS_RECEIVER,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::claim::Verdict::{NotReached, Reached};
    use super::*;

    #[test]
    fn each_claim_follows_the_numbers() {
        let cost = |ns: f64| Point {
            key: MECHANISMS[0],
            samples: vec![Cost { sender_ns: ns, receiver_ns: ns, total_ns: 2.0 * ns }],
        };
        let verdicts = |flag: f64, signal: f64| -> Vec<_> {
            claims(&[cost(flag), cost(signal), cost(3_000.0)], 2e9)
                .iter()
                .map(|claim| claim.verdict)
                .collect()
        };
        assert_eq!(verdicts(100.0, 2_000.0), [Reached; 2]);
        assert_eq!(verdicts(200.0, 1_000.0), [NotReached; 2], "400 cycles for the sender");
        let summary = summary(&[cost(100.0), cost(2_000.0), cost(3_000.0)], 2e9);
        assert_eq!(summary.rows()[0][5], "200");
        assert_eq!(summary.rows()[3][..2], ["user interrupts", "not here"]);
    }

    #[test]
    fn every_notification_is_seen_once() {
        let shared = Shared::default();
        let clock = Clock::calibrate(5);
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                send(Mechanism::Flag, None, 10, clock, &shared).unwrap();
                shared.ended.store(true, Release);
            });
            receive(&shared)
        });
        assert_eq!((received.len(), shared.seen.load(Relaxed)), (10, 10));
    }

    #[test]
    fn every_mechanism_notifies() {
        let clock = Clock::calibrate(5);
        for (mechanism, name) in MECHANISMS {
            let cost = measure(mechanism, 5, clock).unwrap();
            assert!(cost.sender_ns > 0.0 && cost.receiver_ns > 0.0, "{name}: {cost:?}");
        }
    }
}
