//! The coordinator's side: a fleet of agents that run one load together.
//!
//! Owns the conversation with every agent, the comparison of clocks, the common start and the
//! joining of measurements. Each agent has a thread that reads from it; everything else happens on
//! the caller's thread.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tailwater_workload::Interval;

use crate::clock::Clock;
use crate::coordinate::wire::{Answer, Job, MAX_ANSWER, MAX_ORDER, Order, VERSION, Writer, read, watch};
use crate::report::Measurement;

/// Clock readings requested from each agent before a job.
pub const CLOCK_SAMPLES: u32 = 8;

/// Maximum number of agents of a fleet.
pub const MAX_AGENTS: usize = 256;

/// Longest time for an answer that needs no work.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Longest time for an agent to get ready, which may include storing data.
const READY_PATIENCE: Duration = Duration::from_secs(600);

/// Longest time a job may exceed its plan.
const DONE_PATIENCE: Duration = Duration::from_secs(30);

/// Time between the order to start and the start, beside twice the longest round trip: enough for
/// an agent's thread to be woken on a busy machine.
const LEAD: Duration = Duration::from_millis(20);

/// Interval at which the coordinator checks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(50);

/// Why a fleet was not connected, or ran no job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// There are too many addresses, or none.
    #[error("{count} agents: a fleet has 1 to {MAX_AGENTS}")]
    Count {
        /// Number of addresses.
        count: usize,
    },
    /// An agent failed.
    #[error("agent {agent}: {problem}")]
    Agent {
        /// Its address.
        agent: SocketAddr,
        /// What it did.
        problem: AgentProblem,
    },
}

/// An agent's failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentProblem {
    /// The connection was not made.
    #[error("{error}; is `tailwater load --agent` running there?")]
    Connect {
        /// The system's answer.
        error: Failure,
    },
    /// This host could not set the conversation up, or a message was not sent or not understood.
    #[error("{error}")]
    Message {
        /// The system's answer, or the decoder's.
        error: Failure,
    },
    /// It is another version's agent.
    #[error(
        "it speaks version {version} of the agents' messages, we speak {VERSION}; use the same tailwater on both"
    )]
    Version {
        /// Its version.
        version: u32,
    },
    /// It did not greet as an agent does.
    #[error("what listens there is no `tailwater load --agent`")]
    NotAnAgent,
    /// It closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// It did not answer within the time for that.
    #[error("it does not answer")]
    Silent,
    /// The wait for it was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// It did not prepare the job.
    #[error("it is not ready: {why}")]
    NotReady {
        /// What it did instead.
        why: Box<AgentProblem>,
    },
    /// It answered the question for its clock with something else.
    #[error("it does not tell its time")]
    NoTime,
    /// It had no job.
    #[error("it has no job")]
    NoJob,
    /// It did not finish the job in time.
    #[error("it did not finish in time")]
    Unfinished,
    /// It failed at the job.
    #[error("{message}")]
    Job {
        /// Its own words.
        message: String,
    },
}

/// An [`io::Error`] that several may keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// Its kind.
    pub kind: io::ErrorKind,
    text: String,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self { kind: error.kind(), text: error.to_string() }
    }
}

impl From<io::Error> for AgentProblem {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Closed,
            _ => Self::Message { error: error.into() },
        }
    }
}

/// One agent's outcome of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentOutcome {
    /// Its address.
    pub agent: String,
    /// Error bound of its start, in microseconds.
    pub start_uncertainty_us: f64,
    /// Requests that fell due at this agent.
    pub offered: u64,
    /// Why its share is missing; none if it is included.
    pub failure: Option<String>,
}

/// The outcome of a fleet's job.
#[derive(Debug, Clone)]
pub struct FleetOutcome {
    /// The joined measurement of all agents that finished.
    pub measurement: Measurement,
    /// Start of the schedules, by the coordinator's clock.
    pub started: Instant,
    /// One for each agent.
    pub agents: Vec<AgentOutcome>,
}

/// A message from an agent, with its time of arrival; `Err` if the agent is gone.
struct Event {
    agent: usize,
    at: Instant,
    what: Result<Answer, AgentProblem>,
}

struct Agent {
    address: SocketAddr,
    writer: Arc<Writer>,
    /// Offset from this clock to the agent's, and its error bound.
    offset_ns: i128,
    uncertainty_ns: u64,
    /// True if it has a job without an answer.
    busy: bool,
    gone: Option<AgentProblem>,
}

/// See the [module](self).
pub struct Fleet {
    clock: Clock,
    agents: Vec<Agent>,
    inbox: Receiver<Event>,
}

/// The state of an agent during a job.
#[derive(Debug)]
enum Fate {
    Pending,
    Done(Box<Measurement>),
    Failed(AgentProblem),
}

impl Fleet {
    /// Connects to `addresses`, 1 to [`MAX_AGENTS`] of them.
    ///
    /// # Errors
    /// If there are too many agents or none, or the first one that cannot be reached or speaks
    /// another version.
    pub fn connect(addresses: &[SocketAddr]) -> Result<Self, FleetError> {
        if !(1..=MAX_AGENTS).contains(&addresses.len()) {
            return Err(FleetError::Count { count: addresses.len() });
        }
        let (events, inbox) = channel();
        let clock = Clock::start();
        let mut agents = Vec::new();
        for (index, &address) in addresses.iter().enumerate() {
            let agent = Agent::connect(address, index, &events)
                .map_err(|problem| FleetError::Agent { agent: address, problem })?;
            // At once: agents do not wait for long, and the next one may be slow to reach.
            agent.order::<()>(&Order::Hello { version: VERSION })?;
            agents.push(agent);
        }
        let fleet = Self { clock, agents, inbox };
        fleet.await_greetings()?;
        Ok(fleet)
    }

    /// Waits until all agents have greeted in this version.
    fn await_greetings(&self) -> Result<(), FleetError> {
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let mut greeted = vec![false; self.agents.len()];
        while let Some(missing) = greeted.iter().position(|greeted| !greeted) {
            let event = self
                .next_event(deadline, &AtomicBool::new(false))
                .map_err(|problem| self.agents[missing].wrong(problem))?;
            let agent = &self.agents[event.agent];
            match event.what {
                Ok(Answer::Hello { version: VERSION, .. }) => greeted[event.agent] = true,
                Ok(Answer::Hello { version, .. }) => {
                    return Err(agent.wrong(AgentProblem::Version { version }));
                }
                Ok(_) => return Err(agent.wrong(AgentProblem::NotAnAgent)),
                Err(AgentProblem::Message { error }) if error.kind == io::ErrorKind::InvalidData => {
                    return Err(agent.wrong(AgentProblem::NotAnAgent));
                }
                Err(problem) => return Err(agent.wrong(problem)),
            }
        }
        Ok(())
    }

    /// Returns how many agents there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// Runs `jobs`, one for each agent, from a common start until all are over or `stop` is set.
    /// Passes intervals on as they arrive: the agent's index, the interval's length and the
    /// interval.
    ///
    /// # Errors
    /// If an agent is not ready to start, or none finishes. An agent that fails later is part of
    /// the outcome.
    ///
    /// # Panics
    /// If there are not as many jobs as agents.
    pub fn run<T: Serialize>(
        &mut self,
        jobs: Vec<Job<T>>,
        stop: &AtomicBool,
        mut on_interval: impl FnMut(usize, u64, &Interval),
    ) -> Result<FleetOutcome, FleetError> {
        assert_eq!(jobs.len(), self.agents.len(), "each agent needs a job");
        let patience = jobs
            .iter()
            .map(|job| {
                Duration::from_nanos(job.plan.schedule.length_ns().saturating_add(job.plan.timeout_ns))
            })
            .max()
            .unwrap_or_default()
            + DONE_PATIENCE;
        let started = match self.prepare(jobs, stop) {
            Ok(started) => started,
            Err(error) => {
                self.abandon();
                return Err(error);
            }
        };
        let fates = self.collect(patience, stop, &mut on_interval);
        self.join(started, fates)
    }

    /// Prepares and starts all agents; returns the start.
    fn prepare<T: Serialize>(&mut self, jobs: Vec<Job<T>>, stop: &AtomicBool) -> Result<Instant, FleetError> {
        // Their readers have ended and report nothing more, and an order to a closed connection may
        // seem to arrive.
        if let Some((agent, problem)) =
            self.agents.iter().find_map(|agent| Some((agent, agent.gone.clone()?)))
        {
            return Err(agent.wrong(problem));
        }
        for (agent, job) in self.agents.iter_mut().zip(jobs) {
            agent.order(&Order::Prepare(Box::new(job)))?;
            agent.busy = true;
        }
        let mut ready = vec![false; self.agents.len()];
        let deadline = Instant::now() + READY_PATIENCE;
        while ready.contains(&false) {
            let event = self.next_event(deadline, stop).map_err(|problem| {
                let slow = ready.iter().position(|&ready| !ready).unwrap_or(0);
                self.agents[slow].wrong(AgentProblem::NotReady { why: Box::new(problem) })
            })?;
            let agent = &mut self.agents[event.agent];
            match event.what {
                Ok(Answer::Ready) => ready[event.agent] = true,
                Ok(Answer::Failed { message }) => {
                    agent.busy = false;
                    return Err(agent.wrong(AgentProblem::Job { message }));
                }
                Ok(_) => {}
                Err(problem) => {
                    agent.gone = Some(problem.clone());
                    return Err(agent.wrong(problem));
                }
            }
        }
        // As late as possible: clocks drift apart.
        for index in 0..self.agents.len() {
            self.compare_clocks(index, stop)?;
        }
        let slowest_ns = self.agents.iter().map(|agent| agent.uncertainty_ns).max().unwrap_or(0);
        // The uncertainty is half a round trip.
        let start_ns = self.clock.now_ns() + LEAD.as_nanos() as u64 + 4 * slowest_ns;
        for agent in &self.agents {
            let at_ns = u64::try_from(i128::from(start_ns) + agent.offset_ns).unwrap_or(0);
            agent.order::<()>(&Order::Start { at_ns })?;
        }
        // Some milliseconds from now.
        Ok(self.clock.instant_at(start_ns).unwrap_or_else(Instant::now))
    }

    /// Ends all agents' jobs and waits for them, so that the next job finds them idle.
    fn abandon(&mut self) {
        let stop = AtomicBool::new(true);
        let _: Vec<Fate> = self.collect(ANSWER_PATIENCE, &stop, &mut |_, _, _| {});
    }

    /// Waits for all agents to finish.
    fn collect(
        &mut self,
        patience: Duration,
        stop: &AtomicBool,
        on_interval: &mut dyn FnMut(usize, u64, &Interval),
    ) -> Vec<Fate> {
        let fate = |agent: &Agent| match &agent.gone {
            Some(problem) => Fate::Failed(problem.clone()),
            None if agent.busy => Fate::Pending,
            None => Fate::Failed(AgentProblem::NoJob),
        };
        let mut fates: Vec<Fate> = self.agents.iter().map(fate).collect();
        let mut deadline = Instant::now() + patience;
        let mut told = false;
        while fates.iter().any(|fate| matches!(fate, Fate::Pending)) {
            if stop.load(Relaxed) && !told {
                told = true;
                deadline = Instant::now() + ANSWER_PATIENCE.min(patience);
                for agent in &self.agents {
                    // An agent that cannot be reached is gone, which its reader detects.
                    let _ = agent.order::<()>(&Order::Stop);
                }
            }
            let event = match self.inbox.recv_timeout(GLANCE) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => continue,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            };
            match event.what {
                Ok(Answer::Interval { length_ns, interval }) => {
                    on_interval(event.agent, length_ns, &interval);
                }
                Ok(Answer::Done(measurement)) => fates[event.agent] = Fate::Done(measurement),
                Ok(Answer::Failed { message }) => {
                    fates[event.agent] = Fate::Failed(AgentProblem::Job { message });
                }
                Ok(Answer::Hello { .. } | Answer::Time { .. } | Answer::Ready) => {}
                Err(problem) => {
                    self.agents[event.agent].gone = Some(problem.clone());
                    if matches!(fates[event.agent], Fate::Pending) {
                        fates[event.agent] = Fate::Failed(problem);
                    }
                }
            }
        }
        for (agent, fate) in self.agents.iter_mut().zip(&mut fates) {
            agent.busy = false;
            if matches!(fate, Fate::Pending) {
                let problem = AgentProblem::Unfinished;
                // Later messages of this agent belong to no job.
                agent.writer.close();
                agent.gone = Some(problem.clone());
                *fate = Fate::Failed(problem);
            }
        }
        fates
    }

    fn join(&self, started: Instant, fates: Vec<Fate>) -> Result<FleetOutcome, FleetError> {
        let mut joined: Option<Measurement> = None;
        let mut agents = Vec::new();
        let mut first_failure = None;
        for (agent, fate) in self.agents.iter().zip(fates) {
            let (offered, failure) = match fate {
                Fate::Done(measurement) => {
                    let offered = measurement.summary.counts().offered;
                    match &mut joined {
                        None => joined = Some(*measurement),
                        Some(joined) => joined.merge_parallel(&measurement),
                    }
                    (offered, None)
                }
                Fate::Failed(problem) => (0, Some(problem)),
                Fate::Pending => (0, Some(AgentProblem::Unfinished)),
            };
            if let Some(problem) = &failure {
                first_failure.get_or_insert_with(|| agent.wrong(problem.clone()));
            }
            agents.push(AgentOutcome {
                agent: agent.address.to_string(),
                start_uncertainty_us: agent.uncertainty_ns as f64 / 1e3,
                offered,
                failure: failure.map(|problem| problem.to_string()),
            });
        }
        match (joined, first_failure) {
            (Some(measurement), _) => Ok(FleetOutcome { measurement, started, agents }),
            (None, failure) => Err(failure.unwrap_or(FleetError::Count { count: 0 })),
        }
    }

    /// Reads the clock of agent `index` several times and keeps the quickest answer.
    fn compare_clocks(&mut self, index: usize, stop: &AtomicBool) -> Result<(), FleetError> {
        let mut best: Option<(u64, i128)> = None;
        for _ in 0..CLOCK_SAMPLES {
            let asked_ns = self.clock.now_ns();
            self.agents[index].order::<()>(&Order::Time)?;
            let (at, answer) = self.await_answer(index, ANSWER_PATIENCE, stop)?;
            let Answer::Time { now_ns } = answer else {
                return Err(self.agents[index].wrong(AgentProblem::NoTime));
            };
            let answered_ns = self.clock.reading_at(at);
            let round_trip_ns = answered_ns.saturating_sub(asked_ns);
            let middle_ns = i128::from(asked_ns) + i128::from(round_trip_ns / 2);
            if best.is_none_or(|(shortest_ns, _)| round_trip_ns < shortest_ns) {
                best = Some((round_trip_ns, i128::from(now_ns) - middle_ns));
            }
        }
        if let Some((round_trip_ns, offset_ns)) = best {
            self.agents[index].offset_ns = offset_ns;
            self.agents[index].uncertainty_ns = round_trip_ns.div_ceil(2);
        }
        Ok(())
    }

    /// Returns the next answer of agent `index`; remembers agents that are gone meanwhile.
    fn await_answer(
        &mut self,
        index: usize,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<(Instant, Answer), FleetError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(problem) = &self.agents[index].gone {
                return Err(self.agents[index].wrong(problem.clone()));
            }
            let event =
                self.next_event(deadline, stop).map_err(|problem| self.agents[index].wrong(problem))?;
            match event.what {
                Err(problem) => self.agents[event.agent].gone = Some(problem),
                Ok(Answer::Failed { message }) => {
                    self.agents[event.agent].busy = false;
                    return Err(self.agents[event.agent].wrong(AgentProblem::Job { message }));
                }
                // A late message of an earlier job.
                Ok(Answer::Interval { .. } | Answer::Done(_)) => {}
                Ok(answer) if event.agent == index => return Ok((event.at, answer)),
                Ok(_) => {}
            }
        }
    }

    fn next_event(&self, deadline: Instant, stop: &AtomicBool) -> Result<Event, AgentProblem> {
        loop {
            match self.inbox.recv_timeout(GLANCE) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Disconnected) => return Err(AgentProblem::Closed),
                Err(RecvTimeoutError::Timeout) if stop.load(Relaxed) => {
                    return Err(AgentProblem::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    return Err(AgentProblem::Silent);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Ends the readers, and the agents' conversations.
        self.agents.iter().for_each(|agent| agent.writer.close());
    }
}

impl Agent {
    fn connect(address: SocketAddr, index: usize, events: &Sender<Event>) -> Result<Self, AgentProblem> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_PATIENCE)
            .map_err(|error| AgentProblem::Connect { error: error.into() })?;
        watch(&stream)?;
        let writer = Arc::new(Writer::new(stream.try_clone()?, MAX_ORDER));
        let events = events.clone();
        std::thread::Builder::new().name(format!("agent {address}")).spawn(move || {
            read_answers(&stream, index, &events);
        })?;
        Ok(Self { address, writer, offset_ns: 0, uncertainty_ns: 0, busy: false, gone: None })
    }

    fn order<T: Serialize>(&self, order: &Order<T>) -> Result<(), FleetError> {
        self.writer.send(order).map_err(|error| self.wrong(error.into()))
    }

    fn wrong(&self, problem: AgentProblem) -> FleetError {
        FleetError::Agent { agent: self.address, problem }
    }
}

/// Reads until the connection ends or the receiver is gone.
fn read_answers(mut stream: &TcpStream, agent: usize, events: &Sender<Event>) {
    loop {
        let what = read::<Answer>(&mut stream, MAX_ANSWER).map_err(AgentProblem::from);
        let last = what.is_err();
        if events.send(Event { agent, at: Instant::now(), what }).is_err() || last {
            return;
        }
    }
}
