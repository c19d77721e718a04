//! The end of a connection: no reply that was written is lost, and no client holds the connection
//! for long.
//!
//! A reset discards what the client has not acknowledged. TCP resets a stream that is dropped with
//! bytes unread, and one of which both directions are closed when bytes arrive (RFC 9293 section
//! 3.6.1). So the server closes the direction of the replies only, and goes on reading:
//!
//! | step | thread | lasts at most |
//! |---|---|---|
//! | reads and discards what the client still sends | reader | as long as the writer's steps, and [`DISCARDED_MAX`] bytes |
//! | waits until the client has acknowledged all replies | writer | the idle time; without one, the default |
//! | waits until the client closes, too | writer | [`CLOSE_MAX`] |
//!
//! The connection counts as open meanwhile. A client that has not acknowledged in time is reset, so
//! that its replies take no memory afterwards; so is one for which the writer has given up.

use super::framing::DEFAULT_IDLE;
use crate::net::TcpStream;
use crate::records::runtime::deadline_after;
use crate::sync::Event;
use std::io::Read;
use std::net::Shutdown;
use std::time::Duration;

/// Bytes discarded after which no more are read. A client that sends them before it reads its
/// replies is stuck from then on.
const DISCARDED_MAX: usize = 16 << 20;
/// Bytes discarded at once.
const PIECE: usize = 4 << 10;
/// How long the client may take to close its direction.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Reads and discards until the client or the writer ends the stream.
pub fn discard(mut stream: &TcpStream) {
    // The writer limits the time. Setting it does not fail.
    let _ = stream.set_read_timeout(None);
    let (mut piece, mut discarded) = ([0; PIECE], 0);
    while discarded < DISCARDED_MAX {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(len) => discarded += len,
        }
    }
}

/// Closes a stream whose replies are all written. `reader_ended` is set when nothing more is
/// read.
pub fn close(stream: &TcpStream, idle: Option<Duration>, reader_ended: &Event) {
    // This and the last call fail only if the connection is gone.
    let _ = stream.shutdown(Shutdown::Write);
    if !stream.wait_until_acknowledged(deadline_after(idle.unwrap_or(DEFAULT_IDLE))) {
        return reset(stream);
    }
    reader_ended.wait_timeout(CLOSE_MAX);
    let _ = stream.shutdown(Shutdown::Both);
}

/// Ends a stream without its unsent replies: it is reset as soon as both threads have left it.
pub fn reset(stream: &TcpStream) {
    let _ = stream.set_linger(Some(Duration::ZERO));
    // Wakes the reader.
    let _ = stream.shutdown(Shutdown::Both);
}
