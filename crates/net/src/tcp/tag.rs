//! The position of a traced request in a stream.
//!
//! A segment with data counts as a request; the thread that reads its first byte receives it. A
//! connection has at most one at a time: of a second one that arrives before that, only the way to
//! the socket is recorded.

/// See the module documentation. Made when the first traced segment comes, and kept.
#[derive(Debug)]
pub struct Tag<R> {
    /// The last request: all of a connection are answered on one flow.
    last: Option<R>,
    /// Unread bytes before it, and the request.
    unread: Option<(usize, R)>,
}

impl<R> Default for Tag<R> {
    fn default() -> Self {
        Self { last: None, unread: None }
    }
}

impl<R: Copy> Tag<R> {
    /// Adds `request`, which lies behind `ahead` unread bytes. False if another is unread.
    pub fn put(&mut self, ahead: usize, request: R) -> bool {
        self.last = Some(request);
        let free = self.unread.is_none();
        if free {
            self.unread = Some((ahead, request));
        }
        free
    }

    /// Counts `len` bytes as read; returns the request if it begins in them.
    pub fn take(&mut self, len: usize) -> Option<R> {
        let (ahead, request) = self.unread.take()?;
        if len > ahead {
            return Some(request);
        }
        self.unread = Some((ahead - len, request));
        None
    }

    /// Counts `len` bytes as unread again, which lie before all others.
    pub fn give_back(&mut self, len: usize) {
        if let Some((ahead, _)) = &mut self.unread {
            *ahead += len;
        }
    }

    /// Returns the last request.
    pub fn last(&self) -> Option<R> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u32) -> u32 {
        id
    }

    #[test]
    fn a_request_is_received_with_its_first_byte() {
        let mut tag = Tag::default();
        assert_eq!(tag.take(100), None);
        assert!(tag.put(100, request(1)));
        assert_eq!(tag.take(60), None);
        assert_eq!(tag.take(0), None);
        assert_eq!(tag.take(40), None, "what lay before it");
        assert_eq!(tag.take(1), Some(request(1)));
        assert_eq!(tag.take(1), None, "once");
    }

    #[test]
    fn bytes_that_are_given_back_lie_before_the_request() {
        let mut tag = Tag::default();
        assert!(tag.put(0, request(1)));
        tag.give_back(10);
        assert_eq!(tag.take(10), None);
        assert_eq!(tag.take(1), Some(request(1)));
    }

    #[test]
    fn a_second_request_does_not_take_the_first_ones_place() {
        let mut tag = Tag::default();
        assert!(tag.put(0, request(1)));
        assert!(!tag.put(50, request(2)));
        assert_eq!(tag.take(100), Some(request(1)));
        assert!(tag.put(0, request(3)));
        assert_eq!(tag.take(1), Some(request(3)));
    }
}
