//! Lines of the text protocol: their words, and the errors that all commands share, in memcached's
//! wording.

/// Maximum number of words of a line that are used.
const MAX_WORDS: usize = 24;
pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(super) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";
pub(super) const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";

/// The words of a line.
pub(super) struct Words<'a> {
    words: [&'a [u8]; MAX_WORDS],
    len: usize,
}

impl<'a> Words<'a> {
    /// Splits at spaces; drops words beyond [`MAX_WORDS`].
    #[inline]
    pub fn of(line: &'a [u8]) -> Self {
        let mut words: [&[u8]; MAX_WORDS] = [&[]; MAX_WORDS];
        let (mut len, mut rest) = (0, line);
        while len < MAX_WORDS {
            let Some(start) = rest.iter().position(|&c| c != b' ') else { break };
            rest = &rest[start..];
            let end = rest.iter().position(|&c| c == b' ').unwrap_or(rest.len());
            (words[len], rest) = rest.split_at(end);
            len += 1;
        }
        Self { words, len }
    }
}

impl<'a> std::ops::Deref for Words<'a> {
    type Target = [&'a [u8]];

    fn deref(&self) -> &[&'a [u8]] {
        &self.words[..self.len]
    }
}
