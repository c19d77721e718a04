//! The echo service on event loops, for `bench events`: one loop for each size of a round.

use std::io::IoSlice;
use std::ops::ControlFlow;

use tailwater::events::{CommandError, Condition, Cookie, EventLoop, Handle};
use tailwater::net::TcpListener;
use tailwater::thread;

use super::terms::{ANY, BATCHES, EVENTS};

/// Starts a loop for each size, each on its own port.
pub(super) fn serve() -> std::io::Result<()> {
    for (port, batch) in (EVENTS..).zip(BATCHES) {
        let listener = TcpListener::bind((ANY, port))?;
        thread::spawn(move || {
            let mut events = EventLoop::new();
            events.set_batch(batch).expect("the sizes are in range");
            events.listen(listener, Cookie(0));
            events.run(|events, condition| {
                // An error is that the client is gone, which is reported.
                let _ = handle(events, condition);
                ControlFlow::<()>::Continue(())
            });
        });
    }
    Ok(())
}

fn handle(events: &mut EventLoop, condition: Condition) -> Result<(), CommandError> {
    match condition {
        Condition::Received { handle, .. } | Condition::Window { handle, .. } => echo(events, handle),
        Condition::Knock { handle, .. } => events.accept(handle, Cookie(1)),
        Condition::Ended { handle, .. } => events.close(handle),
        _ => Ok(()),
    }
}

fn echo(events: &mut EventLoop, handle: Handle) -> Result<(), CommandError> {
    let sent = events.send(handle, &[IoSlice::new(events.data(handle)?)])?;
    events.recv_done(handle, sent)
}
