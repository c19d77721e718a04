//! The input of a connection: received and not yet consumed.

/// Bytes at first.
const FIRST: usize = 2 << 10;
/// Maximum number of bytes: a command with its data block is taken at once if it fits, otherwise
/// the block goes to the store in pieces.
pub(super) const MAX: usize = 16 << 10;

/// A buffer that grows to [`MAX`].
#[derive(Debug)]
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn new() -> Self {
        Self { bytes: vec![0; FIRST], start: 0, end: 0 }
    }

    /// Returns the bytes received and not consumed.
    #[inline]
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    pub fn consume(&mut self, len: usize) {
        self.start += len;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns the space for the bytes that arrive next; never empty unless [`MAX`] bytes wait.
    pub fn space(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < self.bytes.len() / 2 && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < self.bytes.len() / 4 && self.bytes.len() < MAX {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Records that `len` bytes arrived in that space.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.bytes.len(), "more arrived than there was space for");
    }

    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_space_until_the_bound() {
        let mut input = Input::new();
        let mut sum = 0;
        while sum < MAX {
            let space = input.space();
            assert!(!space.is_empty());
            let len = space.len().min(700);
            space[..len].fill(sum as u8);
            input.filled(len);
            sum += len;
        }
        assert_eq!(input.get().len(), MAX);
        assert!(input.space().is_empty());
        input.consume(1);
        assert_eq!(input.space().len(), 1);
    }
}
