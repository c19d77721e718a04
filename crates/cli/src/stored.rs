//! Devices of ports that the service manager keeps while no IOKernel runs (`FDSTORE` of
//! sd_notify(3)).
//!
//! Owns their names in the manager's store, and that the next process goes on with them: a TAP
//! device then lasts over a crash, with its addresses, the routes to it, the neighbours that Linux
//! knows behind it and the frames that it holds. What the next process cannot use is removed from
//! the store, and made anew. Without a manager that keeps descriptors nothing is stored.
//!
//! AF_XDP sockets are never stored: a port makes others when its interface goes away and comes
//! back, and Linux before 6.4 lets no other process go on with them.

use std::collections::BTreeMap;

use rustix::fd::{AsFd, OwnedFd};
use tailwater_iokernel::{IoKernel, passed_descriptors};
use tailwater_ports::Port;

use crate::notify::Notifier;

/// What the manager has passed to this process.
#[derive(Debug, Default)]
pub struct Stored {
    /// By port, its descriptors in their order.
    devices: BTreeMap<String, BTreeMap<usize, OwnedFd>>,
    /// Names of those of no port.
    others: Vec<String>,
}

impl Stored {
    /// Takes what the manager has passed.
    pub fn take() -> Self {
        Self::of(passed_descriptors())
    }

    fn of(passed: Vec<(String, OwnedFd)>) -> Self {
        let mut stored = Self::default();
        for (name, descriptor) in passed {
            match parse(&name) {
                Some((port, place)) => {
                    stored.devices.entry(port.to_owned()).or_default().insert(place, descriptor);
                }
                None => stored.others.push(name),
            }
        }
        stored
    }

    /// Passes the devices to the ports of the same names whose devices last; returns the names of
    /// those that are in use. The manager forgets all others before this returns, so that they are
    /// gone and may be made anew.
    pub fn pass(self, ports: &mut [Box<dyn Port>], notifier: &Notifier) -> Vec<String> {
        let Self { devices, others: mut unused } = self;
        let mut used = Vec::new();
        for (name, devices) in devices {
            let names: Vec<String> = devices.keys().map(|place| name_of(&name, *place)).collect();
            let port = ports.iter_mut().find(|port| port.name() == name && port.devices_last());
            let inherited = port.map(|port| port.inherit(devices.into_values().collect()));
            match inherited {
                Some(Ok(())) => {
                    tracing::info!(port = name, "goes on with the device that the service manager has kept");
                    used.extend(names);
                }
                Some(Err(_)) => {
                    tracing::warn!(
                        port = name,
                        "the device that the service manager has kept is gone, or has other options: makes it anew"
                    );
                    unused.extend(names);
                }
                None => unused.extend(names),
            }
        }
        if !unused.is_empty() {
            notifier.forget(&unused);
        }
        used
    }
}

/// Has the manager keep the devices of an IOKernel, and forget those that it has not taken over
/// from the one before.
pub fn store(iokernel: &IoKernel, notifier: &Notifier) {
    let left = names_of(iokernel.left_devices());
    if !left.is_empty() {
        notifier.forget(&left);
    }
    for (port, devices) in iokernel.lasting_devices() {
        for (place, device) in devices.iter().enumerate() {
            let name = name_of(port, place);
            // Others are no names for a manager (sd_pid_notify_with_fds(3)).
            if name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':') {
                notifier.store(&name, device.as_fd());
            }
        }
    }
}

/// Returns the names of the descriptors of these ports, each with their number.
fn names_of(ports: &[(String, usize)]) -> Vec<String> {
    ports.iter().flat_map(|(port, count)| (0..*count).map(move |place| name_of(port, place))).collect()
}

fn name_of(port: &str, place: usize) -> String {
    format!("{port}.{place}")
}

fn parse(name: &str) -> Option<(&str, usize)> {
    let (port, place) = name.rsplit_once('.')?;
    Some((port, place.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::tests::manager;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::fs::File;
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use tailwater_ports::Attachment;
    use tailwater_ports::memory::pair;
    use tailwater_ports::options::PortOptions;

    fn file() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn descriptors_are_told_apart_by_port_and_keep_their_order() {
        let names = ["eth0.100.1", "eth0.100.0", "connection", "tw0.0", "tw0.x"];
        let stored = Stored::of(names.map(|name| (name.to_owned(), file())).into());
        let places = |port: &str| stored.devices[port].keys().copied().collect::<Vec<_>>();
        assert_eq!((places("eth0.100"), places("tw0")), (vec![0, 1], vec![0]));
        assert_eq!(stored.others, ["connection", "tw0.x"]);
        let left = [("tw0".to_owned(), 2), ("eth0.100".to_owned(), 1), ("none".to_owned(), 0)];
        assert_eq!(names_of(&left), ["tw0.0", "tw0.1", "eth0.100.0"]);
    }

    #[test]
    fn what_no_port_can_use_is_forgotten_and_the_start_goes_on() {
        let (manager, notifier) = manager("stored");
        // A port in memory has no device that lasts.
        let uplink = Attachment::Uplink { gateway: None };
        let mut ports: Vec<Box<dyn Port>> = vec![Box::new(pair("memory", uplink).unwrap().0)];
        // Nor has an interface through AF_XDP.
        let options = PortOptions { xdp: Some("eth9".to_owned()), ..PortOptions::default() };
        ports.extend(options.build().unwrap());
        let names = ["memory.0", "eth9.0", "tw9.0", "other"];
        let stored = Stored::of(names.map(|name| (name.to_owned(), file())).into());
        let heard = std::thread::scope(|scope| {
            let hears = scope.spawn(|| {
                let (mut heard, mut buffer) = (Vec::new(), [0; 256]);
                while heard.last().is_none_or(|last| last != "BARRIER=1") {
                    let len = manager.recv(&mut buffer).unwrap();
                    heard.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
                }
                heard
            });
            assert_eq!(stored.pass(&mut ports, &notifier), [""; 0]);
            hears.join().unwrap()
        });
        for name in names {
            let wanted = format!("FDSTOREREMOVE=1\nFDNAME={name}");
            assert!(heard.contains(&wanted), "{wanted:?} is missing: {heard:?}");
        }
    }

    #[test]
    fn a_stored_device_comes_with_its_name() {
        let (manager, notifier) = manager("kept");
        notifier.store("tw0.0", file().as_fd());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let (mut control, mut text) = (RecvAncillaryBuffer::new(&mut space), [0; 256]);
        let received =
            recvmsg(&manager, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::empty()).unwrap();
        assert_eq!(&text[..received.bytes], b"FDSTORE=1\nFDNAME=tw0.0");
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights.count()),
            _ => None,
        });
        assert_eq!(rights, Some(1));
    }
}
