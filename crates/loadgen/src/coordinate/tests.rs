//! Agents and a coordinator in one process, over TCP on the loopback device; jobs run a generator
//! against a perfect server in the same thread.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tailwater_testkit::eventually;
use tailwater_workload::spin::{Reply, Request};

use super::agent::{HELLO_PATIENCE, serve_by};
use super::fleet::Fleet;
use super::wire::{Answer, Job, MAX_ANSWER, MAX_ORDER, Order, SILENCE, VERSION, read, watch, write};
use crate::clock::Clock;
use crate::control::Control;
use crate::generator::Generator;
use crate::plan::Plan;
use crate::report::Measurement;

/// The behaviour of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Behaviour {
    Answer,
    FailBeforeTheStart,
    FailAfterTheStart,
    Panic,
}

/// Runs a job, and sends `starts` the start of its schedule.
fn run_job(
    job: &Job<Behaviour>,
    control: &Control<'_>,
    starts: &Mutex<Vec<Instant>>,
) -> Result<Measurement, String> {
    if job.target == Behaviour::FailBeforeTheStart {
        return Err("no server answered".to_owned());
    }
    let clock = Clock::start();
    let note = |at: Instant| starts.lock().unwrap().push(at);
    let start_ns = control.with_start_observer(&note).start_ns(&clock).map_err(|error| error.to_string())?;
    match job.target {
        Behaviour::FailAfterTheStart => return Err("the network is down".to_owned()),
        Behaviour::Panic => panic!("on purpose"),
        Behaviour::Answer | Behaviour::FailBeforeTheStart => {}
    }
    let mut generator =
        Generator::new(job.plan.clone(), job.seed, start_ns).map_err(|error| error.to_string())?;
    while control.turn(&mut generator, clock.now_ns()) {
        while let Some(outgoing) = generator.poll_due(clock.now_ns()) {
            let mut bytes = Vec::new();
            generator.encode(&outgoing, &mut bytes);
            let request = Request::decode(&bytes).unwrap();
            generator.handle_reply(clock.now_ns(), outgoing.flow, &Reply { request, served_ns: 0 }.encode());
        }
        // Not the whole of a core of the machine that runs tests.
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(generator.finish(clock.now_ns()))
}

struct TestAgent {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// When the schedules of its jobs started.
    starts: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl TestAgent {
    fn start() -> Self {
        Self::start_ahead(Duration::ZERO)
    }

    /// Starts an agent whose clocks are ahead by that much.
    fn start_ahead(ahead: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let starts = Arc::new(Mutex::new(Vec::new()));
        let (stopped, told) = (Arc::clone(&stop), Arc::clone(&starts));
        let thread = std::thread::spawn(move || {
            let run_job = |job: &Job<Behaviour>, control: &Control<'_>| run_job(job, control, &told);
            let clock = || Clock::started_at(Instant::now().checked_sub(ahead).unwrap());
            serve_by(&listener, run_job, &stopped, false, clock).unwrap();
        });
        Self { address, stop, starts, thread: Some(thread) }
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn job(target: Behaviour, seed: u64) -> Job<Behaviour> {
    let mut plan = Plan::new("300ms@2k".parse().unwrap(), "const:0ns".parse().unwrap());
    plan.arrivals = "const".parse().unwrap();
    plan.intervals = true;
    plan.timeout_ns = 20_000_000_000;
    Job { target, plan, seed, live: true }
}

#[test]
fn two_agents_start_together_and_their_measurements_are_joined() {
    // Their clocks differ from each other and from the coordinator's.
    let agents = [3, 7].map(|seconds| TestAgent::start_ahead(Duration::from_secs(seconds)));
    let mut fleet = Fleet::connect(&agents.each_ref().map(|agent| agent.address)).unwrap();
    let stop = AtomicBool::new(false);
    // Twice, as a sweep does.
    for round in 0..2 {
        let mut live = [0, 0];
        let jobs = vec![job(Behaviour::Answer, 2 * round), job(Behaviour::Answer, 2 * round + 1)];
        let outcome =
            fleet.run(jobs, &stop, |agent, _, interval| live[agent] += interval.counts.offered).unwrap();
        let counts = outcome.measurement.summary.counts();
        assert_eq!((counts.offered, counts.completed), (1200, 1200));
        assert_eq!(outcome.measurement.summary.histogram().len(), 1200);
        // Side by side, not one after the other.
        assert_eq!(outcome.measurement.summary.duration_ns(), 300_000_000);
        assert!(outcome.agents.iter().all(|agent| agent.failure.is_none() && agent.offered == 600));
        // The last interval is not live; on a busy machine others, too, are closed by the end only.
        assert!(live.iter().all(|&offered| offered <= 600), "{live:?}");
        for (agent, said) in agents.iter().zip(&outcome.agents) {
            let at = agent.starts.lock().unwrap()[round as usize];
            let off = at.max(outcome.started) - at.min(outcome.started);
            assert!(off.as_nanos() as f64 / 1e3 <= said.start_uncertainty_us, "{off:?} off: {said:?}");
        }
    }
}

#[test]
fn a_watched_connection_asks_whether_its_peer_is_there_within_the_silence_it_allows() {
    use rustix::net::sockopt;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    watch(&stream).unwrap();
    assert!(sockopt::socket_keepalive(&stream).unwrap());
    let asked = sockopt::tcp_keepidle(&stream).unwrap()
        + sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
    assert!(asked <= SILENCE, "{asked:?}");
    assert_eq!(u128::from(sockopt::tcp_user_timeout(&stream).unwrap()), SILENCE.as_millis());
    assert_eq!(stream.write_timeout().unwrap(), Some(SILENCE));
}

#[test]
fn whoever_says_nothing_does_not_keep_the_next_coordinator_waiting() {
    let agent = TestAgent::start();
    let begin = Instant::now();
    let silent = TcpStream::connect(agent.address).unwrap();
    // Neither does a peer that begins a message and stops.
    let mut halting = TcpStream::connect(agent.address).unwrap();
    halting.write_all(&[0, 0]).unwrap();
    // On a busy machine a coordinator may give up before both have been heard out.
    let mut fleet = eventually("the agent answers", || Fleet::connect(&[agent.address]).ok());
    assert!(begin.elapsed() >= HELLO_PATIENCE, "both were heard out first");
    let outcome = fleet.run(vec![job(Behaviour::Answer, 1)], &AtomicBool::new(false), |_, _, _| {}).unwrap();
    assert_eq!(outcome.measurement.summary.counts().offered, 600);
    drop((silent, halting));
}

#[test]
fn an_agent_that_cannot_start_stops_all_and_is_named() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let mut fleet = Fleet::connect(&agents.each_ref().map(|agent| agent.address)).unwrap();
    let stop = AtomicBool::new(false);
    let jobs = vec![job(Behaviour::Answer, 1), job(Behaviour::FailBeforeTheStart, 2)];
    let error = fleet.run(jobs, &stop, |_, _, _| {}).unwrap_err();
    assert_eq!(error.to_string(), format!("agent {}: no server answered", agents[1].address));
    // And it can be used again.
    let jobs = vec![job(Behaviour::Answer, 1), job(Behaviour::Answer, 2)];
    assert_eq!(fleet.run(jobs, &stop, |_, _, _| {}).unwrap().measurement.summary.counts().offered, 1200);
}

#[test]
fn an_agent_that_fails_later_leaves_the_others_share() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let mut fleet = Fleet::connect(&agents.each_ref().map(|agent| agent.address)).unwrap();
    let stop = AtomicBool::new(false);
    for (behaviour, part) in
        [(Behaviour::FailAfterTheStart, "network is down"), (Behaviour::Panic, "panicked")]
    {
        let jobs = vec![job(behaviour, 1), job(Behaviour::Answer, 2)];
        let outcome = fleet.run(jobs, &stop, |_, _, _| {}).unwrap();
        assert_eq!(outcome.measurement.summary.counts().offered, 600);
        assert!(outcome.agents[0].failure.as_ref().unwrap().contains(part), "{:?}", outcome.agents);
        assert_eq!(outcome.agents[1].failure, None);
    }
}

#[test]
fn an_agent_that_vanishes_is_named() {
    let agent = TestAgent::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Greets, answers clock queries, gets ready, and vanishes.
    let vanishing = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Ok(order) = read::<Order<Behaviour>>(&mut stream, MAX_ORDER) {
            let answer = match order {
                Order::Hello { .. } => Answer::Hello { version: VERSION, pid: 1 },
                Order::Time => Answer::Time { now_ns: 5 },
                Order::Prepare(_) => Answer::Ready,
                Order::Start { .. } | Order::Stop => return,
            };
            write(&mut stream, &answer, MAX_ANSWER).unwrap();
        }
    });
    let mut fleet = Fleet::connect(&[agent.address, address]).unwrap();
    let jobs = vec![job(Behaviour::Answer, 1), job(Behaviour::Answer, 2)];
    let outcome = fleet.run(jobs, &AtomicBool::new(false), |_, _, _| {}).unwrap();
    assert_eq!(outcome.agents[1].failure.as_deref(), Some("it closed the connection"));
    assert_eq!(outcome.measurement.summary.counts().offered, 600);
    vanishing.join().unwrap();
    let jobs = vec![job(Behaviour::Answer, 1), job(Behaviour::Answer, 2)];
    let error = fleet.run(jobs, &AtomicBool::new(false), |_, _, _| {}).unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn a_stopped_fleet_reports_what_it_has() {
    let agent = TestAgent::start();
    let mut fleet = Fleet::connect(&[agent.address]).unwrap();
    let stop = AtomicBool::new(false);
    let mut long = job(Behaviour::Answer, 1);
    long.plan.schedule = "1h@2k".parse().unwrap();
    let outcome = fleet.run(vec![long], &stop, |_, _, _| stop.store(true, Relaxed)).unwrap();
    assert!(outcome.measurement.interrupted);
    assert!(outcome.measurement.summary.counts().offered > 0);
}

#[test]
fn an_agent_whose_user_ends_it_sends_what_it_has() {
    let agent = TestAgent::start();
    let mut fleet = Fleet::connect(&[agent.address]).unwrap();
    let mut long = job(Behaviour::Answer, 1);
    long.plan.schedule = "1h@2k".parse().unwrap();
    let stop_agent = |_: usize, _: u64, _: &_| agent.stop.store(true, Relaxed);
    let outcome = fleet.run(vec![long], &AtomicBool::new(false), stop_agent).unwrap();
    assert!(outcome.measurement.interrupted);
    assert!(outcome.measurement.summary.counts().offered > 0);
}

#[test]
fn the_next_coordinator_is_served_after_one_that_vanished_or_talked_nonsense() {
    let agent = TestAgent::start();
    let mut nonsense = TcpStream::connect(agent.address).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(nonsense);
    let mut half = TcpStream::connect(agent.address).unwrap();
    half.write_all(&[0, 0, 0, 9, b'{']).unwrap();
    drop(half);
    let mut vanishing = Fleet::connect(&[agent.address]).unwrap();
    let mut long = job(Behaviour::Answer, 1);
    long.plan.schedule = "1h@2k".parse().unwrap();
    let stop = AtomicBool::new(false);
    // Out of the middle of a run.
    let _ = vanishing.run(vec![long], &stop, |_, _, _| stop.store(true, Relaxed));
    drop(vanishing);
    let mut fleet = Fleet::connect(&[agent.address]).unwrap();
    let outcome = fleet.run(vec![job(Behaviour::Answer, 1)], &AtomicBool::new(false), |_, _, _| {}).unwrap();
    assert_eq!(outcome.measurement.summary.counts().offered, 600);
}

#[test]
fn nobody_listening_is_an_error_that_says_what_to_do() {
    let free = tailwater_testkit::loopback_address();
    let error = Fleet::connect(&[free]).err().unwrap().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("load --agent"), "{error}");
}

#[test]
fn messages_read_back_and_garbage_is_refused() {
    let mut bytes = Vec::new();
    let order = Order::Prepare(Box::new(job(Behaviour::Answer, 7)));
    write(&mut bytes, &order, MAX_ORDER).unwrap();
    assert_eq!(read::<Order<Behaviour>>(bytes.as_slice(), MAX_ORDER).unwrap(), order);
    assert!(write(Vec::new(), &order, 10).is_err());
    for (garbage, kind) in [
        (&b"\xff\xff\xff\xff"[..], std::io::ErrorKind::InvalidData),
        (b"\0\0\0\x02{}", std::io::ErrorKind::InvalidData),
        (b"\0\0\0\x05{}", std::io::ErrorKind::UnexpectedEof),
        (b"\0\0", std::io::ErrorKind::UnexpectedEof),
    ] {
        assert_eq!(read::<Order<Behaviour>>(garbage, MAX_ORDER).unwrap_err().kind(), kind, "{garbage:?}");
    }
}
