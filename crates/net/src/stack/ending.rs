//! The last steps of a stack whose program ends: what its sockets have accepted is delivered, and
//! peers of open connections learn that nothing follows.
//!
//! The caller polls until nothing is owed, or until it has waited long enough; then it polls with
//! `last`, which gives up what has not been delivered. How long that may take is the caller's
//! decision. Packets that wait for a neighbour's answer are waited for as well.

#[cfg(not(feature = "tcp"))]
pub use super::no_tcp::Ending;
#[cfg(feature = "tcp")]
pub use super::tcp::ending::Ending;

use super::Stack;
use crate::outlet::Outlet;
use crate::platform::Platform;

/// What a stack whose program ends still has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owed {
    /// Connections with something to deliver.
    pub connections: usize,
    /// Bytes that the peers of these have acknowledged, ever.
    pub acknowledged: u64,
    /// True if packets wait for a neighbour's answer.
    pub unresolved: bool,
}

impl Owed {
    /// Returns whether nothing is left.
    pub fn is_nothing(&self) -> bool {
        self.connections == 0 && !self.unresolved
    }
}

impl<P: Platform> Stack<P> {
    /// Returns whether there is anything to do at the end of the program.
    pub fn has_peers(&self) -> bool {
        self.has_connections() || self.has_unresolved()
    }

    /// Begins the end of the program: handshakes are refused from now on.
    pub fn begin_ending(&self) -> Ending<P> {
        self.end_connections()
    }

    /// Resets the connections of `ending` that have delivered everything and are still open, and
    /// returns what is left. With `last` resets all that have not, and returns those for whose
    /// reset there was no room.
    pub fn poll_ending(&self, outlet: &mut impl Outlet<P>, ending: &mut Ending<P>, last: bool) -> Owed {
        let owed = self.poll_end_of_connections(outlet, ending, last);
        Owed { unresolved: self.has_unresolved(), ..owed }
    }

    fn has_unresolved(&self) -> bool {
        self.neighbours.is_any_awaited() || self.neighbours6.is_any_awaited()
    }
}
