//! A TCP client as a port of an IOKernel.
//!
//! Owns the station's addresses, its answers to ARP and the exchange between the polling thread,
//! which has the [`TcpStation`], and the measuring thread, which has the [`TcpHandle`]. On the
//! polling thread nothing blocks; work per iteration is bounded by the port's budget.
//!
//! | shared field | written by | read by | ordering |
//! |---|---|---|---|
//! | `stop_order` | handle, before it rings | station, once it has answered the bell, which clears it | Relaxed, within the bell's pair |
//!
//! A bell announces commands and `stop_order`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::fd::{AsFd, BorrowedFd};
use tailwater_ports::{Attachment, Context, Delivery, Inject, Port, PortError};
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_tcp::{Config, Events, Instant};
use tailwater_wire::MacAddr;
use tailwater_workload::Interval;

use super::client::{Client, ConnectionId, PORTS, Peer};
use super::open_loop::{OpenLoop, TcpLoad};
use super::order::{Order, Outcome, TcpError};
use super::preload::Preload;
use super::task::Task;
use crate::report::Measurement;
use crate::station::arp::ArpAnswers;
use crate::station::bell::Bell;
use crate::station::wire::Host;

/// Timers that may expire in one iteration.
const TIMERS: usize = 64;
/// Longest time for a station to end a run.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

type Answer = Result<Outcome, TcpError>;
type Measured = Result<LoadProgress, TcpError>;

/// The progress of a load.
#[derive(Debug)]
pub enum LoadProgress {
    /// An interval is over, of a load whose plan keeps them.
    Interval(Box<Interval>),
    /// The load is over, or was stopped.
    Finished(Box<Measurement>),
}

#[derive(Debug)]
enum Command {
    Order(Order),
    Load(Box<TcpLoad>),
    /// Ends a load.
    Stop,
}

#[derive(Debug)]
struct Signal {
    bell: Bell,
    /// The current order is to end. It is no command, since those wait until it has.
    stop_order: AtomicBool,
}

/// Creates a station and its handle. Give the station to an IOKernel; `ip` must be an address of
/// its network. `secret` keys initial sequence numbers.
///
/// # Errors
/// If the kernel has no event descriptor left.
pub fn tcp_station(name: &str, ip: Ipv4Addr, secret: [u8; 16]) -> std::io::Result<(TcpStation, TcpHandle)> {
    let signal = Arc::new(Signal { bell: Bell::new()?, stop_order: AtomicBool::new(false) });
    let own = Host { mac: MacAddr::derived(ip), ip };
    let (to_station, orders) = channel();
    let (answers, from_station) = channel();
    let (measured, measurements) = channel();
    let station = TcpStation {
        name: name.to_owned(),
        own,
        secret,
        mtu: 1500,
        // Both are set at start.
        clock: Clock::from_hz(1_000_000_000),
        origin: 0,
        signal: Arc::clone(&signal),
        orders,
        answers,
        measured,
        stage: Stage::Idle,
        client: None,
        connections: 0,
        arp: ArpAnswers::new(own),
    };
    Ok((station, TcpHandle { to_station, from_station, measurements, signal }))
}

/// The measuring side.
#[derive(Debug)]
pub struct TcpHandle {
    to_station: Sender<Command>,
    from_station: Receiver<Answer>,
    measurements: Receiver<Measured>,
    signal: Arc<Signal>,
}

impl TcpHandle {
    /// Carries out an order; waits for its outcome for at most `patience`.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn run(&self, order: Order, patience: Duration) -> Result<Outcome, TcpError> {
        self.start(order)?;
        self.wait(patience)
    }

    /// Gives an order; [`wait`](Self::wait) waits for its outcome. One at a time.
    ///
    /// # Errors
    /// [`TcpError::Ended`].
    pub fn start(&self, order: Order) -> Result<(), TcpError> {
        self.command(Command::Order(order))
    }

    fn command(&self, command: Command) -> Result<(), TcpError> {
        self.to_station.send(command).map_err(|_| TcpError::Ended)?;
        self.signal.bell.ring();
        Ok(())
    }

    /// Ends the order that is being carried out, if there is one: its outcome is then
    /// [`TcpError::Stopped`].
    pub fn stop_order(&self) {
        self.signal.stop_order.store(true, Ordering::Relaxed);
        self.signal.bell.ring();
    }

    /// Returns the outcome of the last order, if it comes within `timeout`.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn poll_outcome(&self, timeout: Duration) -> Result<Option<Outcome>, TcpError> {
        match self.from_station.recv_timeout(timeout) {
            Ok(answer) => answer.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TcpError::Ended),
        }
    }

    /// Waits for the outcome of the last order, at most `patience`.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn wait(&self, patience: Duration) -> Result<Outcome, TcpError> {
        self.from_station.recv_timeout(patience).map_err(|_| TcpError::Ended)?
    }
}

impl TcpHandle {
    /// Makes an open-loop run over the connections of the last [`Order::Open`] and waits for its
    /// measurement, at most `patience`; then it is ended early, and what was measured is handed
    /// out.
    ///
    /// # Errors
    /// [`TcpError::NotOpen`], [`TcpError::Plan`], or [`TcpError::Ended`].
    pub fn load(&self, load: TcpLoad, patience: Duration) -> Result<Measurement, TcpError> {
        self.start_load(load)?;
        let (from, mut stopped) = (std::time::Instant::now(), false);
        loop {
            let limit = patience + if stopped { STOP_PATIENCE } else { Duration::ZERO };
            match self.wait_load(limit.saturating_sub(from.elapsed()))? {
                Some(LoadProgress::Finished(measurement)) => return Ok(*measurement),
                Some(LoadProgress::Interval(_)) => {}
                None if stopped => return Err(TcpError::Ended),
                None => {
                    self.stop_load()?;
                    stopped = true;
                }
            }
        }
    }

    /// Begins an open-loop run over the connections of the last [`Order::Open`]; its schedule
    /// starts 1 ms after the station has taken the order. [`wait_load`](Self::wait_load) returns
    /// its outcome.
    ///
    /// # Errors
    /// [`TcpError::Ended`].
    pub fn start_load(&self, load: TcpLoad) -> Result<(), TcpError> {
        self.command(Command::Load(Box::new(load)))
    }

    /// Ends the run that is going on; what was measured is still handed out.
    ///
    /// # Errors
    /// [`TcpError::Ended`].
    pub fn stop_load(&self) -> Result<(), TcpError> {
        self.command(Command::Stop)
    }

    /// Waits at most `timeout` for the next step of a run; `None` when there was none.
    ///
    /// # Errors
    /// [`TcpError::NotOpen`], [`TcpError::Plan`], or [`TcpError::Ended`].
    pub fn wait_load(&self, timeout: Duration) -> Result<Option<LoadProgress>, TcpError> {
        match self.measurements.recv_timeout(timeout) {
            Ok(progress) => progress.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TcpError::Ended),
        }
    }
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// The server of an [`Order::Open`] is not there yet.
    Looking {
        server: SocketAddrV4,
        connections: u32,
        config: Box<Config>,
        loss_per_million: u32,
        until: Instant,
    },
    Working(Box<Task>),
    Storing(Box<Preload>),
    Loading(Box<OpenLoop>),
}

impl Stage {
    /// Handles the events of a frame or a timeout.
    fn on_events(&mut self, client: &mut Client, id: ConnectionId, events: Events, now: Instant) {
        match self {
            Self::Working(task) => task.on_events(client, id, events, now),
            Self::Storing(preload) => preload.on_events(client, id, events),
            Self::Loading(run) => run.on_events(client, id, events, now),
            Self::Idle | Self::Looking { .. } => {}
        }
    }
}

/// A switch that stamps the first frame it is given.
struct Timed<'a> {
    switch: &'a mut dyn Inject,
    injected: [Cycles; 2],
}

impl Inject for Timed<'_> {
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        let from = clock::now();
        let delivery = self.switch.inject(frame);
        if self.injected[0] == 0 {
            self.injected = [from, clock::now()];
        }
        delivery
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        self.switch.resolve(ip)
    }
}

/// The port. See the [module](self).
#[derive(Debug)]
pub struct TcpStation {
    name: String,
    own: Host,
    secret: [u8; 16],
    mtu: u16,
    clock: Clock,
    /// Cycle count that is time zero.
    origin: Cycles,
    signal: Arc<Signal>,
    orders: Receiver<Command>,
    answers: Sender<Answer>,
    measured: Sender<Measured>,
    stage: Stage,
    client: Option<Client>,
    connections: u32,
    /// ARP replies that the next poll sends.
    arp: ArpAnswers,
}

impl TcpStation {
    #[inline]
    fn instant(&self, at: Cycles) -> Instant {
        Instant(self.clock.to_ns(at.saturating_sub(self.origin)))
    }

    #[cold]
    fn take_signal(&mut self, now: Instant) {
        self.signal.bell.answer();
        // Before the next command, which it is not about.
        if self.signal.stop_order.swap(false, Ordering::Relaxed) && !self.takes_commands() {
            self.answer(Err(TcpError::Stopped));
        }
        self.take_command(now);
    }

    /// Returns true if no order is being carried out.
    #[inline]
    fn takes_commands(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Loading(_))
    }

    fn take_command(&mut self, now: Instant) {
        match self.orders.try_recv() {
            Ok(Command::Order(order)) => self.take_order(order, now),
            Ok(Command::Load(load)) => self.begin_load(*load, now),
            Ok(Command::Stop) => self.end_load(now),
            Err(_) => {}
        }
    }

    fn begin_load(&mut self, load: TcpLoad, now: Instant) {
        let begun = match &self.client {
            Some(client) if self.connections > 0 => {
                OpenLoop::new(load, client, self.connections, now).map_err(TcpError::Plan)
            }
            _ => Err(TcpError::NotOpen),
        };
        match begun {
            Ok(open_loop) => self.stage = Stage::Loading(Box::new(open_loop)),
            // The handle may be gone.
            Err(error) => drop(self.measured.send(Err(error))),
        }
    }

    /// Hands out the measurement of a run, if there is one.
    fn end_load(&mut self, now: Instant) {
        match core::mem::replace(&mut self.stage, Stage::Idle) {
            // The handle may be gone.
            Stage::Loading(run) => {
                let _ = self.measured.send(Ok(LoadProgress::Finished(Box::new(run.finish(now)))));
            }
            stage => self.stage = stage,
        }
    }

    fn take_order(&mut self, order: Order, now: Instant) {
        match order {
            Order::Open { server, connections, config, loss_per_million, wait } => {
                let last = u32::from(server.port()) + connections.saturating_sub(1) / PORTS;
                if last > u32::from(u16::MAX) {
                    return self.answer(Err(TcpError::Ports { server, connections }));
                }
                // The old server is reset before the new one is contacted.
                if let Some(client) = &mut self.client {
                    // A reset is sent once.
                    client.set_loss(0);
                    client.abort_all();
                }
                self.stage =
                    Stage::Looking { server, connections, config, loss_per_million, until: now + wait };
            }
            _ if self.client.is_none() => self.answer(Err(TcpError::NotOpen)),
            Order::Churn { concurrent, .. } | Order::Calls { concurrent, .. }
                if concurrent == 0 || self.connections.saturating_add(concurrent) > PORTS =>
            {
                self.answer(Err(TcpError::Lanes { concurrent, open: self.connections }));
            }
            Order::Preload { protocol, wait } => {
                self.stage = Stage::Storing(Box::new(Preload::new(protocol, wait, now)));
            }
            order => self.stage = Stage::Working(Box::new(Task::new(order, self.connections, now))),
        }
    }

    /// Ends the current order and sends its outcome.
    fn end(&mut self, now: Instant) {
        let Some(client) = &mut self.client else { return };
        match core::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Working(task) => {
                let outcome = task.outcome(client, now);
                self.answer(Ok(outcome));
            }
            Stage::Storing(preload) => self.answer(Ok(preload.outcome(now))),
            stage @ (Stage::Loading(_) | Stage::Idle | Stage::Looking { .. }) => {
                self.stage = stage;
                self.end_load(now);
            }
        }
    }

    /// Sends an outcome; the handle may be gone.
    fn answer(&mut self, answer: Answer) {
        self.stage = Stage::Idle;
        let _ = self.answers.send(answer);
    }

    /// Looks for the server's address, and begins when it is there.
    fn look(&mut self, now: Instant, switch: &dyn Inject) {
        let Stage::Looking { server, until, .. } = &self.stage else { return };
        if self.client.as_ref().is_some_and(Client::wants_transmit) {
            return;
        }
        let Some(mac) = switch.resolve(*server.ip()) else {
            let (server, late) = (*server, now > *until);
            if late {
                self.answer(Err(TcpError::NoServer { server }));
            }
            return;
        };
        let Stage::Looking { server, connections, config, loss_per_million, until } =
            core::mem::replace(&mut self.stage, Stage::Idle)
        else {
            return;
        };
        let peer = Peer { mac, ip: *server.ip(), port: server.port() };
        self.connections = connections;
        let own = (self.own.mac, self.own.ip);
        let mut client = Client::new(own, peer, (*config).clone(), self.secret, self.mtu);
        client.set_loss(loss_per_million);
        self.client = Some(client);
        let order = Order::Open { server, connections, config, loss_per_million, wait: until - now };
        self.stage = Stage::Working(Box::new(Task::new(order, connections, now)));
    }

    fn work(&mut self, now: Instant, budget: usize, switch: &mut dyn Inject) -> usize {
        let (clock, origin) = (self.clock, self.origin);
        let mut read = || Instant(clock.to_ns(clock::now().saturating_sub(origin)));
        let Some(client) = &mut self.client else { return 0 };
        let mut expired = [(0, Events::empty()); TIMERS];
        let mut count = 0;
        client.handle_timeouts(now, TIMERS, |id, events| {
            expired[count] = (id, events);
            count += 1;
        });
        let mut done = false;
        for &(id, events) in &expired[..count] {
            self.stage.on_events(client, id, events, now);
        }
        match &mut self.stage {
            Stage::Working(task) => done = task.poll(client, now, budget, &mut read),
            Stage::Loading(run) => {
                done = run.poll(client, now, budget);
                if let Some(interval) = run.poll_interval(now) {
                    // The handle may be gone.
                    let _ = self.measured.send(Ok(LoadProgress::Interval(Box::new(interval.clone()))));
                }
            }
            Stage::Storing(preload) => done = preload.poll(client, now),
            Stage::Idle | Stage::Looking { .. } => {}
        }
        let sent = match &mut self.stage {
            Stage::Working(task) if task.is_staged() => {
                let asked = task.begun_at();
                let mut timed = Timed { switch, injected: [0; 2] };
                let sent = client.poll_transmit(now, budget, &mut timed);
                let [from, to] = timed.injected;
                if let (Some(stages), 1..) = (task.stages(), sent) {
                    stages.on_asked(origin.saturating_add(clock.from_ns(asked.0)));
                    stages.on_injected(from, to);
                }
                sent
            }
            _ => client.poll_transmit(now, budget, switch),
        };
        if done {
            self.end(now);
        }
        sent
    }
}

impl Port for TcpStation {
    fn name(&self) -> &str {
        &self.name
    }

    fn attachment(&self) -> Attachment {
        Attachment::Station { mac: self.own.mac, ip: Some(self.own.ip) }
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = context.clock;
        self.origin = clock::now();
        self.mtu = context.mtu;
        Ok(())
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        let now = self.instant(now);
        // Relaxed: a hint. A command that came early waits for its turn.
        if self.signal.bell.is_rung()
            && (self.takes_commands() || self.signal.stop_order.load(Ordering::Relaxed))
        {
            self.take_signal(now);
        }
        let mut sent = self.arp.send(switch);
        self.look(now, switch);
        sent += self.work(now, budget.saturating_sub(sent), switch);
        Ok(sent)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        // Its own reading: the loop's is from before the frame was taken from its ring.
        let returned = clock::now();
        let now = self.instant(returned);
        if let Some(client) = &mut self.client
            && let Some((id, events)) = client.handle_frame(now, frame)
        {
            if let Stage::Working(task) = &mut self.stage {
                let before = task.finished();
                task.on_events(client, id, events, now);
                if task.is_staged()
                    && task.finished() != before
                    && let Some(stamps) = task.stamps()
                    && let Some(stages) = task.stages()
                {
                    stages.on_answered(stamps, returned, clock::now());
                }
            } else {
                self.stage.on_events(client, id, events, now);
            }
        } else {
            self.arp.handle_frame(frame);
        }
        true
    }

    fn next_event(&self) -> Option<Cycles> {
        if !self.arp.is_empty() {
            return Some(0);
        }
        let client = self.client.as_ref().and_then(Client::next_event);
        let stage = match &self.stage {
            Stage::Idle => None,
            // A runtime may attach at any time.
            Stage::Looking { .. } => Some(Instant(0)),
            Stage::Working(task) => Some(task.next_event()),
            Stage::Loading(run) => Some(run.next_event()),
            Stage::Storing(preload) => Some(preload.next_event()),
        };
        let next = [client, stage].into_iter().flatten().min()?;
        Some(self.origin.saturating_add(self.clock.from_ns(next.0)))
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal.bell.as_fd())
    }
}

#[cfg(test)]
mod tests;
