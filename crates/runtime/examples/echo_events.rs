//! An echo service run to completion: an event loop on each kthread, no thread for a connection.
//!
//! ```text
//! tailwater run -- cargo run -p tailwater --release --example echo_events -- 0.0.0.0:7
//! ```
//!
//! Without an address it serves its own clients: a hundred of them send lines, compare what comes
//! back, and the program prints how many lines did.

use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::net::{Shutdown, SocketAddr};
use std::ops::ControlFlow;
use tailwater::events::{CommandError, Condition, EventLoop, Handle, Token};
use tailwater::net::{TcpListener, TcpStream};
use tailwater::thread;

/// Clients of the program itself, and lines of each.
const CLIENTS: usize = 100;
const LINES: usize = 20;

#[tailwater::main]
fn main() -> io::Result<()> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    let to = listener.local_addr()?;
    let mut loops = Vec::new();
    for _ in 0..thread::available_parallelism()?.get() {
        let listener = listener.try_clone()?;
        loops.push(thread::spawn(move || serve(listener)));
    }
    if address.is_some() {
        for service in loops {
            let _ = service.join();
        }
        return Ok(());
    }
    let clients: Vec<_> = (0..CLIENTS).map(|number| thread::spawn(move || converse(to, number))).collect();
    let mut lines = 0;
    for client in clients {
        lines += client.join().map_err(|_| io::Error::other("a client panicked"))??;
    }
    println!("{lines} lines came back");
    Ok(())
}

/// Serves for ever.
fn serve(listener: TcpListener) {
    let mut events = EventLoop::new();
    events.listen(listener, Token(0));
    events.run(|events, condition| {
        // A command that fails is about a connection that is over, which is reported.
        let _ = handle(events, condition);
        ControlFlow::<()>::Continue(())
    });
}

fn handle(events: &mut EventLoop, condition: Condition) -> Result<(), CommandError> {
    match condition {
        Condition::Incoming { handle, .. } => events.accept(handle, Token(1)),
        Condition::Received { handle, .. }
        | Condition::Window { handle, .. }
        | Condition::Eof { handle, .. } => echo(events, handle),
        _ => Ok(()),
    }
}

/// Sends what there is room for. The rest stays on loan, and with it the client waits.
fn echo(events: &mut EventLoop, handle: Handle) -> Result<(), CommandError> {
    let sent = events.send(handle, &[IoSlice::new(events.data(handle)?)])?;
    events.consume(handle, sent)?;
    if events.is_eof(handle)? && events.data(handle)?.is_empty() {
        events.shutdown(handle)?;
    }
    Ok(())
}

/// Sends lines, and compares what comes back; returns how many lines did.
fn converse(to: SocketAddr, number: usize) -> io::Result<usize> {
    let mut stream = TcpStream::connect(to)?;
    let lines: Vec<_> = (0..LINES).map(|line| format!("line {line} of client {number}\n")).collect();
    stream.write_all(lines.concat().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut same = 0;
    for (sent, got) in lines.iter().zip(BufReader::new(stream).lines()) {
        same += usize::from(sent.trim_end() == got?);
    }
    Ok(same)
}
