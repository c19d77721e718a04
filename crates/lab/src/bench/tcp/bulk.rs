//! Bulk data over one connection, of Tailwater or of the kernel, as fast as it goes.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Bytes of one write.
pub(super) const CHUNK: usize = 64 << 10;

/// Sends for `warm_up`, which is not counted, and then for `lasts`; returns the counted rate in
/// Gbit/s.
pub(super) fn send(stream: &mut impl Write, warm_up: Duration, lasts: Duration) -> io::Result<f64> {
    let buffer = vec![0x5a; CHUNK];
    let begin = Instant::now() + warm_up;
    while Instant::now() < begin {
        stream.write_all(&buffer)?;
    }
    let (began, mut bytes) = (Instant::now(), 0u64);
    while began.elapsed() < lasts {
        stream.write_all(&buffer)?;
        bytes += CHUNK as u64;
    }
    Ok(bytes as f64 * 8.0 / began.elapsed().as_nanos() as f64)
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
