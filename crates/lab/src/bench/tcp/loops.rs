//! An echo with an event loop for each kthread, for IX's figure 5, part a.

use tailwater::events::{EventLoop, Token};
use tailwater::net::TcpListener;
use tailwater::thread;

use super::event_service::run;
use super::terms::{ANY, LOOPS};

/// Starts the loops, all with the same listener: a connection belongs to the loop that accepts it.
pub(super) fn serve() -> std::io::Result<()> {
    let listener = TcpListener::bind((ANY, LOOPS))?;
    for _ in 0..thread::available_parallelism()?.get() {
        let mut events = EventLoop::new();
        events.listen(listener.try_clone()?, Token(0));
        thread::spawn(move || run(&mut events, 1));
    }
    Ok(())
}
