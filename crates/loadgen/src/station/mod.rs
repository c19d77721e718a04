//! The generator as a port of an IOKernel: a station in the machine's network that sends requests
//! and receives replies.
//!
//! Owns the station's addresses, the headers of its frames, its first contact with the server, the
//! data to store before (`preload`), and the exchange between the polling thread, which has the
//! [`Station`], and the measuring thread, which has the [`StationHandle`]. Runs follow one another;
//! each ends with its measurement returned through the handle.
//!
//! On the polling thread nothing blocks, and a spin request costs about 100 ns: one draw, a copy of
//! 74 bytes, one injection. Frames are sent and received inside the IOKernel's own loop, as by a
//! network card, so a request is due, sent and answered without a system call or a second core.
//!
//! Commands and events travel through `std::sync::mpsc`, which never blocks the sender; a bell
//! announces a command. A handle that is dropped ends the run; a station that is dropped (with its
//! IOKernel) ends every wait.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use tailwater_ports::{Attachment, Context, Delivery, Inject, Port, PortError};
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_wire::MacAddr;
use tailwater_workload::Interval;

use crate::control::LEAD_NS;
use crate::generator::Generator;
use crate::plan::{Plan, PlanError};
use crate::protocol::{Medium, Protocol, Request, Verdict};
use crate::report::Measurement;
use crate::target::WrongAnswer;

pub(crate) mod arp;
pub(crate) mod bell;
mod preload;
pub(crate) mod wire;
use arp::ArpAnswers;
use bell::Bell;
use preload::Preload;
use wire::Host;

/// First source port; a plan's flows use this one and the following ones.
const FIRST_PORT: u16 = 40_000;

/// Interval at which an unanswered first contact is repeated.
const CONTACT_INTERVAL_NS: u64 = 50_000_000;

/// Id of the first contact. Its port is not one of the run's, so its answers are not taken for the
/// run's.
const CONTACT_ID: u64 = 0;
const CONTACT_PORT: u16 = FIRST_PORT - 1;

/// After this long without a frame the IOKernel may sleep between two polls, and a gap between them
/// says nothing about the machine. Below its shortest useful `idle-sleep-us`.
pub(crate) const MAY_SLEEP_NS: u64 = 500_000;

/// Why a run did not take place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StationError {
    /// The plan itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing answered.
    #[error(
        "no {protocol} server answered at {server} within {waited_ms} ms; is it attached to this IOKernel and listening on this port?"
    )]
    NoServer {
        /// What it was asked in.
        protocol: &'static str,
        /// Where it was looked for.
        server: SocketAddrV4,
        /// For how long.
        waited_ms: u64,
    },
    /// What answered did not answer right.
    #[error(transparent)]
    WrongAnswer(#[from] WrongAnswer),
    /// What the protocol reads could not be stored.
    #[error("the server did not take {missing} of the {all} requests before the measurement")]
    Preload {
        /// Requests without the right answer when it was given up.
        missing: u64,
        /// All of them.
        all: u64,
    },
    /// The handle's owner stopped it.
    #[error("the run was stopped before it began")]
    Stopped,
    /// The polling thread is gone.
    #[error("the IOKernel ended")]
    Ended,
}

/// One run: what to send, and where.
#[derive(Debug, Clone)]
pub struct Order {
    /// When to send.
    pub plan: Plan,
    /// What to send.
    pub protocol: Arc<dyn Protocol>,
    /// True if the data that the protocol reads is stored first.
    pub preload: bool,
    /// Fixes every request.
    pub seed: u64,
    /// The server.
    pub server: SocketAddrV4,
    /// Longest time until it answers the first contact.
    pub wait: Duration,
}

#[derive(Debug)]
enum Command {
    Run(Box<Order>),
    Stop,
}

/// The progress of a run.
#[derive(Debug)]
pub enum Progress {
    /// The server answered; the schedule starts at this time.
    Started(Instant),
    /// An interval is over, of a run whose plan keeps them.
    Interval(Box<Interval>),
    /// The run is over, or was stopped.
    Finished(Box<Measurement>),
}

type Event = Result<Progress, StationError>;

/// Creates a station and its handle. Give the station to an IOKernel; `ip` must be an address of
/// its network.
///
/// # Errors
/// If the kernel has no event descriptor left.
pub fn station(name: &str, ip: Ipv4Addr) -> std::io::Result<(Station, StationHandle)> {
    let bell = Arc::new(Bell::new()?);
    let own = Host { mac: MacAddr::derived(ip), ip };
    let (to_station, commands) = channel();
    let (events, from_station) = channel();
    let station = Station {
        name: name.to_owned(),
        own,
        clock: Clock::from_hz(1_000_000_000),
        origin: 0,
        bell: Arc::clone(&bell),
        commands,
        events,
        stage: Stage::Idle,
        answers: ArpAnswers::new(own),
        last_frame_ns: 0,
    };
    Ok((station, StationHandle { to_station, from_station, bell }))
}

/// The measuring side. One run at a time: each ends before the next is ordered.
#[derive(Debug)]
pub struct StationHandle {
    to_station: Sender<Command>,
    from_station: Receiver<Event>,
    bell: Arc<Bell>,
}

impl StationHandle {
    /// Orders a run: the station contacts the server and starts the schedule when it has answered.
    /// [`StationHandle::wait`] reports the progress.
    ///
    /// # Errors
    /// [`StationError::Plan`], or [`StationError::Ended`] if the IOKernel is gone.
    pub fn start(&self, order: Order) -> Result<(), StationError> {
        order.plan.check()?;
        self.send(Command::Run(Box::new(order)))
    }

    /// Waits at most `timeout` for the next step of the run; `None` when there was none.
    ///
    /// # Errors
    /// Why the run did not take place, or [`StationError::Ended`]. The station is then idle.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Progress>, StationError> {
        match self.from_station.recv_timeout(timeout) {
            Ok(event) => event.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(StationError::Ended),
        }
    }

    /// Ends the current run; the measurement so far is still returned. Does nothing without a run.
    pub fn stop(&self) {
        // Fails only when the station is gone, and with it the run.
        let _ = self.send(Command::Stop);
    }

    fn send(&self, command: Command) -> Result<(), StationError> {
        self.to_station.send(command).map_err(|_| StationError::Ended)?;
        self.bell.ring();
        Ok(())
    }
}

impl Drop for StationHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The port. See the [module](self).
#[derive(Debug)]
pub struct Station {
    name: String,
    own: Host,
    clock: Clock,
    /// Cycle count that is 0 ns.
    origin: Cycles,
    bell: Arc<Bell>,
    commands: Receiver<Command>,
    events: Sender<Event>,
    stage: Stage,
    /// ARP replies that the next poll sends.
    answers: ArpAnswers,
    last_frame_ns: u64,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Contact {
        order: Box<Order>,
        since_ns: u64,
        ask_at_ns: u64,
        /// True if the server sent only wrong answers.
        wrong: bool,
    },
    Preload(Box<Preload>),
    Run(Box<Run>),
}

#[derive(Debug)]
struct Run {
    generator: Generator,
    server: SocketAddrV4,
    flows: u16,
    frame: Vec<u8>,
}

impl Station {
    fn now_ns(&self, now: Cycles) -> u64 {
        self.clock.to_ns(now.saturating_sub(self.origin))
    }

    #[cold]
    fn take_commands(&mut self, now_ns: u64) {
        self.bell.answer();
        while let Ok(command) = self.commands.try_recv() {
            match (command, core::mem::replace(&mut self.stage, Stage::Idle)) {
                (Command::Run(order), Stage::Idle) => {
                    self.stage = Stage::Contact { order, since_ns: now_ns, ask_at_ns: now_ns, wrong: false };
                }
                // A handle starts a run only after the last one ended; the newer order then
                // replaces nothing.
                (Command::Run(_), stage) => self.stage = stage,
                (Command::Stop, Stage::Idle) => {}
                (Command::Stop, Stage::Contact { .. } | Stage::Preload(_)) => {
                    self.report(Err(StationError::Stopped));
                }
                (Command::Stop, Stage::Run(run)) => self.report(Ok(run.generator.finish(now_ns))),
            }
        }
    }

    /// Sends a result; the handle may be gone.
    fn report(&mut self, result: Result<Measurement, StationError>) {
        self.stage = Stage::Idle;
        let _ = self.events.send(result.map(|measurement| Progress::Finished(Box::new(measurement))));
    }

    /// Repeats the first contact until it is answered or its time is over.
    fn poll_contact(&mut self, now_ns: u64, switch: &mut dyn Inject) -> usize {
        let Stage::Contact { order, since_ns, ask_at_ns, wrong } = &mut self.stage else { return 0 };
        let waited_ns = now_ns.saturating_sub(*since_ns);
        if u128::from(waited_ns) > order.wait.as_nanos() {
            let (protocol, server, waited_ms) = (order.protocol.name(), order.server, waited_ns / 1_000_000);
            let error = match wrong {
                true => WrongAnswer { protocol, server: server.into() }.into(),
                false => StationError::NoServer { protocol, server, waited_ms },
            };
            self.report(Err(error));
            return 0;
        }
        if now_ns < *ask_at_ns {
            return 0;
        }
        *ask_at_ns = now_ns + CONTACT_INTERVAL_NS;
        let Some(mac) = switch.resolve(*order.server.ip()) else { return 0 };
        let to = Host { mac, ip: *order.server.ip() };
        let mut frame = wire::request_template(self.own, to, order.server.port());
        let request = contact(&*order.protocol);
        order.protocol.encode(&request, Medium::Datagram, &mut frame);
        wire::complete(&mut frame, CONTACT_PORT);
        switch.inject(&frame);
        1
    }

    /// Fixes the address of the server that answered, and starts the preload.
    fn begin(&mut self, now_ns: u64, mac: MacAddr) {
        let Stage::Contact { order, .. } = core::mem::replace(&mut self.stage, Stage::Idle) else { return };
        let to = Host { mac, ip: *order.server.ip() };
        if order.preload && order.protocol.preloads() > 0 {
            self.stage = Stage::Preload(Box::new(Preload::new(order, self.own, to, now_ns)));
        } else {
            self.schedule(now_ns, *order, to);
        }
    }

    /// Takes a step of the preload; starts the schedule after the last.
    fn poll_preload(&mut self, now_ns: u64, switch: &mut dyn Inject) -> usize {
        let Stage::Preload(preload) = &mut self.stage else { return 0 };
        if !preload.is_done() {
            return preload.poll(now_ns, switch).unwrap_or_else(|error| {
                self.report(Err(error));
                0
            });
        }
        if let Stage::Preload(preload) = core::mem::replace(&mut self.stage, Stage::Idle) {
            let Preload { order, to, .. } = *preload;
            self.schedule(now_ns, *order, to);
        }
        0
    }

    /// Starts the schedule.
    fn schedule(&mut self, now_ns: u64, order: Order, to: Host) {
        let (server, flows) = (order.server, order.plan.flows);
        let start_ns = now_ns + LEAD_NS;
        match Generator::with_protocol(order.plan, order.protocol, Medium::Datagram, order.seed, start_ns) {
            Ok(generator) => {
                let frame = wire::request_template(self.own, to, server.port());
                self.stage = Stage::Run(Box::new(Run { generator, server, flows, frame }));
                let _ =
                    self.events.send(Ok(Progress::Started(Instant::now() + Duration::from_nanos(LEAD_NS))));
            }
            Err(error) => self.report(Err(error.into())),
        }
    }
}

impl Port for Station {
    fn name(&self) -> &str {
        &self.name
    }

    fn attachment(&self) -> Attachment {
        Attachment::Station { mac: self.own.mac, ip: Some(self.own.ip) }
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = context.clock;
        self.origin = clock::now();
        Ok(())
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        if self.bell.is_rung() {
            let now_ns = self.now_ns(now);
            self.take_commands(now_ns);
        }
        if matches!(self.stage, Stage::Idle) && self.answers.is_empty() {
            return Ok(0);
        }
        let now_ns = self.now_ns(now);
        let mut sent = self.answers.send(switch);
        match &mut self.stage {
            Stage::Idle => {}
            Stage::Contact { .. } => sent += self.poll_contact(now_ns, switch),
            Stage::Preload(_) => sent += self.poll_preload(now_ns, switch),
            Stage::Run(run) => {
                run.observe(now_ns, self.last_frame_ns);
                if let Some(interval) = run.generator.poll_interval(now_ns) {
                    // The handle may be gone.
                    let _ = self.events.send(Ok(Progress::Interval(Box::new(interval.clone()))));
                }
                let (origin, clock) = (self.origin, self.clock);
                let at = |due_ns| origin.saturating_add(clock.from_ns(due_ns));
                sent += run.send_due(now_ns, budget.saturating_sub(sent), switch, at);
                if run.generator.is_done()
                    && let Stage::Run(run) = core::mem::replace(&mut self.stage, Stage::Idle)
                {
                    self.report(Ok(run.generator.finish(now_ns)));
                }
            }
        }
        if sent > 0 {
            self.last_frame_ns = now_ns;
        }
        Ok(sent)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        // Its own reading: the loop's is from before the frame was taken from its ring.
        let now_ns = self.now_ns(clock::now());
        let Some(datagram) = wire::decode_datagram(frame) else {
            self.answers.handle_frame(frame);
            return true;
        };
        self.last_frame_ns = now_ns;
        match &mut self.stage {
            Stage::Run(run) if run.is_answer(&datagram, self.own.ip) => {
                let flow = datagram.to.port().wrapping_sub(FIRST_PORT);
                run.generator.handle_reply(now_ns, flow, datagram.payload);
            }
            Stage::Contact { order, wrong, .. }
                if order.server == datagram.from && datagram.to.port() == CONTACT_PORT =>
            {
                let verdict =
                    order.protocol.check(&contact(&*order.protocol), datagram.payload, Medium::Datagram);
                if verdict == Verdict::Wrong {
                    *wrong = true;
                } else {
                    let source = [frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]];
                    self.begin(now_ns, MacAddr(source));
                }
            }
            Stage::Preload(preload)
                if preload.order.server == datagram.from && datagram.to.port() == CONTACT_PORT =>
            {
                preload.handle(now_ns, datagram.payload);
            }
            _ => {}
        }
        true
    }

    fn next_event(&self) -> Option<Cycles> {
        if !self.answers.is_empty() {
            return Some(0);
        }
        let at_ns = match &self.stage {
            Stage::Idle => None,
            Stage::Contact { ask_at_ns, .. } => Some(*ask_at_ns),
            Stage::Preload(preload) => Some(preload.next_event_ns()),
            Stage::Run(run) => run.generator.next_event_ns(),
        };
        at_ns.map(|ns| self.origin.saturating_add(self.clock.from_ns(ns)))
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }
}

/// Returns the first contact's request.
fn contact(protocol: &dyn Protocol) -> Request {
    Request { id: CONTACT_ID, ticket: protocol.contact(), due_ns: 0 }
}

impl Run {
    #[inline]
    fn observe(&mut self, now_ns: u64, last_frame_ns: u64) {
        if now_ns.saturating_sub(last_frame_ns) < MAY_SLEEP_NS {
            self.generator.observe_spin(now_ns);
        } else {
            self.generator.skip_sleep(now_ns);
        }
    }

    #[inline]
    fn send_due(
        &mut self,
        now_ns: u64,
        budget: usize,
        switch: &mut dyn Inject,
        at: impl Fn(u64) -> Cycles,
    ) -> usize {
        for sent in 0..budget {
            let Some(outgoing) = self.generator.poll_due(now_ns) else { return sent };
            self.frame.truncate(wire::PAYLOAD);
            self.generator.encode(&outgoing, &mut self.frame);
            wire::complete(&mut self.frame, FIRST_PORT + outgoing.flow);
            if switch.inject_due(&self.frame, at(outgoing.due_ns)) != Delivery::Delivered {
                self.generator.handle_send_failure(&outgoing, now_ns);
            }
        }
        budget
    }

    fn is_answer(&self, datagram: &wire::Datagram<'_>, own: Ipv4Addr) -> bool {
        let flow = datagram.to.port().wrapping_sub(FIRST_PORT);
        datagram.from == self.server && *datagram.to.ip() == own && flow < self.flows
    }
}

#[cfg(test)]
mod tests;
