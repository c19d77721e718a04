//! The echo services on event loops, for `bench events` and the figures of IX: one loop for each
//! size of a round, one for each length of a message, and one that counts its rounds.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater::events::{Batch, CommandError, Condition, Cookie, EventLoop, Handle};
use tailwater::net::TcpListener;
use tailwater::thread;

use super::terms::{ANY, BATCHES, COUNTED, EVENTS, MAX_EVENT_MESSAGE, MESSAGES, WHOLE_EVENTS};

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
    events.listen(listener, Cookie(0));
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

/// Handles a condition; `least` is the number of bytes that are answered at once or not at all.
fn handle(events: &mut EventLoop, condition: Condition, least: usize) -> Result<(), CommandError> {
    match condition {
        Condition::Received { handle, .. } | Condition::Window { handle, .. } => echo(events, handle, least),
        Condition::Knock { handle, .. } => events.accept(handle, Cookie(1)),
        Condition::Ended { handle, .. } => events.close(handle),
        _ => Ok(()),
    }
}

fn echo(events: &mut EventLoop, handle: Handle, least: usize) -> Result<(), CommandError> {
    let data = events.data(handle)?;
    if data.len() < least {
        return Ok(());
    }
    let sent = events.send(handle, &[IoSlice::new(data)])?;
    events.recv_done(handle, sent)
}
