//! `tailwater-lab bench switch`: frames per second from one runtime to another, and the round trip
//! of an echo.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_shm::ring::Consumer;
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_testkit::Program;
use tailwater_wire::MacAddr;

use super::common::{BenchError, Running, histogram, quantile_us, wait_for};
use super::prober::{Handle, Probe, prober};
use crate::kthread::{Behaviour, RawKthread, Step};
use crate::roles::Echo;
use crate::runtime::{RawRuntime, RawSpec};
use crate::wire::{Endpoint, UDP_HEADERS, udp};

/// Amount of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Length of the throughput measurement of each round.
    pub window: Duration,
    /// Bytes of each frame, with the Ethernet header, without the frame check sequence.
    pub frame_bytes: usize,
    /// Echo round trips per round.
    pub echoes: usize,
}

impl Default for SwitchOptions {
    /// 5 rounds of 0.4 s and 20 000 echoes, frames of 64 bytes: about 3 seconds.
    fn default() -> Self {
        Self { rounds: 5, window: Duration::from_millis(400), frame_bytes: 64, echoes: 20_000 }
    }
}

/// Results.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SwitchReport {
    /// Million frames per second through the polling thread, from one runtime to another: median
    /// over windows of 1 ms in which the machine took neither core away for long.
    pub mpps: f64,
    /// The same, best window.
    pub mpps_best: f64,
    /// The same over the whole time, including other programs on the two cores.
    pub mpps_overall: f64,
    /// Windows of 1 ms measured.
    pub windows: usize,
    /// Windows discarded because no frame arrived for over 50 us.
    pub windows_cut: usize,
    /// UDP echo, from the port to a running service and back, where the service is a user thread on
    /// a socket: median round trip in microseconds.
    pub echo_p50_us: f64,
    /// The same, 99th percentile.
    pub echo_p99_us: f64,
    /// The same, 99.9th percentile.
    pub echo_p999_us: f64,
    /// The same echo by a bare kthread on its rings, without sockets and user threads: median.
    pub raw_echo_p50_us: f64,
    /// The same, 99th percentile.
    pub raw_echo_p99_us: f64,
    /// The same, 99.9th percentile.
    pub raw_echo_p999_us: f64,
    /// Nanoseconds per packet of the firewall alone, with one rule.
    pub firewall_1_ns: f64,
    /// The same with ten rules, of which the last matches.
    pub firewall_10_ns: f64,
    /// The same with a hundred.
    pub firewall_100_ns: f64,
    /// Bytes of each frame of the throughput measurement.
    pub frame_bytes: usize,
}

/// Frames written, then read, per step of the pump: few enough to stay in the first-level cache.
const BURST: usize = 32;
/// Pause from an answer to the next echo.
const ECHO_GAP: Duration = Duration::from_micros(2);
/// Bytes of each ring.
const RING_BYTES: u32 = 1 << 16;

/// The name under which the service of [`switch`] registers.
pub const ECHO_NAME: &str = "echo";

/// Measures the switch. `service` returns a command that starts a runtime named [`ECHO_NAME`],
/// attached to the IOKernel with the given control socket, which echoes datagrams on UDP port 7 and
/// never parks.
///
/// # Errors
/// [`BenchError`] if something does not start or answer.
pub fn switch(options: SwitchOptions, service: &dyn Fn(&str) -> Command) -> Result<SwitchReport, BenchError> {
    let mut windows = Vec::new();
    let (mut echoes, mut raw_echoes) = (histogram(), histogram());
    for _ in 0..options.rounds.max(1) {
        throughput(options, &mut windows)?;
        raw_echo(options, &mut raw_echoes)?;
        echo(options, service, &mut echoes)?;
    }
    let mut whole: Vec<f64> = windows.iter().filter(|w| !w.cut).map(Window::mpps).collect();
    whole.sort_by(f64::total_cmp);
    let all = windows.iter().fold(Window::default(), |a, w| Window {
        frames: a.frames + w.frames,
        ns: a.ns + w.ns,
        cut: false,
    });
    let clock = Clock::calibrate(20);
    let firewall_ns = |rules| super::firewall::judge_ns(rules, clock);
    Ok(SwitchReport {
        mpps: whole.get(whole.len() / 2).copied().unwrap_or(0.0),
        mpps_best: whole.last().copied().unwrap_or(0.0),
        mpps_overall: all.mpps(),
        windows: windows.len(),
        windows_cut: windows.len() - whole.len(),
        echo_p50_us: quantile_us(&echoes, 0.5),
        echo_p99_us: quantile_us(&echoes, 0.99),
        echo_p999_us: quantile_us(&echoes, 0.999),
        raw_echo_p50_us: quantile_us(&raw_echoes, 0.5),
        raw_echo_p99_us: quantile_us(&raw_echoes, 0.99),
        raw_echo_p999_us: quantile_us(&raw_echoes, 0.999),
        firewall_1_ns: firewall_ns(1),
        firewall_10_ns: firewall_ns(10),
        firewall_100_ns: firewall_ns(100),
        frame_bytes: options.frame_bytes,
    })
}

/// Measures the throughput: one thread on the managed core is a kthread of runtime A and also
/// empties the ingress ring of runtime B.
fn throughput(options: SwitchOptions, windows: &mut Vec<Window>) -> Result<(), BenchError> {
    let running = Running::start(Vec::new())?;
    let mut spec = RawSpec::new("b").best_effort();
    spec.register.ring_bytes = RING_BYTES;
    // B's own kthread sleeps; A's kthread empties its ring.
    let (b, rings) = RawRuntime::start_asleep(&running.socket, &spec)?;
    let rings = Mutex::new(rings);
    let received = Arc::new(AtomicU64::new(0));
    let log = Arc::new(Mutex::new(Vec::<Window>::new()));
    let mut spec = RawSpec::new("a");
    spec.register.guaranteed = 1;
    spec.register.ring_bytes = RING_BYTES;
    let to = Endpoint { mac: b.mac(), ip: b.ip(), port: 9 };
    let a = RawRuntime::start(&running.socket, &spec, |_| {
        Box::new(Pump {
            frame: Vec::new(),
            payload: options.frame_bytes.saturating_sub(UDP_HEADERS),
            to,
            peer: rings.lock().unwrap_or_else(PoisonError::into_inner).pop().expect("A has one kthread"),
            in_flight: 0,
            received: Arc::clone(&received),
            log: Arc::clone(&log),
            meter: Meter::default(),
        })
    })?;
    a.submit(0);
    wait_for("the first frames", || received.load(Ordering::Relaxed) > 1_000)?;
    std::thread::sleep(options.window);
    // On a busy machine the pump may have run for less than a window meanwhile.
    let measured = || log.lock().unwrap_or_else(PoisonError::into_inner);
    wait_for("a window with frames", || measured().iter().any(|window| window.frames > 0))?;
    drop(a);
    windows.append(&mut measured());
    Ok(())
}

/// Measures round trips between a port and a service whose kthread runs all the time.
fn raw_echo(options: SwitchOptions, into: &mut Histogram<u64>) -> Result<(), BenchError> {
    raw_round_trips(options.echoes, ECHO_GAP)?.into_iter().for_each(|ns| into.saturating_record(ns));
    Ok(())
}

/// Returns the nanoseconds of `count` round trips, each begun `gap` after the end of the last,
/// between a port and a bare kthread that runs all the time: the cost of the IOKernel and shared
/// memory without sockets and user threads.
///
/// # Errors
/// [`BenchError`] if something does not start or answer.
pub fn raw_round_trips(count: usize, gap: Duration) -> Result<Vec<u64>, BenchError> {
    let (port, prober) = prober();
    let running = Running::start(vec![Box::new(port)])?;
    let spec = RawSpec { spin_us: 10_000_000, ..RawSpec::new("service") };
    let service = RawRuntime::start(&running.socket, &spec, |_| Box::<Echo>::default())?;
    let target = Endpoint { mac: service.mac(), ip: service.ip(), port: 7 };
    let mut trips = Vec::with_capacity(count);
    round_trips(&prober, target, count, gap, |ns| trips.push(ns))?;
    Ok(trips)
}

/// Measures the same with a service of the runtime library, in its own process.
fn echo(
    options: SwitchOptions,
    service: &dyn Fn(&str) -> Command,
    into: &mut Histogram<u64>,
) -> Result<(), BenchError> {
    let (port, prober) = prober();
    let running = Running::start(vec![Box::new(port)])?;
    // Its standard input stays open until it is dropped.
    let mut command = service(&running.socket);
    let _service = Program::try_spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
        .map_err(|e| BenchError::Child(format!("cannot start {command:?}: {e}")))?;
    let registered = || running.stats.runtimes().into_iter().find(|runtime| runtime.name == ECHO_NAME);
    wait_for("the start of the echo service", || registered().is_some())?;
    let service = registered().ok_or_else(|| BenchError::Child("the echo service ended".to_owned()))?;
    let target = Endpoint { mac: service.mac, ip: service.ip, port: 7 };
    round_trips(&prober, target, options.echoes, ECHO_GAP, |ns| into.saturating_record(ns))
}

fn round_trips(
    prober: &Handle,
    target: Endpoint,
    count: usize,
    gap: Duration,
    mut record: impl FnMut(u64),
) -> Result<(), BenchError> {
    let probe = |count| Probe { target, gap, count };
    // The first ones find cold caches, and a service that has just registered may not listen yet.
    prober.measure(probe(100))?;
    for sample in prober.measure(probe(count))? {
        record(sample.answered);
    }
    Ok(())
}

/// Fills A's egress ring and empties B's ingress ring.
struct Pump {
    frame: Vec<u8>,
    payload: usize,
    to: Endpoint,
    peer: Consumer,
    in_flight: usize,
    received: Arc<AtomicU64>,
    log: Arc<Mutex<Vec<Window>>>,
    meter: Meter,
}

/// The frames received in about 1 ms.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    frames: u64,
    ns: u64,
    cut: bool,
}

impl Window {
    fn mpps(&self) -> f64 {
        self.frames as f64 * 1e3 / self.ns.max(1) as f64
    }
}

/// Cuts time into windows.
#[derive(Debug, Default)]
struct Meter {
    began: Cycles,
    /// Time at which frames last arrived.
    last: Cycles,
    frames: u64,
    cut: bool,
}

const WINDOW_NS: u64 = 1_000_000;
/// Frames arrive every few microseconds; a longer pause means that another program had one of the
/// cores.
const STALL_NS: u64 = 50_000;

impl Meter {
    /// Counts `frames` received by `now`; returns the window if it is complete.
    fn count(&mut self, frames: u64, now: Cycles, clock: Clock) -> Option<Window> {
        if self.began == 0 {
            (self.began, self.last) = (now, now);
        }
        // Without progress for so long, this thread or the polling thread was descheduled.
        self.cut |= clock.to_ns(now.saturating_sub(self.last)) > STALL_NS;
        if frames > 0 {
            self.last = now;
        }
        self.frames += frames;
        let length = clock.to_ns(now.saturating_sub(self.began));
        (length >= WINDOW_NS).then(|| {
            let window = Window { frames: self.frames, ns: length, cut: self.cut };
            *self = Self { began: now, last: now, frames: 0, cut: false };
            window
        })
    }
}

/// Maximum number of frames between the two rings: keeps either from filling up.
const IN_FLIGHT: usize = 256;

impl Behaviour for Pump {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        for _ in 0..BURST {
            if self.in_flight >= IN_FLIGHT {
                break;
            }
            let Ok(mut slot) = kthread.egress.reserve(self.frame.len()) else { break };
            slot.write(0, &self.frame);
            slot.commit(0, 0, 0);
            self.in_flight += 1;
        }
        let mut taken = 0;
        while taken < BURST {
            let Some(record) = self.peer.peek().expect("the IOKernel keeps the ring protocol") else { break };
            // Reads the payload, as a receiver would.
            let first = record.first_line();
            debug_assert_eq!(first.frame()[12..14], self.frame[12..14]);
            record.advance();
            taken += 1;
        }
        self.peer.publish();
        self.in_flight -= taken.min(self.in_flight);
        let total = self.received.load(Ordering::Relaxed) + taken as u64;
        self.received.store(total, Ordering::Relaxed);
        if let Some(window) = self.meter.count(taken as u64, clock::now(), kthread.clock) {
            // Read at the end only, when the measured time is over.
            self.log.lock().unwrap_or_else(PoisonError::into_inner).push(window);
        }
        Step::Busy
    }

    fn has_work(&self, _kthread: &RawKthread) -> bool {
        true
    }

    fn started(&mut self, kthread: &mut RawKthread, _now: Cycles) {
        kthread.submitted().store(0, Ordering::Relaxed);
        let welcome = &kthread.shared.welcome;
        let from = Endpoint { mac: MacAddr(welcome.mac), ip: welcome.ip, port: 9 };
        self.frame = udp(from, self.to, &vec![0; self.payload]);
    }
}
