//! Messages of ttrpc on the multiplexed connection of NRI.
//!
//! Owns the two headers. NRI puts before each piece the number of a connection and a length, four
//! bytes each, most significant first (containerd/nri, `pkg/net/multiplex`); in a connection ttrpc
//! puts before each message its length, the number of a stream, a kind and flags, ten bytes
//! (containerd/ttrpc, PROTOCOL.md). Its reader takes pieces into a buffer of the size that it asks
//! for, so a header and a message are pieces of their own. A message that is longer than ttrpc
//! allows ends the connection, before memory is taken for it.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The connection on which the container runtime calls the plugin,
pub const PLUGIN: u32 = 1;
/// and the one on which the plugin calls it.
pub const RUNTIME: u32 = 2;

/// Longest message (ttrpc).
const MOST: usize = 4 << 20;
/// Bytes of ttrpc's header.
const HEADER: usize = 10;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request,
    /// Its answer.
    Response,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// [`PLUGIN`] or [`RUNTIME`].
    pub connection: u32,
    /// The number that a call and its answer have in common.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// The message.
    pub payload: Vec<u8>,
}

/// Writes a message.
///
/// # Errors
/// Linux's.
pub async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let length = u32::try_from(frame.payload.len()).map_err(|_| too_long())?;
    let mut bytes = Vec::with_capacity(2 * 8 + HEADER + frame.payload.len());
    let mut piece = |piece: &[u8]| {
        bytes.extend(frame.connection.to_be_bytes());
        bytes.extend((piece.len() as u32).to_be_bytes());
        bytes.extend(piece);
    };
    let kind = if frame.kind == Kind::Request { 1 } else { 2 };
    piece(&[&length.to_be_bytes()[..], &frame.stream.to_be_bytes(), &[kind, 0]].concat());
    if length > 0 {
        piece(&frame.payload);
    }
    to.write_all(&bytes).await
}

/// Bytes of the two connections that are no whole message yet.
#[derive(Debug, Default)]
pub struct Reader([Vec<u8>; 2]);

impl Reader {
    /// Reads the next message that is whole.
    ///
    /// # Errors
    /// Linux's, and [`ErrorKind::InvalidData`] for what is no message.
    pub async fn read(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
        loop {
            let (connection, length) = (from.read_u32().await?, from.read_u32().await? as usize);
            let bytes = match connection {
                PLUGIN => &mut self.0[0],
                RUNTIME => &mut self.0[1],
                _ => return Err(invalid("a piece of an unknown connection")),
            };
            let before = bytes.len();
            if length > HEADER + MOST || before + length > HEADER + MOST {
                return Err(too_long());
            }
            bytes.resize(before + length, 0);
            from.read_exact(&mut bytes[before..]).await?;
            if let Some(frame) = take(connection, bytes)? {
                return Ok(frame);
            }
        }
    }
}

/// Takes the message out of the bytes of a connection, if it is whole. Nothing of another one is
/// behind it: a sender begins a piece with each message.
fn take(connection: u32, bytes: &mut Vec<u8>) -> io::Result<Option<Frame>> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let [a, b, c, d, e, f, g, h, kind, _] = *header;
    let (length, stream) = (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]));
    if length > MOST {
        return Err(too_long());
    }
    let kind = match kind {
        1 => Kind::Request,
        2 => Kind::Response,
        _ => return Err(invalid("a message of an unknown kind")),
    };
    match bytes.len() - HEADER {
        found if found < length => Ok(None),
        found if found > length => Err(invalid("a message and a part of another one in one piece")),
        _ => {
            let payload = bytes.split_off(HEADER);
            bytes.clear();
            Ok(Some(Frame { connection, stream, kind, payload }))
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn too_long() -> io::Error {
    invalid("a message of more than 4 MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn frame(payload: &[u8]) -> Frame {
        Frame { connection: RUNTIME, stream: 3, kind: Kind::Response, payload: payload.to_vec() }
    }

    #[test]
    fn messages_are_read_as_they_were_written_in_pieces_for_the_peers_reader() {
        block(async {
            let mut bytes = Vec::new();
            for payload in [&b"abc"[..], b"", &[7; 10_000]] {
                write(&mut bytes, &frame(payload)).await.unwrap();
            }
            assert_eq!(bytes[..18], *b"\0\0\0\x02\0\0\0\x0a\0\0\0\x03\0\0\0\x03\x02\0");
            assert_eq!(bytes[18..29], *b"\0\0\0\x02\0\0\0\x03abc");
            let (mut from, mut reader) = (&bytes[..], Reader::default());
            for payload in [&b"abc"[..], b"", &[7; 10_000]] {
                assert_eq!(reader.read(&mut from).await.unwrap(), frame(payload));
            }
            assert_eq!(reader.read(&mut from).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        });
    }

    #[test]
    fn pieces_of_the_two_connections_may_be_mixed() {
        block(async {
            let (mut one, mut two) = (Vec::new(), Vec::new());
            write(&mut one, &frame(b"abc")).await.unwrap();
            write(&mut two, &Frame { connection: PLUGIN, ..frame(b"de") }).await.unwrap();
            // Headers first, which are pieces of 18 bytes.
            let mixed = [&one[..18], &two[..18], &two[18..], &one[18..]].concat();
            let (mut from, mut reader) = (&mixed[..], Reader::default());
            assert_eq!(reader.read(&mut from).await.unwrap().payload, b"de");
            assert_eq!(reader.read(&mut from).await.unwrap().payload, b"abc");
        });
    }

    #[test]
    fn garbage_and_lengths_that_are_too_large_end_the_connection() {
        let whole = b"\0\0\0\x0d\0\0\0\x02\0\0\0\x01\0\0\0\x01\x01\0abc";
        for (bytes, kind) in [
            (&b"\0\0\0\x01\xff\xff\xff\xff"[..], ErrorKind::InvalidData),
            (b"\0\0\0\x03\0\0\0\x01a", ErrorKind::InvalidData),
            (b"\0\0\0\x01\0\0\0\x0a\xff\xff\xff\xff\0\0\0\x01\x01\0", ErrorKind::InvalidData),
            (b"\0\0\0\x01\0\0\0\x0a\0\0\0\x00\0\0\0\x01\x07\0", ErrorKind::InvalidData),
            (b"\0\0\0\x01\0\0\0\x0a\0\0\0\x03\0\0\0\x01\x01\0\0\0\0\x02", ErrorKind::UnexpectedEof),
            (&whole[..7], ErrorKind::UnexpectedEof),
        ] {
            let error = block(async { Reader::default().read(&mut &*bytes).await }).unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}: {error}");
        }
    }
}
