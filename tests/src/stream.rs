//! Streams whose bytes are recognisable: a pseudo-random stream and a hash over it, for both ends
//! of a connection.

use std::io::{self, Read, Write};

/// Bytes processed at once.
const CHUNK: usize = 32 << 10;

/// A hash of a stream, eight bytes at a time (FNV-1a's constants over 64-bit words): finds lost,
/// repeated, exchanged and changed bytes; no protection against an adversary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hash {
    state: u64,
    pending: Vec<u8>,
    len: u64,
}

impl Hash {
    /// Adds the stream's next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.pending.extend_from_slice(bytes);
        let (words, rest) = self.pending.as_chunks::<8>();
        for word in words {
            self.state = (self.state ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3);
            self.state ^= self.state >> 29;
        }
        let rest = rest.to_vec();
        self.pending = rest;
    }

    /// Returns hash and length of all bytes, as text.
    pub fn finish(mut self) -> String {
        let len = self.len;
        self.update(&[0; 8][..8 - (len % 8) as usize]);
        format!("{:016x} {len}", self.state)
    }
}

/// Sends `len` pseudo-random bytes determined by `seed`; returns their hash.
///
/// # Errors
/// The writer's error.
pub fn send(to: &mut impl Write, seed: u64, len: u64) -> io::Result<String> {
    let (mut hash, mut state, mut left) = (Hash::default(), seed | 1, len);
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        for word in chunk.as_chunks_mut::<8>().0 {
            // xorshift64 (Marsaglia, 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        let now = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
        to.write_all(&chunk[..now])?;
        hash.update(&chunk[..now]);
        left -= now as u64;
    }
    Ok(hash.finish())
}

/// Reads until the end of the stream; returns the hash of its bytes.
///
/// # Errors
/// The reader's error.
pub fn receive(from: &mut impl Read) -> io::Result<String> {
    let (mut hash, mut chunk) = (Hash::default(), vec![0; CHUNK]);
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(hash.finish()),
            len => hash.update(&chunk[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_read_in_other_pieces_has_the_same_hash_and_a_changed_one_has_not() {
        let mut bytes = Vec::new();
        let sent = send(&mut bytes, 7, 100_003).expect("a vector takes all");
        assert_eq!(receive(&mut &bytes[..]).expect("a slice gives all"), sent);
        let mut pieces = Hash::default();
        bytes.chunks(13).for_each(|piece| pieces.update(piece));
        assert_eq!(pieces.finish(), sent);
        bytes.swap(5, 50_000);
        assert_ne!(receive(&mut &bytes[..]).expect("a slice gives all"), sent);
        assert_ne!(receive(&mut &bytes[..100_002]).expect("a slice gives all"), sent);
    }
}
