//! The services on event loops, for `bench events` and the figures of IX: an echo for each size of
//! a round, one for each length of a message, one that counts its rounds, and two with large
//! answers, copied and shared.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater::events::{Batch, CommandError, Condition, EventLoop, Handle, Token};
use tailwater::net::{SharedBytes, TcpListener};
use tailwater::thread;

use super::terms::{
    ANY, BATCHES, COUNTED, EVENTS, LARGE, LARGE_COPIED, LARGE_SHARED, MAX_EVENT_MESSAGE, MESSAGES, REQUEST,
    WHOLE_EVENTS,
};

/// Rounds of the counting loop, and the conditions in them. Relaxed: two counters for reports, read
/// while no request is under way.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static CONDITIONS: AtomicU64 = AtomicU64::new(0);

/// Returns the rounds of the counting loop so far, and the conditions in them.
pub(super) fn counted() -> (u64, u64) {
    (ROUNDS.load(Ordering::Relaxed), CONDITIONS.load(Ordering::Relaxed))
}

/// Starts the loops, each on its own port.
pub(super) fn serve() -> std::io::Result<()> {
    for (port, batch) in (EVENTS..).zip(BATCHES) {
        let mut events = listening(port)?;
        thread::spawn(move || {
            events.set_batch(batch).expect("the sizes are in range");
            run(&mut events, 1);
        });
    }
    for (port, bytes) in (WHOLE_EVENTS..).zip(MESSAGES).filter(|(_, bytes)| *bytes <= MAX_EVENT_MESSAGE) {
        let mut events = listening(port)?;
        thread::spawn(move || run(&mut events, bytes));
    }
    let answer = SharedBytes::from(vec![0x5a; LARGE]);
    let copied = answer.clone();
    serve_large(LARGE_COPIED, move |events, handle| events.send(handle, &[IoSlice::new(&copied)]))?;
    serve_large(LARGE_SHARED, move |events, handle| events.send_shared(handle, &answer))?;
    let mut events = listening(COUNTED)?;
    thread::spawn(move || {
        let mut batch = Batch::new();
        loop {
            let conditions = events.poll(&mut batch, None);
            ROUNDS.fetch_add(1, Ordering::Relaxed);
            CONDITIONS.fetch_add(conditions as u64, Ordering::Relaxed);
            for condition in batch.iter() {
                // An error is that the client is gone, which is reported.
                let _ = handle(&mut events, condition, 1);
            }
        }
    });
    Ok(())
}

/// Returns a loop with a listener at `port`.
fn listening(port: u16) -> std::io::Result<EventLoop> {
    let listener = TcpListener::bind((ANY, port))?;
    let mut events = EventLoop::new();
    events.listen(listener, Token(0));
    Ok(events)
}

/// Echoes for ever; `least` is as in [`handle`].
pub(super) fn run(events: &mut EventLoop, least: usize) {
    events.run(|events, condition| {
        // An error is that the client is gone, which is reported.
        let _ = handle(events, condition, least);
        ControlFlow::<()>::Continue(())
    });
}

/// Starts a loop that answers each request by `send`.
fn serve_large(
    port: u16,
    send: impl Fn(&EventLoop, Handle) -> Result<usize, CommandError> + Send + 'static,
) -> std::io::Result<()> {
    let mut events = listening(port)?;
    thread::spawn(move || {
        events.run(|events, condition| {
            // An error is that the client is gone, which is reported.
            let _ = match condition {
                Condition::Received { handle, .. } => answer_large(events, handle, &send),
                other => handle(events, other, REQUEST),
            };
            ControlFlow::<()>::Continue(())
        });
    });
    Ok(())
}

/// Answers the request on loan, which is the only one: a client sends the next after the answer. So
/// an answer, which is shorter than a send buffer, always has room; one that had not would end its
/// connection, and the measurement with it.
fn answer_large(
    events: &mut EventLoop,
    handle: Handle,
    send: &impl Fn(&EventLoop, Handle) -> Result<usize, CommandError>,
) -> Result<(), CommandError> {
    if events.data(handle)?.len() < REQUEST {
        return Ok(());
    }
    if send(events, handle)? < LARGE {
        return events.close(handle);
    }
    events.consume(handle, REQUEST)
}

/// Handles a condition; `least` is the number of bytes that are answered at once or not at all.
fn handle(events: &mut EventLoop, condition: Condition, least: usize) -> Result<(), CommandError> {
    match condition {
        Condition::Received { handle, .. } | Condition::Window { handle, .. } => echo(events, handle, least),
        Condition::Incoming { handle, .. } => events.accept(handle, Token(1)),
        Condition::Eof { handle, .. } => events.close(handle),
        _ => Ok(()),
    }
}

fn echo(events: &mut EventLoop, handle: Handle, least: usize) -> Result<(), CommandError> {
    let data = events.data(handle)?;
    if data.len() < least {
        return Ok(());
    }
    let sent = events.send(handle, &[IoSlice::new(data)])?;
    events.consume(handle, sent)
}
