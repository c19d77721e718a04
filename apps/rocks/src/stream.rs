//! Messages over a connection: requests are read and replies written, each within a time limit.
//!
//! Owns the assembly of messages from bytes. The stream's timeouts, set once from
//! [`Limits::idle`](crate::request::Limits), end each single wait; a deadline of the same length,
//! checked in between, ends a message that is transferred slowly. So a client keeps its place for
//! at most twice that time. A buffer grows as a body arrives: memory follows what was sent, not
//! what was announced.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use tailwater_workload::rocks::{HEADER_LEN, Header};

/// Initial room for a body in bytes, before any of it has arrived.
const FIRST: usize = 16 << 10;

/// Reads the header of a request into `bytes`, replacing the contents; `None` at the end of the
/// stream.
///
/// # Errors
/// The stream's error; `InvalidData` if the bytes are not a request, after which no message on this
/// stream can be recognised; `TimedOut` if it takes longer than `idle`.
pub fn read_header(
    stream: &mut impl Read,
    bytes: &mut Vec<u8>,
    idle: Duration,
) -> io::Result<Option<Header>> {
    bytes.clear();
    bytes.resize(HEADER_LEN, 0);
    let mut filled = loop {
        match stream.read(bytes) {
            Ok(0) => return Ok(None),
            Ok(len) => break len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    let deadline = Instant::now() + idle;
    while filled < HEADER_LEN {
        filled += read_some(stream, &mut bytes[filled..], deadline)?;
    }
    let header = Header::decode(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
    if header.status.is_some() {
        return Err(io::Error::new(ErrorKind::InvalidData, "a reply came instead of a request"));
    }
    Ok(Some(header))
}

/// Reads the body that `header`, which is all of `bytes`, announces.
///
/// # Errors
/// The stream's error, also its end; `TimedOut` if it takes longer than `idle`.
pub fn read_body(
    stream: &mut impl Read,
    bytes: &mut Vec<u8>,
    header: &Header,
    idle: Duration,
) -> io::Result<()> {
    // At most MAX_BODY, by decoding.
    let total = HEADER_LEN + header.body_len as usize;
    let (deadline, mut filled) = (Instant::now() + idle, bytes.len());
    while filled < total {
        if filled == bytes.len() {
            let room = (2 * filled).max(FIRST).min(total);
            bytes.reserve_exact(room - filled);
            bytes.resize(room, 0);
        }
        filled += read_some(stream, &mut bytes[filled..], deadline)?;
    }
    Ok(())
}

fn read_some(stream: &mut impl Read, buf: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        check(deadline)?;
        match stream.read(buf) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes a reply.
///
/// # Errors
/// The stream's error; `TimedOut` if the client does not read it within `idle`.
pub fn write_reply(stream: &mut impl Write, mut reply: &[u8], idle: Duration) -> io::Result<()> {
    let deadline = Instant::now() + idle;
    loop {
        match stream.write(reply) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => reply = &reply[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if reply.is_empty() {
            return Ok(());
        }
        check(deadline)?;
    }
}

fn check(deadline: Instant) -> io::Result<()> {
    if Instant::now() > deadline { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_workload::rocks::{MAX_BODY, Operation};

    const LONG: Duration = tailwater_testkit::PATIENCE;

    /// Reads a request; returns whether there was one.
    fn read_request(stream: &mut impl Read, bytes: &mut Vec<u8>, idle: Duration) -> io::Result<bool> {
        let Some(header) = read_header(stream, bytes, idle)? else { return Ok(false) };
        read_body(stream, bytes, &header, idle).map(|()| true)
    }

    fn put(body_len: usize) -> Vec<u8> {
        let header = Header { body_len: body_len as u32, ..Header::request(Operation::Put, 1, 2, 0) };
        header.encode().to_vec()
    }

    /// Transfers one byte at a time, each after a millisecond.
    struct Drips(Vec<u8>);

    impl Read for Drips {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(1));
            self.0.as_slice().read(&mut buf[..1]).inspect(|&len| drop(self.0.drain(..len)))
        }
    }

    impl Write for Drips {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(1));
            self.0.push(buf[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn requests_are_read_until_something_else_comes() {
        let get = Header::request(Operation::Get, 1, 2, 0).encode();
        let long = [put(100_000), vec![7; 100_000]].concat();
        let put = [&put(3)[..], b"abc"].concat();
        let stream = [&put[..], &long, &get, b"GET / HTTP/1.1\r\nHost: not a request"].concat();
        let mut stream = &stream[..];
        let mut bytes = Vec::new();
        for wanted in [&put[..], &long, &get] {
            assert!(read_request(&mut stream, &mut bytes, LONG).unwrap());
            assert!(bytes == wanted);
        }
        let error = read_request(&mut stream, &mut bytes, LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(!read_request(&mut &b""[..], &mut bytes, LONG).unwrap());
        for end in [31, 34] {
            let error = read_request(&mut &put[..end], &mut bytes, LONG).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn memory_follows_what_was_sent_and_not_what_was_announced() {
        for sent in [0, 100, 100_000] {
            let stream = [put(MAX_BODY), vec![1; sent]].concat();
            let mut bytes = Vec::new();
            read_request(&mut &stream[..], &mut bytes, LONG).unwrap_err();
            assert!(bytes.capacity() <= FIRST + 2 * sent, "{} bytes for {sent}", bytes.capacity());
        }
    }

    #[test]
    fn who_drips_is_not_waited_for() {
        let idle = Duration::from_millis(20);
        let mut drips = Drips([put(MAX_BODY), vec![1; MAX_BODY]].concat());
        let error = read_request(&mut drips, &mut Vec::new(), idle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = write_reply(&mut Drips(Vec::new()), &vec![1; MAX_BODY], idle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
