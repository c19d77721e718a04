//! The bytes of a connection that have arrived and are not part of a request yet: a pure machine.
//!
//! Owns the buffer, which grows with what arrives and not with what a request announces: at most to
//! the longest request.

use super::framing::{Frame, Framing};
use core::mem::{replace, take};

/// Bytes at first.
const FIRST: usize = 2 << 10;
/// Bytes that an empty buffer keeps.
const KEPT: usize = 64 << 10;

/// What the buffer begins with.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A request, which is taken out.
    Request(Box<[u8]>),
    /// Nothing, or a part of a request.
    Nothing,
    /// Bytes that are no request.
    Malformed,
    /// A request longer than allowed.
    TooLong,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Length of the first request, if it is known; 0 if not.
    len: usize,
    /// Bytes of the first request that the framing has seen.
    seen: usize,
}

impl Input {
    /// Returns whether a part of a request has arrived.
    pub fn is_amid_request(&self) -> bool {
        self.start < self.end
    }

    /// Returns what has arrived of the first request, and its length, if that is known.
    pub fn announced(&self) -> Option<(&[u8], usize)> {
        (self.len > 0).then(|| (&self.bytes[self.start..self.end], self.len))
    }

    /// Takes the next request out.
    pub fn next(&mut self, framing: &Framing) -> Found {
        let (arrived, longest) = (self.end - self.start, framing.limits.longest);
        if self.len == 0 && arrived > self.seen {
            let seen = replace(&mut self.seen, arrived);
            match framing.frame(&self.bytes[self.start..self.end], seen) {
                Frame::Partial => {}
                Frame::Request(len) => self.len = len,
                Frame::Malformed => return Found::Malformed,
            }
        }
        if self.len > longest || self.len == 0 && arrived >= longest {
            return Found::TooLong;
        }
        if self.len == 0 || self.len > arrived {
            return Found::Nothing;
        }
        let request = self.bytes[self.start..self.start + self.len].into();
        self.start += take(&mut self.len);
        self.seen = 0;
        Found::Request(request)
    }

    /// Returns the space for the bytes that arrive next; never empty after [`Found::Nothing`].
    pub fn space(&mut self, framing: &Framing) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.bytes.len() > KEPT {
            self.bytes = Vec::new();
        }
        if self.end == self.bytes.len() {
            let len = (2 * self.end).max(FIRST).min(framing.limits.longest.max(FIRST));
            self.bytes.reserve_exact(len - self.end);
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Records that `len` bytes arrived in that space.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.bytes.len(), "more arrived than there was space for");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two bytes of length, and so many bytes.
    fn framing() -> Framing {
        Framing::new(|bytes, _| match bytes {
            [a, b, ..] => Frame::Request(2 + usize::from(u16::from_be_bytes([*a, *b]))),
            _ => Frame::Partial,
        })
    }

    fn put(input: &mut Input, framing: &Framing, bytes: &[u8]) -> usize {
        let space = input.space(framing);
        let len = space.len().min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        input.filled(len);
        len
    }

    proptest! {
        #[test]
        fn requests_are_found_in_any_pieces(
            lens in prop::collection::vec(0_u16..9_000, 1..20),
            pieces in prop::collection::vec(1_usize..5_000, 1..20),
        ) {
            let (framing, mut input, mut found) = (framing(), Input::default(), Vec::new());
            let requests: Vec<_> = lens
                .iter()
                .enumerate()
                .map(|(i, len)| [&len.to_be_bytes()[..], &vec![i as u8; (*len).into()]].concat())
                .collect();
            let (stream, mut pieces) = (requests.concat(), pieces.into_iter().cycle());
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let piece = rest.len().min(pieces.next().unwrap());
                let len = put(&mut input, &framing, &rest[..piece]);
                rest = &rest[len..];
                loop {
                    match input.next(&framing) {
                        Found::Request(request) => found.push(request.into_vec()),
                        Found::Nothing => break,
                        other => panic!("{other:?}"),
                    }
                }
            }
            prop_assert!(!input.is_amid_request());
            prop_assert!(found == requests);
        }
    }

    #[test]
    fn memory_follows_what_arrived_and_has_a_bound() {
        let framing = framing().longest(30_000);
        let mut input = Input::default();
        put(&mut input, &framing, &20_000_u16.to_be_bytes());
        assert_eq!(input.announced(), None);
        assert_eq!((input.next(&framing), input.bytes.capacity()), (Found::Nothing, FIRST));
        assert_eq!(input.announced(), Some((&20_000_u16.to_be_bytes()[..], 20_002)));
        put(&mut input, &framing, &[0; 10]);
        assert_eq!((input.next(&framing), input.bytes.capacity()), (Found::Nothing, FIRST));
        let mut input = Input::default();
        put(&mut input, &framing, &30_000_u16.to_be_bytes());
        assert_eq!(input.next(&framing), Found::TooLong, "before it has arrived");
    }

    #[test]
    fn a_request_without_an_end_is_too_long_at_the_bound() {
        let framing = Framing::new(|_, _| Frame::Partial).longest(3_000);
        let mut input = Input::default();
        let mut sent = 0;
        while input.next(&framing) == Found::Nothing {
            sent += put(&mut input, &framing, &[1; 100]);
        }
        assert_eq!((sent, input.next(&framing)), (3_000, Found::TooLong));
        let framing = Framing::new(|_, _| Frame::Malformed);
        let mut input = Input::default();
        assert_eq!(input.next(&framing), Found::Nothing, "nothing has arrived");
        put(&mut input, &framing, b"?");
        assert_eq!(input.next(&framing), Found::Malformed);
    }

    #[test]
    fn the_framing_sees_no_bytes_twice_in_vain() {
        let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let calls = std::sync::Arc::clone(&seen);
        let framing = Framing::new(move |_, _| {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Frame::Request(100)
        });
        let mut input = Input::default();
        for _ in 0..99 {
            put(&mut input, &framing, b"x");
            assert_eq!(input.next(&framing), Found::Nothing);
        }
        assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn a_search_goes_on_where_it_ended() {
        const LEN: usize = 10_000;
        let searched = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = std::sync::Arc::clone(&searched);
        let framing = Framing::new(move |bytes, seen| {
            count.fetch_add(bytes.len() - seen, std::sync::atomic::Ordering::Relaxed);
            match bytes[seen..].iter().position(|&byte| byte == b'\n') {
                Some(end) => Frame::Request(seen + end + 1),
                None => Frame::Partial,
            }
        });
        let mut input = Input::default();
        for round in 1..=2 {
            for _ in 1..LEN {
                put(&mut input, &framing, b"a");
                assert_eq!(input.next(&framing), Found::Nothing);
            }
            put(&mut input, &framing, b"\n");
            let Found::Request(line) = input.next(&framing) else { panic!("it has arrived") };
            assert_eq!(line.len(), LEN);
            assert_eq!(searched.load(std::sync::atomic::Ordering::Relaxed), round * LEN);
        }
    }
}
