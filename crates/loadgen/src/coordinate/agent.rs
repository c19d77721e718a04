//! The agent's side: one coordinator at a time, one job at a time.
//!
//! Owns the conversation and its threads: one reads orders and answers clock queries, one runs the
//! job, one sends its intervals. All of them end with the conversation.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tailwater_workload::Interval;

use crate::clock::Clock;
use crate::control::Control;
use crate::coordinate::wire::{Answer, Job, MAX_ANSWER, MAX_ORDER, Order, VERSION, Writer, read, watch};
use crate::report::Measurement;

/// Interval at which an agent checks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(50);

/// Longest time until a peer that connects has greeted: another coordinator may be waiting.
pub const HELLO_PATIENCE: Duration = Duration::from_secs(3);

/// Longest time a prepared job waits for the order to start: for the slowest agent, and some more.
pub const START_PATIENCE: Duration = Duration::from_secs(660);

/// Runs jobs. An error's message is shown to the coordinator's user.
pub trait RunJob<T>: Fn(&Job<T>, &Control<'_>) -> Result<Measurement, String> + Sync {}

impl<T, F: Fn(&Job<T>, &Control<'_>) -> Result<Measurement, String> + Sync> RunJob<T> for F {}

/// Serves coordinators that connect to `listener`, one after the other, until `stop` is set or,
/// with `once`, the first has left. `run_job` runs the jobs.
///
/// # Errors
/// If the listener fails. An error in a conversation ends that conversation only.
pub fn serve<T: DeserializeOwned + Send>(
    listener: &TcpListener,
    run_job: impl RunJob<T>,
    stop: &AtomicBool,
    once: bool,
) -> io::Result<()> {
    serve_by(listener, run_job, stop, once, Clock::start)
}

/// Serves as [`serve`] does, each conversation by a clock that `start_clock` creates.
pub(super) fn serve_by<T: DeserializeOwned + Send>(
    listener: &TcpListener,
    run_job: impl RunJob<T>,
    stop: &AtomicBool,
    once: bool,
    start_clock: impl Fn() -> Clock,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    while !stop.load(Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                // A coordinator that leaves or sends garbage affects only its own conversation.
                let _ = stream
                    .set_nonblocking(false)
                    .and_then(|()| converse(&stream, &run_job, start_clock(), stop));
                if once {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(GLANCE),
            // The peer left before it was accepted, accept(2).
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

enum Event<T> {
    Order(Order<T>),
    /// The job's thread has ended.
    JobOver,
    /// The coordinator left.
    Gone,
}

/// A running job.
struct Running<'scope> {
    /// Sends it the time to start.
    start: Sender<Instant>,
    thread: ScopedJoinHandle<'scope, ()>,
}

/// State shared by the threads of a conversation.
struct Conversation<'a, R> {
    writer: &'a Writer,
    run_job: &'a R,
    /// Ends the job, set and cleared by the conversation's own thread.
    stop_job: &'a AtomicBool,
}

impl<R> Clone for Conversation<'_, R> {
    fn clone(&self) -> Self {
        Self { writer: self.writer, run_job: self.run_job, stop_job: self.stop_job }
    }
}

fn converse<T: DeserializeOwned + Send>(
    stream: &TcpStream,
    run_job: &impl RunJob<T>,
    clock: Clock,
    stop: &AtomicBool,
) -> io::Result<()> {
    watch(stream)?;
    let writer = Writer::new(stream.try_clone()?, MAX_ANSWER);
    let stop_job = AtomicBool::new(false);
    let conversation = Conversation { writer: &writer, run_job, stop_job: &stop_job };
    let (events, inbox) = channel();
    std::thread::scope(|scope| {
        let reader_events = events.clone();
        let (clock, writer) = (&clock, &writer);
        let reader = scope.spawn(move || read_orders(stream, clock, writer, &reader_events));
        let result = obey(scope, &conversation, &events, &inbox, clock, stop);
        // Wakes the reader.
        writer.close();
        let _ = reader.join();
        result
    })
}

/// Reads orders until the connection ends; answers clock queries at once.
fn read_orders<T: DeserializeOwned>(
    mut stream: &TcpStream,
    clock: &Clock,
    writer: &Writer,
    events: &Sender<Event<T>>,
) {
    while let Ok(order) = read::<Order<T>>(&mut stream, MAX_ORDER) {
        let handled = match order {
            Order::Time => writer.send(&Answer::Time { now_ns: clock.now_ns() }).is_ok(),
            order => events.send(Event::Order(order)).is_ok(),
        };
        if !handled {
            break;
        }
    }
    // The receiver is gone if the conversation is over already.
    let _ = events.send(Event::Gone);
}

/// Conducts the conversation; ends with an error, or when the coordinator or the agent's user ends
/// it.
fn obey<'scope, 'env: 'scope, T: DeserializeOwned + Send + 'scope, R: RunJob<T>>(
    scope: &'scope Scope<'scope, 'env>,
    conversation: &Conversation<'env, R>,
    events: &Sender<Event<T>>,
    inbox: &Receiver<Event<T>>,
    clock: &Clock,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut running: Option<Running<'scope>> = None;
    let (mut greeted, greet_by) = (false, Instant::now() + HELLO_PATIENCE);
    let mut result = Ok(());
    while result.is_ok() && (greeted || Instant::now() < greet_by) {
        if stop.load(Relaxed) {
            // A job that runs ends first, and its answer is sent.
            conversation.stop_job.store(true, Relaxed);
            if running.is_none() {
                break;
            }
        }
        let event = match inbox.recv_timeout(GLANCE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match event {
            Event::Gone => break,
            Event::JobOver => {
                if let Some(job) = running.take() {
                    // Its answer is sent before it ends. Its panic, if any, was reported as its
                    // failure.
                    let _ = job.thread.join();
                }
            }
            Event::Order(Order::Hello { version }) => {
                greeted = true;
                result =
                    conversation.writer.send(&Answer::Hello { version: VERSION, pid: std::process::id() });
                if version != VERSION {
                    break;
                }
            }
            Event::Order(Order::Prepare(job)) if greeted && running.is_none() => {
                conversation.stop_job.store(false, Relaxed);
                let (start, started) = channel();
                let (conversation, events) = (conversation.clone(), events.clone());
                let thread = scope.spawn(move || run_one(&conversation, &job, started, &events));
                running = Some(Running { start, thread });
            }
            Event::Order(Order::Start { at_ns }) if running.is_some() => {
                // A job that failed meanwhile does not listen, and a time beyond the clock's range
                // is ignored.
                if let (Some(job), Some(at)) = (&running, clock.instant_at(at_ns)) {
                    let _ = job.start.send(at);
                }
            }
            Event::Order(Order::Stop) => conversation.stop_job.store(true, Relaxed),
            // An order out of turn: the peer does not speak this protocol.
            Event::Order(Order::Prepare(_) | Order::Start { .. } | Order::Time) => break,
        }
    }
    conversation.stop_job.store(true, Relaxed);
    // The scope waits for the job's thread, which sees the flag.
    result
}

/// Runs one job and sends its result.
fn run_one<T, R: RunJob<T>>(
    conversation: &Conversation<'_, R>,
    job: &Job<T>,
    started: Receiver<Instant>,
    events: &Sender<Event<T>>,
) {
    let started = Mutex::new(started);
    let gate = || {
        conversation.writer.send(&Answer::Ready)?;
        await_start(&started, conversation.stop_job)
    };
    let (intervals, to_send) = channel::<Interval>();
    let observer = move |interval: &Interval| {
        // The sender ends only when the connection does, which ends the job too.
        let _ = intervals.send(interval.clone());
    };
    // A plan without intervals sends none.
    let length_ns = job.plan.interval_length_ns().unwrap_or(0);
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| send_intervals(conversation.writer, length_ns, to_send));
        // Moved in, so that dropping it ends the thread above.
        let observer = observer;
        let control = Control::new(conversation.stop_job).with_gate(&gate);
        let control = if job.live { control.with_observer(&observer) } else { control };
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (conversation.run_job)(job, &control)));
        match outcome {
            Ok(Ok(measurement)) => Answer::Done(Box::new(measurement)),
            Ok(Err(message)) => Answer::Failed { message },
            Err(_) => Answer::Failed { message: "the generator panicked; see the agent's output".to_owned() },
        }
    });
    // The order matters: the coordinator may send its next job as soon as it has the answer. The
    // reader detects the end of the connection.
    let _ = events.send(Event::JobOver);
    let _ = conversation.writer.send(&answer);
}

fn await_start(started: &Mutex<Receiver<Instant>>, stop: &AtomicBool) -> io::Result<Instant> {
    let started = started.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + START_PATIENCE;
    while !stop.load(Relaxed) && Instant::now() < deadline {
        match started.recv_timeout(GLANCE) {
            Ok(at) => return Ok(at),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Err(io::Error::other("the coordinator gave no order to start"))
}

fn send_intervals(writer: &Writer, length_ns: u64, intervals: Receiver<Interval>) {
    for interval in intervals {
        if writer.send(&Answer::Interval { length_ns, interval }).is_err() {
            return;
        }
    }
}
