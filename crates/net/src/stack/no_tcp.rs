//! The stack's calls into TCP where it is left out: nothing is ever due.

use super::Stack;
use super::ending::Owed;
use crate::arrived::IcmpError;
use crate::outlet::Outlet;
use crate::platform::Platform;
use core::marker::PhantomData;
use core::net::IpAddr;
use core::time::Duration;

/// The connections that still have something to deliver: none.
#[derive(Debug)]
pub struct Ending<P>(PhantomData<fn() -> P>);

impl<P: Platform> Stack<P> {
    /// Returns when TCP has something to do: never.
    pub fn tcp_deadline(&self) -> Option<Duration> {
        None
    }

    /// Postpones the timers of connections, of which there are none.
    pub fn put_off_timers(&self, _: &mut impl Outlet<P>) {}

    pub(crate) fn poll_tcp(&self, _: &mut impl Outlet<P>) {}

    /// Refuses an error about a segment, which this host cannot have sent.
    pub(crate) fn handle_tcp_error(&self, _: &mut impl Outlet<P>, _: &IcmpError<'_>) -> bool {
        false
    }

    pub(crate) fn fail_remote(&self, _: &mut impl Outlet<P>) {}

    pub(crate) fn fail_departed(&self, _: &mut impl Outlet<P>, _: IpAddr) {}
    pub(crate) fn probe_peer(&self, _: &mut impl Outlet<P>, _: IpAddr) {}

    pub(crate) fn resume_remote(&self, _: &mut impl Outlet<P>) {}

    pub(crate) fn end_connections(&self) -> Ending<P> {
        Ending(PhantomData)
    }

    pub(crate) fn poll_end_of_connections(&self, _: &mut impl Outlet<P>, _: &mut Ending<P>, _: bool) -> Owed {
        Owed::default()
    }

    pub(crate) fn has_connections(&self) -> bool {
        false
    }
}
