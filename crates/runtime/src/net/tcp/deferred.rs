//! Acknowledgments that wait for the end of a batch of frames, so that one covers several segments.

use super::Socket;
use crate::net::driver::{KthreadOutlet, stack};
use std::sync::Arc;

/// Maximum number of connections whose acknowledgments wait; those of further connections are sent
/// at once.
const MAX_DEFERRED: usize = 8;

/// Connections that owe an acknowledgment, which leaves when this is dropped. Preemption is off.
#[derive(Debug, Default)]
pub struct Deferred([Option<Arc<Socket>>; MAX_DEFERRED]);

impl Deferred {
    /// Adds a connection; false if there is no place.
    pub fn push(&mut self, socket: &Arc<Socket>) -> bool {
        let Some(place) = self.0.iter_mut().find(|place| place.is_none()) else { return false };
        *place = Some(Arc::clone(socket));
        true
    }
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        for socket in self.0.iter_mut().map_while(Option::take) {
            stack().flush_tcp(&mut KthreadOutlet, &socket);
        }
    }
}
