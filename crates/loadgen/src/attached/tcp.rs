//! TCP: one user thread for each connection, which opens it, reads it, and opens it again when it
//! has ended.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tailwater::net::TcpStream;
use tailwater::sync::{Mutex, MutexGuard, PoisonError};
use tailwater::{thread, time};

use super::{GLANCE, NO_WAIT, SEND_BATCH, next_look, start_ns};
use crate::clock::Clock;
use crate::contact;
use crate::control::Control;
use crate::generator::Generator;
use crate::kernel_tcp::{Connections, TcpLoadError, system};
use crate::kernel_udp::{Load, Target};
use crate::lanes::{LaneId, Lanes};
use crate::plan::Plan;
use crate::protocol::Medium;
use crate::report::Measurement;

/// Bytes of one read.
const READ: usize = 16 << 10;

/// Time after its end, or a failure to open it, at which a connection is opened again.
const RETRY: Duration = Duration::from_millis(20);

/// Longest handshake; the end of a run waits for it.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// Time after which the sender retries connections without room.
const BLOCKED_LOOK: Duration = Duration::from_micros(200);

/// State shared by the threads of a run.
struct Run<'a> {
    state: Mutex<State>,
    server: SocketAddr,
    clock: Clock,
    control: &'a Control<'a>,
    over: AtomicBool,
}

struct State {
    generator: Generator,
    lanes: Lanes,
    connections: Vec<Connection>,
    /// Connections without room, each once.
    blocked: Vec<LaneId>,
    touched: Vec<LaneId>,
}

#[derive(Default)]
struct Connection {
    /// `None` while it is down.
    stream: Option<Arc<TcpStream>>,
    is_blocked: bool,
}

/// Runs on the calling user thread and further ones.
pub(super) fn run(
    plan: &Plan,
    load: &Load,
    connections: Connections,
    target: &Target,
    control: &Control<'_>,
) -> Result<Measurement, TcpLoadError> {
    plan.check()?;
    connections.check()?;
    let server = target.server;
    let open_first = |patience: Duration| -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    contact::prepare_by_stream(load, open_first, target, control.stop)?;
    let streams = (0..connections.count).map(|_| open(server)).collect::<io::Result<Vec<_>>>();
    let streams = streams.map_err(system("open the connections"))?;
    let clock = Clock::start();
    let start_ns = start_ns(control, &clock).map_err(system("start together with the others"))?;
    let shared = Arc::clone(&load.protocol);
    let generator = Generator::with_protocol(plan.clone(), shared, Medium::Stream, load.seed, start_ns)?;
    let lanes = Lanes::new(connections.count, connections.pipeline, load.protocol.ids(Medium::Stream));
    let state = State {
        generator,
        lanes,
        connections: streams.iter().map(|_| Connection::default()).collect(),
        blocked: Vec::new(),
        touched: Vec::with_capacity(2 * SEND_BATCH),
    };
    let over = AtomicBool::new(false);
    let run = Run { state: Mutex::new(state), server, clock, control, over };
    thread::scope(|scope| {
        for (id, stream) in (0..).zip(streams) {
            run.lock().handle_up(id, &stream);
            let run = &run;
            scope.spawn(move || run.keep(id, stream));
        }
        run.send();
        run.over.store(true, Relaxed);
    });
    let state = run.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(state.generator.finish(clock.now_ns()))
}

fn open(server: SocketAddr) -> io::Result<Arc<TcpStream>> {
    let stream = TcpStream::connect_timeout(&server, HANDSHAKE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GLANCE))?;
    stream.set_write_timeout(Some(NO_WAIT))?;
    Ok(Arc::new(stream))
}

impl Run<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due until the run is over.
    fn send(&self) {
        loop {
            let mut state = self.lock();
            if !self.control.turn_after_sleep(&mut state.generator, self.clock.now_ns()) {
                return;
            }
            state.flush_blocked();
            state.send_due(self.clock.now_ns());
            let mut next = next_look(&state.generator, &self.clock);
            if !state.blocked.is_empty() {
                next = next.min(std::time::Instant::now() + BLOCKED_LOOK);
            }
            drop(state);
            time::sleep_until(next);
        }
    }

    /// Reads connection `id`, and opens it again when it has ended, until the run is over.
    fn keep(&self, id: LaneId, mut stream: Arc<TcpStream>) {
        let mut bytes = vec![0; READ];
        while !self.over.load(Relaxed) {
            let at_once = self.read_to_its_end(id, &stream, &mut bytes);
            if self.over.load(Relaxed) {
                return;
            }
            self.lock().handle_down(id, self.clock.now_ns());
            let mut pause = if at_once { Duration::ZERO } else { RETRY };
            stream = loop {
                time::sleep(std::mem::replace(&mut pause, RETRY));
                match open(self.server) {
                    Ok(stream) => break stream,
                    Err(_) if self.over.load(Relaxed) => return,
                    Err(_) => {}
                }
            };
            self.lock().handle_up(id, &stream);
        }
    }

    /// Reads the connection until it ends or the run is over; returns true if it can be opened
    /// again at once, because the server ended it behind its answers.
    fn read_to_its_end(&self, id: LaneId, mut stream: &TcpStream, bytes: &mut [u8]) -> bool {
        while !self.over.load(Relaxed) {
            let read = stream.read(bytes);
            let now_ns = self.clock.now_ns();
            let mut state = self.lock();
            match read {
                Ok(0) => {
                    let State { lanes, generator, .. } = &mut *state;
                    return lanes.handle_end(id, now_ns, generator);
                }
                Ok(len) => {
                    if state.handle_bytes(id, now_ns, &bytes[..len]).is_err() {
                        return false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
            if state.lanes.is_stuck(id, now_ns, &state.generator) {
                return false;
            }
        }
        false
    }
}

impl State {
    fn handle_up(&mut self, id: LaneId, stream: &Arc<TcpStream>) {
        self.connections[id as usize].stream = Some(Arc::clone(stream));
        self.lanes.handle_up(id);
    }

    fn handle_down(&mut self, id: LaneId, now_ns: u64) {
        self.generator.count_reconnect();
        self.lanes.handle_down(id, now_ns, &mut self.generator);
        self.connections[id as usize].stream = None;
    }

    fn handle_bytes(
        &mut self,
        id: LaneId,
        now_ns: u64,
        bytes: &[u8],
    ) -> Result<(), crate::protocol::Malformed> {
        self.lanes.handle_bytes(id, now_ns, bytes, &mut self.generator)?;
        // Requests held back for lack of room are sent now.
        self.send_due(now_ns);
        Ok(())
    }

    /// Sends what is due, at most [`SEND_BATCH`] requests and as many held back.
    fn send_due(&mut self, now_ns: u64) {
        let touched = &mut self.touched;
        self.lanes.poll_due(&mut self.generator, now_ns, SEND_BATCH, |id| touched.push(id));
        while let Some(id) = self.touched.pop() {
            self.flush(id);
        }
    }

    fn flush_blocked(&mut self) {
        for id in std::mem::take(&mut self.blocked) {
            self.connections[id as usize].is_blocked = false;
            self.flush(id);
        }
    }

    /// Writes the bytes of connection `id` that wait, as far as there is room.
    fn flush(&mut self, id: LaneId) {
        let Connection { stream: Some(stream), is_blocked } = &mut self.connections[id as usize] else {
            return;
        };
        while !self.lanes.to_send(id).is_empty() {
            match (&**stream).write(self.lanes.to_send(id)) {
                Ok(sent) => self.lanes.handle_sent(id, sent),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !std::mem::replace(is_blocked, true) {
                        self.blocked.push(id);
                    }
                    return;
                }
                // The thread that reads it sees the end, too.
                Err(_) => return,
            }
        }
    }
}
