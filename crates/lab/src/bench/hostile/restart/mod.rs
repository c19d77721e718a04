//! The IOKernel is replaced under busy programs: killed and started again, or taken over from.
//!
//! Owns the order of the processes and the figures. All are this program: the IOKernel, a TCP
//! service (that of `bench tcp`), a UDP service (that of `bench switch`), and the client
//! ([`client`]), which measures itself what each of its connections notices ([`window`]). A window
//! without an event precedes each event and shows what the machine alone does.
//!
//! An event is over when each connection has completed an exchange that began after the IOKernel
//! before was gone: such an exchange went through the next one.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tailwater_shm::Clock;
use tailwater_shm::clock::{self, Cycles};
use tailwater_testbed::bed::START_TIMEOUT;
use tailwater_testbed::child::{ChildProcess, Spec};
use tailwater_testbed::cores::CorePlan;
use tailwater_testbed::folder::Folder;
use tailwater_testbed::interrupt::{Interrupt, Interrupted};
use tailwater_testbed::machine::core_list;
use tailwater_testbed::note;
use tailwater_testbed::table::{Table, number};

mod child;
mod client;
mod window;

pub use child::{ChildArgs, run as run_child};
use window::{Event, Window};

// Outside the addresses that the IOKernel chooses.
const TCP_SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 200), 7);
const UDP_SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 201), 7);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 202);

/// Bars: the median pause of a takeover, and what of the longest pause of a restart is after the
/// new process's start. No connection may be lost.
const TAKEOVER_P50_MS: f64 = 20.0;
const FROM_START_MAX_MS: f64 = 300.0;

/// Calibration of the cycle clock, in milliseconds.
const CALIBRATION_MS: u64 = 20;

/// How the IOKernel is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Killed (SIGKILL), then another one is started at once.
    Restart,
    /// Another one takes over.
    Takeover,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Restart => "kill -9 and restart",
            Self::Takeover => "takeover",
        }
    }
}

/// What the programs noticed of all events.
#[derive(Debug, Serialize)]
pub(super) struct Replaced {
    #[serde(skip)]
    way: Way,
    times: usize,
    connections_lost: u64,
    requests_lost: u64,
    /// The longest time in which a connection or the UDP service completed no exchange, over the
    /// events.
    pause_p50_ms: f64,
    pause_max_ms: f64,
    /// Of the pauses, what is after the start of the new process.
    from_start_p50_ms: f64,
    from_start_max_ms: f64,
    /// The same in as many windows without an event.
    undisturbed_p50_ms: f64,
    undisturbed_max_ms: f64,
    /// The longest pause of the median connection, median over the events; and in windows without.
    median_connection_p50_ms: f64,
    undisturbed_median_connection_p50_ms: f64,
    /// How many connections paused for longer than [`TAKEOVER_P50_MS`], mean over the events; and
    /// in windows without.
    slow_connections: f64,
    undisturbed_slow_connections: f64,
}

/// Replaces the IOKernel so many times under busy programs.
pub(super) fn measure(
    way: Way,
    times: u16,
    cores: &CorePlan,
    interrupt: &Interrupt,
) -> anyhow::Result<Replaced> {
    let clock = Clock::calibrate(CALIBRATION_MS);
    let folder = Folder::new()?;
    let log = folder.path().join("log");
    let measured = Bed::start(cores, clock, &log, interrupt).and_then(|mut bed| {
        let (mut quiet, mut events) = (Vec::new(), Vec::new());
        for _ in 0..times {
            quiet.push(bed.window(Event::without(), interrupt)?);
            let event = bed.replace(way, interrupt)?;
            events.push(bed.window(event, interrupt)?);
        }
        Ok(Replaced::of(way, clock, &quiet, &events))
    });
    measured.map_err(|error| match std::fs::read_to_string(&log) {
        Ok(log) if !log.is_empty() && !error.is::<Interrupted>() => {
            error.context(format!("the log of the programs:\n{log}"))
        }
        _ => error,
    })
}

impl Event {
    /// Returns the time of a window in which nothing happens.
    fn without() -> Self {
        let now = clock::now();
        Self { after: now, started: now }
    }
}

/// The processes.
struct Bed {
    /// The polling core and the managed ones, as the IOKernel's arguments.
    cores: [String; 2],
    socket: String,
    iokernel: ChildProcess,
    client: ChildProcess,
    _services: [ChildProcess; 2],
}

impl Bed {
    /// Starts all processes, and waits until each connection is busy.
    fn start(cores: &CorePlan, clock: Clock, log: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let cores = [cores.polling.to_string(), core_list(&cores.managed)];
        let socket = format!("@tailwater-restart-{}", std::process::id());
        let mut iokernel = start_iokernel(&socket, &cores, false)?;
        expect_ready(&mut iokernel, interrupt)?;
        let start = |app, words: &[&str], name: &str, ip: Ipv4Addr| {
            let settings = settings(&socket, name, ip);
            let arguments = words.iter().map(|&word| word.to_owned()).collect();
            let spec = Spec { app, arguments, settings, log: Some(log.to_owned()), ..Spec::default() };
            ChildProcess::start(&spec)
        };
        let udp = start("echo", &[], "udp", *UDP_SERVICE.ip())?;
        let mut tcp = start("tcp", &["serve"], "tcp", *TCP_SERVICE.ip())?;
        expect_ready(&mut tcp, interrupt)?;
        let [to_tcp, to_udp] = [TCP_SERVICE, UDP_SERVICE].map(|service| service.to_string());
        let words = ["client", &to_tcp, &to_udp, &clock.hz().to_string()];
        let client = start("hostile", &words, "client", CLIENT_IP)?;
        let mut bed = Self { cores, socket, iokernel, client, _services: [udp, tcp] };
        let begun = bed.window(Event::without(), interrupt)?;
        let why = begun.failure.unwrap_or_default();
        anyhow::ensure!(begun.lost == 0, "{} connections do not begin: {why}", begun.lost);
        Ok(bed)
    }

    /// Replaces the IOKernel.
    fn replace(&mut self, way: Way, interrupt: &Interrupt) -> anyhow::Result<Event> {
        if way == Way::Restart {
            self.iokernel.kill();
        }
        let started = clock::now();
        let mut next = start_iokernel(&self.socket, &self.cores, way == Way::Takeover)?;
        expect_ready(&mut next, interrupt)?;
        let mut before = std::mem::replace(&mut self.iokernel, next);
        match way {
            Way::Restart => Ok(Event { after: started, started }),
            Way::Takeover => {
                before.finish(interrupt)?;
                Ok(Event { after: clock::now(), started })
            }
        }
    }

    /// Waits for the end of the window of an event.
    fn window(&mut self, event: Event, interrupt: &Interrupt) -> anyhow::Result<Window> {
        self.client.tell(&format!("{} {}", event.after, event.started))?;
        let line = self.client.read_line_within(client::PATIENCE + START_TIMEOUT, interrupt)?;
        let window: Window =
            serde_json::from_str(&line).with_context(|| format!("the client printed {line:?}, no window"))?;
        if let Some(why) = &window.failure {
            note!("{} connections lost, one of them: {why}", window.lost);
        }
        Ok(window)
    }
}

/// Starts an IOKernel, in the place of the one before with `takeover`.
pub(super) fn start_iokernel(
    socket: &str,
    cores: &[String; 2],
    takeover: bool,
) -> anyhow::Result<ChildProcess> {
    let words = ["iokernel", socket].into_iter().chain(cores.iter().map(String::as_str));
    let words = words.chain(takeover.then_some("--takeover"));
    let arguments = words.map(str::to_owned).collect();
    ChildProcess::start(&Spec { app: "hostile", arguments, ..Spec::default() })
}

pub(super) fn expect_ready(child: &mut ChildProcess, interrupt: &Interrupt) -> anyhow::Result<()> {
    let line = child.read_line(interrupt)?;
    anyhow::ensure!(line == "ready", "a child printed {line:?}, not `ready`");
    Ok(())
}

/// Returns the settings of a program, which waits for the next IOKernel for ever.
pub(super) fn settings(socket: &str, name: &str, ip: Ipv4Addr) -> Vec<(&'static str, String)> {
    vec![
        ("TAILWATER_IOKERNEL", socket.to_owned()),
        ("TAILWATER_NAME", name.to_owned()),
        ("TAILWATER_IP", ip.to_string()),
        ("TAILWATER_CLASS", "latency-critical".to_owned()),
        ("TAILWATER_KTHREADS", "1".to_owned()),
        ("TAILWATER_ON_IOKERNEL_LOSS", "wait".to_owned()),
        ("TAILWATER_IOKERNEL_WAIT_MS", "0".to_owned()),
    ]
}

impl Replaced {
    fn of(way: Way, clock: Clock, quiet: &[Window], events: &[Window]) -> Self {
        let sorted_ms = |windows: &[Window], length: fn(&Window) -> Cycles| -> Vec<f64> {
            let mut all: Vec<Cycles> = windows.iter().map(length).collect();
            all.sort_unstable();
            all.into_iter().map(|cycles| clock.to_ns(cycles) as f64 / 1e6).collect()
        };
        let p50 = |sorted: &[f64]| sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let max = |sorted: &[f64]| sorted.last().copied().unwrap_or(0.0);
        let sum = |count: fn(&Window) -> u64| quiet.iter().chain(events).map(count).sum();
        let pauses = sorted_ms(events, |window| window.pause);
        let from_start = sorted_ms(events, |window| window.from_start);
        let undisturbed = sorted_ms(quiet, |window| window.pause);
        let limit = clock.from_ns((TAKEOVER_P50_MS * 1e6) as u64);
        let slow = |windows: &[Window]| {
            let all: u64 = windows.iter().map(|window| window.slow_lanes(limit)).sum();
            all as f64 / windows.len().max(1) as f64
        };
        Self {
            way,
            times: events.len(),
            connections_lost: sum(|window| window.lost),
            requests_lost: sum(|window| window.requests_lost),
            pause_p50_ms: p50(&pauses),
            pause_max_ms: max(&pauses),
            from_start_p50_ms: p50(&from_start),
            from_start_max_ms: max(&from_start),
            undisturbed_p50_ms: p50(&undisturbed),
            undisturbed_max_ms: max(&undisturbed),
            median_connection_p50_ms: p50(&sorted_ms(events, Window::median_lane)),
            undisturbed_median_connection_p50_ms: p50(&sorted_ms(quiet, Window::median_lane)),
            slow_connections: slow(events),
            undisturbed_slow_connections: slow(quiet),
        }
    }

    /// Says what single connections noticed.
    fn of_connections(&self) -> String {
        format!(
            "{}: the median connection pauses for {} ms, without an event for {} ms; {:.1} of them, on average, for \
             longer\nthan {TAKEOVER_P50_MS} ms, without an event {:.1}\n",
            self.way.name(),
            number(self.median_connection_p50_ms),
            number(self.undisturbed_median_connection_p50_ms),
            self.slow_connections,
            self.undisturbed_slow_connections
        )
    }

    /// Returns whether the programs noticed no more than they may.
    fn is_harmless(&self) -> bool {
        let is_short = match self.way {
            Way::Restart => self.from_start_max_ms <= FROM_START_MAX_MS,
            Way::Takeover => self.pause_p50_ms <= TAKEOVER_P50_MS,
        };
        self.connections_lost == 0 && is_short
    }
}

/// Returns a table of the ways.
pub(super) fn describe(ways: &[&Replaced]) -> String {
    let mut table = Table::new(
        "IOKernel replaced under 64 busy connections, ms | times | pause p50 | max | \
         from the start p50 | max | undisturbed p50 | max | connections lost | requests lost | \
         harmless",
    );
    for replaced in ways {
        let lengths = [
            replaced.pause_p50_ms,
            replaced.pause_max_ms,
            replaced.from_start_p50_ms,
            replaced.from_start_max_ms,
            replaced.undisturbed_p50_ms,
            replaced.undisturbed_max_ms,
        ]
        .map(number);
        let row = [replaced.way.name().to_owned(), replaced.times.to_string()].into_iter().chain(lengths);
        let row = row.chain([replaced.connections_lost, replaced.requests_lost].map(|n| n.to_string()));
        table.row(row.chain([if replaced.is_harmless() { "yes" } else { "no" }.to_owned()]));
    }
    let lines: Vec<String> = ways.iter().map(|replaced| replaced.of_connections()).collect();
    format!(
        "{table}\n{}\nHarmless: no connection lost, and the longest pause of a restart at most {FROM_START_MAX_MS} ms from the \
         start of the\nnew process; of takeovers, the median pause at most {TAKEOVER_P50_MS} ms.\n",
        lines.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK_HZ: u64 = 1_000_000_000;

    fn window(pause_ms: u64, from_start_ms: u64) -> Window {
        let cycles = |ms| ms * 1_000_000;
        let lanes = vec![cycles(1), cycles(pause_ms)];
        Window { pause: cycles(pause_ms), from_start: cycles(from_start_ms), lanes, ..Window::default() }
    }

    fn replaced(way: Way, events: &[Window]) -> Replaced {
        Replaced::of(way, Clock::from_hz(CLOCK_HZ), &[window(3, 0)], events)
    }

    #[test]
    fn figures_are_medians_maxima_and_sums_over_the_events() {
        let lost = Window { lost: 1, requests_lost: 2, ..window(7, 6) };
        let figures = replaced(Way::Restart, &[window(90, 80), lost, window(10, 9)]);
        assert_eq!((figures.times, figures.connections_lost, figures.requests_lost), (3, 1, 2));
        assert_eq!((figures.pause_p50_ms, figures.pause_max_ms), (10.0, 90.0));
        assert_eq!((figures.from_start_p50_ms, figures.from_start_max_ms), (9.0, 80.0));
        assert_eq!((figures.undisturbed_p50_ms, figures.undisturbed_max_ms), (3.0, 3.0));
        assert_eq!(
            (figures.median_connection_p50_ms, figures.undisturbed_median_connection_p50_ms),
            (10.0, 3.0)
        );
        // 90 ms, of three events; and none of the one window without.
        assert_eq!((figures.slow_connections, figures.undisturbed_slow_connections), (1.0 / 3.0, 0.0));
        assert!(!figures.is_harmless(), "a connection is lost");
    }

    #[test]
    fn a_restart_is_judged_from_the_new_process_on_and_a_takeover_by_the_median() {
        assert!(replaced(Way::Restart, &[window(900, 300)]).is_harmless());
        assert!(!replaced(Way::Restart, &[window(900, 301)]).is_harmless());
        assert!(replaced(Way::Takeover, &[window(900, 900), window(20, 20), window(5, 5)]).is_harmless());
        assert!(!replaced(Way::Takeover, &[window(21, 21), window(5, 5)]).is_harmless());
    }
}
