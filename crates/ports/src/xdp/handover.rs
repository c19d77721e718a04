//! An AF_XDP port goes on with what the port of another IOKernel has made.
//!
//! Owns the order of the descriptors and the description that comes with them. Program, attachment,
//! map, sockets and frame memory stay as they are, so the interface sees no change, and frames that
//! arrive while no process polls wait in the sockets' rings, [`RING`] for each queue. How the rings
//! are taken up is the business of [`sys::xsk`](crate::sys::xsk).
//!
//! The other IOKernel is of the same user and trusted. What is checked is that it uses the
//! interface as this one would: the program is compared as a whole, so an option that changes it
//! needs no field here.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tailwater_shm::control::document_from_file;

use super::make::{Held, Made, Theirs};
use super::ports::attachment::Attachment;
use super::{Share, XdpMode, XdpPort, ZeroCopy};
use crate::sys::xsk::{OpenError, Queue, RING};
use crate::{PortError, STOP_FIRST};
use tailwater_bpf::sys::Hook;
use tailwater_bpf::sys::map::Map;

/// What the descriptors of a port are. They follow a memory file with this, as a JSON document: the
/// program's link (with `share=ports` the program itself), its maps, then the socket and the frame
/// memory of each queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Handed {
    /// Index of the interface.
    pub(super) interface: u32,
    /// The program runs in the driver.
    pub(super) native: bool,
    pub(super) queues: u32,
    /// Length of a chunk of frame memory in bytes.
    pub(super) chunk: u32,
    /// Entries of each ring.
    pub(super) ring: u32,
    /// The instructions, with 0 for the maps' descriptors.
    pub(super) program: Vec<u64>,
    /// The part of the settings that options determine: network and mask.
    #[serde(default)]
    pub(super) network: [u64; 2],
}

impl XdpPort {
    /// Returns the descriptors with which the port of another IOKernel goes on.
    pub(super) fn handed(&self) -> Vec<BorrowedFd<'_>> {
        let Some(attached) = &self.attached else { return Vec::new() };
        let first = [&attached.about, &attached.link].map(AsFd::as_fd).into_iter();
        first.chain(attached.maps.files()).chain(self.queues.iter().flat_map(Queue::files)).collect()
    }

    /// Takes what the port of another IOKernel has made. `wanted` is what this one would make with
    /// a program in the driver.
    pub(super) fn adopt(&self, devices: Vec<OwnedFd>, wanted: &Handed) -> Result<Made, PortError> {
        let mut devices = devices.into_iter();
        let too_little =
            || self.fail(format!("the running IOKernel has handed over too little; {STOP_FIRST}"));
        let (Some(about), Some(link)) = (devices.next(), devices.next()) else { return Err(too_little()) };
        let found: Handed = document_from_file(about).map_err(|e| {
            self.fail(format!("cannot read what the running IOKernel uses ({e}); {STOP_FIRST}"))
        })?;
        if let Some(what) = self.difference(&found, wanted) {
            return Err(self.uses_other(what));
        }
        // The program is the same, and so are its maps.
        let maps = self.adopt_maps(&mut devices).ok_or_else(too_little)?;
        let mut queues = Vec::new();
        while let (Some(socket), Some(memory)) = (devices.next(), devices.next()) {
            let queue = Queue::adopt(socket, memory, found.chunk).map_err(|error| match error {
                // What Linux before 6.4 says of the rings of a bound socket.
                OpenError::Rings(Errno::BUSY | Errno::INVAL) => self.fail(format!(
                    "Linux before 6.4 lets no other process go on with an AF_XDP socket; {STOP_FIRST}"
                )),
                error => self.fail(format!("{error}; {STOP_FIRST}")),
            })?;
            if !self.permits(queue.is_zero_copy()) {
                let uses = if queue.is_zero_copy() { "zero-copy=on" } else { "zero-copy=off" };
                return Err(self.fail(format!(
                    "the running IOKernel has it as with {uses}: take over with that, or {STOP_FIRST}"
                )));
            }
            queues.push(queue);
        }
        if queues.len() != found.queues as usize {
            return Err(too_little());
        }
        let hook = if found.native { Hook::Driver } else { Hook::Generic };
        let attachment = match self.spec.share {
            Share::Ports => {
                let attachment = Attachment::taken_over(&self.spec.interface, found.interface, &link, hook);
                Some(attachment.map_err(|e| self.fail(format!("cannot find its program: {e}")))?)
            }
            Share::Nothing | Share::Mac | Share::Addresses => None,
        };
        Ok(Made { link, attachment, maps, hook, queues })
    }

    /// Takes the maps of the program; `None` if one is missing, or is another kind of map.
    fn adopt_maps(&self, devices: &mut impl Iterator<Item = OwnedFd>) -> Option<Held> {
        let sockets = devices.next()?;
        let shares = self.spec.share != Share::Nothing;
        let settings = if shares { Some(Arc::new(Map::adopt(devices.next()?).ok()?)) } else { None };
        let theirs = match self.spec.share {
            Share::Nothing | Share::Mac => None,
            Share::Addresses => Some(Theirs::Addresses(Arc::new(Map::adopt(devices.next()?).ok()?))),
            Share::Ports => {
                let ports = Arc::new(Map::adopt(devices.next()?).ok()?);
                Some(Theirs::Ports(ports, Arc::new(Map::adopt(devices.next()?).ok()?)))
            }
        };
        Some(Held { sockets, settings, theirs })
    }

    /// Returns the option that would differ.
    fn difference(&self, found: &Handed, wanted: &Handed) -> Option<&'static str> {
        let is_other_mode = match self.spec.mode {
            XdpMode::Auto => false,
            XdpMode::Native => !found.native,
            XdpMode::Skb => found.native,
        };
        let differences = [
            (found.interface != wanted.interface, "interface of that name"),
            (is_other_mode, "mode"),
            (found.queues != wanted.queues, "number of queues"),
            (found.chunk != wanted.chunk || found.ring != RING, "frame memory"),
            (
                found.program != wanted.program || found.network != wanted.network,
                "share, range, gateway or network",
            ),
        ];
        differences.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }

    fn permits(&self, is_zero_copy: bool) -> bool {
        match self.spec.zero_copy {
            ZeroCopy::Auto => true,
            ZeroCopy::Required => is_zero_copy,
            ZeroCopy::Off => !is_zero_copy,
        }
    }

    fn uses_other(&self, what: &str) -> PortError {
        self.fail(format!(
            "the running IOKernel uses it with another {what}: take over with the same, or {STOP_FIRST}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_use_of_the_interface_is_named() {
        let (program, network) = (vec![1, 2], [0, 0]);
        let wanted =
            Handed { interface: 3, native: true, queues: 1, chunk: 2048, ring: RING, program, network };
        let port = |words: &str| XdpPort::new(words.parse().unwrap());
        let difference = |words, found: Handed| port(words).difference(&found, &wanted);
        assert_eq!(difference("a0", wanted.clone()), None);
        assert_eq!(difference("a0", Handed { native: false, ..wanted.clone() }), None);
        assert_eq!(difference("a0,mode=skb", wanted.clone()), Some("mode"));
        assert_eq!(difference("a0", Handed { queues: 2, ..wanted.clone() }), Some("number of queues"));
        let other = Handed { program: vec![1], ..wanted.clone() };
        assert_eq!(difference("a0", other), Some("share, range, gateway or network"));
        let other = Handed { network: [7, 0], ..wanted.clone() };
        assert_eq!(difference("a0", other), Some("share, range, gateway or network"));
        assert!(port("a0,zero-copy=off").permits(false) && !port("a0,zero-copy=off").permits(true));
        let why = port("a0").adopt(Vec::new(), &wanted).err().unwrap().to_string();
        assert!(why.contains("a0") && why.contains("without --takeover"), "{why}");
    }
}
