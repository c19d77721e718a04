//! Bulk data over one connection, of Tailwater or of the kernel, as fast as it goes.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::terms::{ANY, DISCARD, GENERATE};

/// Bytes of one write.
pub(super) const CHUNK: usize = 64 << 10;

/// Sends for `warm_up`, which is not counted, and then for `lasts`; returns the counted rate in
/// Gbit/s.
pub fn send(stream: &mut impl Write, warm_up: Duration, lasts: Duration) -> io::Result<f64> {
    let buffer = vec![0x5a; CHUNK];
    rate(warm_up, lasts, || stream.write_all(&buffer).map(|()| CHUNK))
}

/// Receives for `warm_up`, which is not counted, and then for `lasts`; returns the counted rate in
/// Gbit/s.
pub fn receive(stream: &mut impl Read, warm_up: Duration, lasts: Duration) -> io::Result<f64> {
    let mut buffer = vec![0; CHUNK];
    rate(warm_up, lasts, || read_some(stream, &mut buffer))
}

/// Moves some bytes again and again, for `warm_up` and then for `lasts`; returns the rate of the
/// latter.
fn rate(warm_up: Duration, lasts: Duration, mut moved: impl FnMut() -> io::Result<usize>) -> io::Result<f64> {
    let begin = Instant::now() + warm_up;
    while Instant::now() < begin {
        moved()?;
    }
    let (began, mut bytes) = (Instant::now(), 0u64);
    while began.elapsed() < lasts {
        bytes += moved()? as u64;
    }
    Ok(bytes as f64 * 8.0 / began.elapsed().as_nanos() as f64)
}

/// Reads at least a byte.
fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the sender has ended the stream")),
        len => Ok(len),
    }
}

/// Serves DISCARD and GENERATE on kernel sockets, a thread for each connection, until this process
/// ends.
pub fn serve() -> io::Result<()> {
    for (port, generates) in [(DISCARD, false), (GENERATE, true)] {
        let listener = TcpListener::bind((ANY, port))?;
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                // The error is that the client is gone.
                std::thread::spawn(
                    move || {
                        if generates { generate(&mut stream) } else { discard(&mut stream) }
                    },
                );
            }
        });
    }
    Ok(())
}

/// Reads to the end of the stream.
pub(super) fn discard(stream: &mut impl Read) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Sends until the connection ends.
///
/// # Errors
/// The reason of its end.
pub(super) fn generate(stream: &mut impl Write) -> io::Result<()> {
    let buffer = vec![0x5a; CHUNK];
    loop {
        stream.write_all(&buffer)?;
    }
}
