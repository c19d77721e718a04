//! The translation of frames for programs that are behind the interface's own MAC address: by their
//! IP addresses or by their ports.

use std::net::IpAddr;
use tailwater_wire::MacAddr;

use super::addresses::{self, Outward};
use super::ports;
use crate::Inject;

/// See the module documentation.
#[derive(Debug)]
pub(super) enum Behind {
    Addresses(addresses::Translation),
    Ports(Box<ports::Translation>),
}

impl Behind {
    /// Takes up the latest view, and injects frames that wait, up to `budget`; returns how many.
    pub(super) fn poll(&mut self, budget: usize, switch: &mut dyn Inject) -> usize {
        match self {
            Self::Addresses(it) => it.poll(budget, switch),
            Self::Ports(it) => it.poll(budget, switch),
        }
    }

    /// Returns whether frames wait for the next poll.
    pub(super) fn has_answers(&self) -> bool {
        match self {
            Self::Addresses(it) => it.has_answers(),
            Self::Ports(it) => it.has_answers(),
        }
    }

    /// Returns frames that can leave now, as they are.
    pub(super) fn take_ready(&mut self) -> Vec<Vec<u8>> {
        match self {
            Self::Addresses(_) => Vec::new(),
            Self::Ports(it) => it.take_ready(),
        }
    }

    /// Translates a frame from the wire. Returns false if it is for no program.
    pub(super) fn enter(&mut self, frame: &mut [u8], station: impl Fn(IpAddr) -> Option<MacAddr>) -> bool {
        match self {
            Self::Addresses(it) => it.enter(frame, station),
            Self::Ports(it) => it.enter(frame, station),
        }
    }

    /// Decides on a frame of a program, before [`leave`](Self::leave) translates the copy that
    /// leaves.
    pub(super) fn judge(&mut self, frame: &[u8]) -> Outward {
        match self {
            Self::Addresses(it) => it.judge(frame),
            Self::Ports(it) => it.judge(frame),
        }
    }

    /// Translates the copy of a frame that leaves, to this station if one is given.
    pub(super) fn leave(&self, frame: &mut [u8], station: Option<MacAddr>) {
        match self {
            Self::Addresses(it) => it.leave(frame, station),
            Self::Ports(it) => it.leave(frame, station),
        }
    }
}
