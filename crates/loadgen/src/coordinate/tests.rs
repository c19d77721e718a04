//! Agents and a coordinator in one process, over TCP on the loopback device; jobs run a generator
//! against a perfect server in the same thread.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tailwater_testkit::{PATIENCE, unless_too_busy};
use tailwater_workload::Interval;
use tailwater_workload::spin::{Reply, Request};

use super::agent::{HELLO_PATIENCE, serve_by};
use super::fleet::{Fleet, FleetOutcome};
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
    plan.timeout_ns = PATIENCE.as_nanos() as u64;
    Job { target, plan, seed, live: true }
}

/// Connects to these agents; an error is a message, as [`unless_too_busy`] takes it.
fn connect(agents: &[&TestAgent]) -> Result<Fleet, String> {
    let addresses: Vec<SocketAddr> = agents.iter().map(|agent| agent.address).collect();
    Fleet::connect(&addresses).map_err(|error| error.to_string())
}

/// Runs jobs; the failure of any agent is an error.
fn run(
    fleet: &mut Fleet,
    jobs: Vec<Job<Behaviour>>,
    stop: &AtomicBool,
    on_interval: impl FnMut(usize, u64, &Interval),
) -> Result<FleetOutcome, String> {
    let outcome = fleet.run(jobs, stop, on_interval).map_err(|error| error.to_string())?;
    match outcome.agents.iter().find_map(|agent| agent.failure.clone()) {
        Some(failure) => Err(failure),
        None => Ok(outcome),
    }
}

/// Runs jobs, each of 600 requests, to their end, and checks that all were offered.
fn run_to_the_end(fleet: &mut Fleet, jobs: Vec<Job<Behaviour>>) -> Result<(), String> {
    let count = jobs.len() as u64;
    let outcome = run(fleet, jobs, &AtomicBool::new(false), |_, _, _| {})?;
    assert_eq!(outcome.measurement.summary.counts().offered, 600 * count);
    Ok(())
}

#[test]
fn two_agents_start_together_and_their_measurements_are_joined() {
    // Their clocks differ from each other and from the coordinator's.
    let agents = [3, 7].map(|seconds| TestAgent::start_ahead(Duration::from_secs(seconds)));
    let stop = AtomicBool::new(false);
    unless_too_busy(|| {
        let mut fleet = connect(&agents.each_ref())?;
        // Twice, as a sweep does.
        for round in 0..2 {
            let mut live = [0, 0];
            let jobs = vec![job(Behaviour::Answer, 2 * round), job(Behaviour::Answer, 2 * round + 1)];
            let on_interval = |agent: usize, _, interval: &Interval| live[agent] += interval.counts.offered;
            let outcome = run(&mut fleet, jobs, &stop, on_interval)?;
            let counts = outcome.measurement.summary.counts();
            assert_eq!((counts.offered, counts.completed), (1200, 1200));
            assert_eq!(outcome.measurement.summary.histogram().len(), 1200);
            // Side by side, not one after the other.
            assert_eq!(outcome.measurement.summary.duration_ns(), 300_000_000);
            assert!(outcome.agents.iter().all(|agent| agent.offered == 600));
            // The last interval is not live; on a busy machine others, too, are closed by the end
            // only.
            assert!(live.iter().all(|&offered| offered <= 600), "{live:?}");
            for (agent, said) in agents.iter().zip(&outcome.agents) {
                let at = *agent.starts.lock().unwrap().last().unwrap();
                let off = at.max(outcome.started) - at.min(outcome.started);
                assert!(off.as_nanos() as f64 / 1e3 <= said.start_uncertainty_us, "{off:?} off: {said:?}");
            }
        }
        Ok(())
    });
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
    // A coordinator may give up before both have been heard out.
    unless_too_busy(|| {
        let mut fleet = connect(&[&agent])?;
        assert!(begin.elapsed() >= HELLO_PATIENCE, "both were heard out first");
        run_to_the_end(&mut fleet, vec![job(Behaviour::Answer, 1)])
    });
    drop((silent, halting));
}

#[test]
fn an_agent_that_cannot_start_stops_all_and_is_named() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let stop = AtomicBool::new(false);
    unless_too_busy(|| {
        let mut fleet = connect(&agents.each_ref())?;
        let jobs = vec![job(Behaviour::Answer, 1), job(Behaviour::FailBeforeTheStart, 2)];
        let error = fleet.run(jobs, &stop, |_, _, _| {}).unwrap_err().to_string();
        if !error.contains("no server answered") {
            return Err(error);
        }
        assert!(error.contains(&agents[1].address.to_string()), "{error}");
        // And it can be used again.
        run_to_the_end(&mut fleet, vec![job(Behaviour::Answer, 1), job(Behaviour::Answer, 2)])
    });
}

#[test]
fn an_agent_that_fails_later_leaves_the_others_share() {
    let agents = [TestAgent::start(), TestAgent::start()];
    let stop = AtomicBool::new(false);
    unless_too_busy(|| {
        let mut fleet = connect(&agents.each_ref())?;
        for (behaviour, part) in
            [(Behaviour::FailAfterTheStart, "network is down"), (Behaviour::Panic, "panicked")]
        {
            let jobs = vec![job(behaviour, 1), job(Behaviour::Answer, 2)];
            let outcome = fleet.run(jobs, &stop, |_, _, _| {}).map_err(|error| error.to_string())?;
            let failed = outcome.agents[0].failure.as_ref().unwrap();
            if let Some(other) = &outcome.agents[1].failure {
                return Err(other.clone());
            }
            if !failed.contains(part) {
                return Err(failed.clone());
            }
            assert_eq!(outcome.measurement.summary.counts().offered, 600);
        }
        Ok(())
    });
}

/// Returns the address of an agent that greets, answers clock queries, gets ready, and vanishes.
fn vanishing_agent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with its conversation, or with the process.
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Ok(order) = read::<Order<Behaviour>>(&mut stream, MAX_ORDER) {
            let answer = match order {
                Order::Hello { .. } => Answer::Hello { version: VERSION, pid: 1 },
                Order::Time => Answer::Time { now_ns: 5 },
                Order::Prepare(_) => Answer::Ready,
                Order::Start { .. } | Order::Stop => return,
            };
            if write(&mut stream, &answer, MAX_ANSWER).is_err() {
                return;
            }
        }
    });
    address
}

#[test]
fn an_agent_that_vanishes_is_named() {
    let agent = TestAgent::start();
    let stop = AtomicBool::new(false);
    unless_too_busy(|| {
        let address = vanishing_agent();
        let mut fleet = Fleet::connect(&[agent.address, address]).map_err(|error| error.to_string())?;
        let jobs = || vec![job(Behaviour::Answer, 1), job(Behaviour::Answer, 2)];
        let outcome = fleet.run(jobs(), &stop, |_, _, _| {}).map_err(|error| error.to_string())?;
        if let Some(other) = &outcome.agents[0].failure {
            return Err(other.clone());
        }
        assert!(outcome.agents[1].failure.as_ref().unwrap().contains("closed"), "{:?}", outcome.agents);
        assert_eq!(outcome.measurement.summary.counts().offered, 600);
        let error = fleet.run(jobs(), &stop, |_, _, _| {}).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        Ok(())
    });
}

#[test]
fn a_stopped_fleet_reports_what_it_has() {
    let agent = TestAgent::start();
    unless_too_busy(|| {
        let (mut fleet, stop) = (connect(&[&agent])?, AtomicBool::new(false));
        let outcome = run(&mut fleet, vec![long_job()], &stop, |_, _, _| stop.store(true, Relaxed))?;
        assert!(outcome.measurement.interrupted);
        assert!(outcome.measurement.summary.counts().offered > 0);
        Ok(())
    });
}

/// Returns a job of an hour.
fn long_job() -> Job<Behaviour> {
    let mut long = job(Behaviour::Answer, 1);
    long.plan.schedule = "1h@2k".parse().unwrap();
    long
}

#[test]
fn an_agent_whose_user_ends_it_sends_what_it_has() {
    unless_too_busy(|| {
        let agent = TestAgent::start();
        let mut fleet = connect(&[&agent])?;
        let stop_agent = |_: usize, _: u64, _: &_| agent.stop.store(true, Relaxed);
        let outcome = run(&mut fleet, vec![long_job()], &AtomicBool::new(false), stop_agent)?;
        assert!(outcome.measurement.interrupted);
        assert!(outcome.measurement.summary.counts().offered > 0);
        Ok(())
    });
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
    unless_too_busy(|| {
        let (mut vanishing, stop) = (connect(&[&agent])?, AtomicBool::new(false));
        // Out of the middle of a run.
        let _ = vanishing.run(vec![long_job()], &stop, |_, _, _| stop.store(true, Relaxed));
        drop(vanishing);
        run_to_the_end(&mut connect(&[&agent])?, vec![job(Behaviour::Answer, 1)])
    });
}

#[test]
fn nobody_listening_is_an_error_that_says_what_to_do() {
    let free = tailwater_testkit::loopback_address();
    let error = Fleet::connect(&[free]).err().unwrap().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("load --agent"), "{error}");
}

#[test]
fn a_server_of_another_kind_is_no_agent() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut client, _) = server.accept().unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = Fleet::connect(&[address]).err().unwrap().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("no `tailwater load --agent`"), "{error}");
    answering.join().unwrap();
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
