//! The option of TCP Fast Open (RFC 7413 section 4.1.1).

use core::fmt;

/// Bytes of the shortest and of the longest cookie.
const LENGTHS: core::ops::RangeInclusive<usize> = 4..=16;

/// A cookie: the proof of a client that it can receive at its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    len: u8,
    bytes: [u8; 16],
}

/// Omits the bytes, which are a secret between client and server.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cookie({} bytes)", self.len)
    }
}

impl Cookie {
    /// Returns the cookie in `bytes`: 4 to 16, an even number.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = bytes.len();
        if !LENGTHS.contains(&len) || !len.is_multiple_of(2) {
            return None;
        }
        let mut cookie = Self { len: len as u8, bytes: [0; 16] };
        cookie.bytes[..len].copy_from_slice(bytes);
        Some(cookie)
    }

    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The option, as it is in a SYN or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FastOpen {
    /// It is not there.
    #[default]
    None,
    /// It is empty: the client asks for a cookie.
    Request,
    /// The client shows a cookie, or the server hands one out.
    Cookie(Cookie),
}

impl FastOpen {
    /// Returns the bytes that the option takes, padding included.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Request => 4,
            Self::Cookie(cookie) => (2 + cookie.as_bytes().len()).next_multiple_of(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn a_cookie_has_four_to_sixteen_bytes_and_an_even_number() {
        for len in 0..=20 {
            let cookie = Cookie::new(&[7; 20][..len]);
            assert_eq!(cookie.is_some(), LENGTHS.contains(&len) && len % 2 == 0, "{len}");
            assert!(cookie.is_none_or(|cookie| cookie.as_bytes() == &[7; 20][..len]));
        }
        assert_eq!(format!("{:?}", Cookie::new(&[9; 8]).unwrap()), "Cookie(8 bytes)");
    }
}
