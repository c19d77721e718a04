//! Which bytes of a stream are a traced request.
//!
//! A segment with data is taken for a request; it is received by whoever reads its first byte. One at a time for each connection: of a
//! second one that comes before that, only its way here is told.

use crate::trace::Request;

/// See the module documentation. Made when the first traced segment comes, and kept.
#[derive(Debug, Default)]
pub struct Tag {
    /// Flow key of the replies to this connection's requests.
    back: u64,
    /// Bytes that are read before it, and the request.
    unread: Option<(usize, Request)>,
}

impl Tag {
    /// `request` has come behind `ahead` bytes that nobody has read. False if another is still there.
    pub fn put(&mut self, ahead: usize, request: Request) -> bool {
        self.back = request.back;
        let free = self.unread.is_none();
        if free {
            self.unread = Some((ahead, request));
        }
        free
    }

    /// `len` bytes were read: the request, if it begins in them.
    pub fn take(&mut self, len: usize) -> Option<Request> {
        let (ahead, request) = self.unread.take()?;
        if len > ahead {
            return Some(request);
        }
        self.unread = Some((ahead - len, request));
        None
    }

    /// Flow key of the replies to this connection's requests.
    pub fn back(&self) -> u64 {
        self.back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u32) -> Request {
        Request { id, back: 9 }
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
    fn a_second_request_does_not_take_the_first_ones_place() {
        let mut tag = Tag::default();
        assert!(tag.put(0, request(1)));
        assert!(!tag.put(50, request(2)));
        assert_eq!(tag.take(100), Some(request(1)));
        assert!(tag.put(0, request(3)));
        assert_eq!(tag.take(1), Some(request(3)));
    }
}
