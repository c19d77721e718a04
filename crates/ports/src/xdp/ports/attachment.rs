//! The redirect program on an interface whose ports programs share with Linux.
//!
//! Owns its attachment, which outlives the process: it is in the [record](super::record) before it
//! is made, takes the place of that of an IOKernel which does not run any more, and is taken away
//! at the end, also that of a start which fails, unless the record has programs that wait for the
//! next IOKernel.

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use tailwater_bpf::sys::{Hook, program_number};

use super::record::{Ports, Record};
use super::steering::key;
use crate::xdp::linux::Linux;

/// See the module documentation. Taken away on drop.
#[derive(Debug)]
pub(in crate::xdp) struct Attachment {
    /// Name and number of the interface.
    pub(super) port: String,
    pub(super) index: u32,
    hook: Hook,
    /// Number of the attached program, and a descriptor of it.
    pub(super) program: u32,
    own: OwnedFd,
    pub(in crate::xdp) file: PathBuf,
    /// Another IOKernel, or another attachment, goes on with it; so it is with one that is taken
    /// over, until this one serves.
    left: bool,
}

/// Returns what an earlier IOKernel has left on an interface: where its program is attached, and
/// the ports of its programs; nothing if the record is not of what is attached.
fn left(port: &str, index: u32) -> io::Result<(Option<Hook>, Vec<Ports>)> {
    let there = Linux::new()?.attached_xdp(index)?;
    let record = Record::read(&Record::path(port)?);
    let is_known = record.knows(there.map_or(0, |(number, _)| number));
    Ok(if is_known { (there.map(|(_, hook)| hook), record.programs) } else { (None, Vec::new()) })
}

/// Returns whether the program that is attached to an interface, if there is one, is what an
/// earlier IOKernel has left.
///
/// # Errors
/// If Linux does not answer.
pub(in crate::xdp) fn is_left(port: &str, index: u32) -> io::Result<bool> {
    let Some((number, _)) = Linux::new()?.attached_xdp(index)? else { return Ok(true) };
    Ok(Record::read(&Record::path(port)?).knows(number))
}

/// Returns the keys of the ports of an interface that an earlier IOKernel has left closed to Linux.
///
/// # Errors
/// If Linux does not answer.
pub(in crate::xdp) fn recorded(port: &str, index: u32) -> io::Result<Vec<u32>> {
    let (_, programs) = left(port, index)?;
    Ok(programs.iter().flat_map(|ports| ports.listens.iter().map(key)).collect())
}

/// Returns where the program of an earlier IOKernel is attached, if programs' ports depend on it: a
/// program in its place there leaves no moment without one.
///
/// # Errors
/// If Linux does not answer.
pub(in crate::xdp) fn hook_in_use(port: &str, index: u32) -> io::Result<Option<Hook>> {
    let (hook, programs) = left(port, index)?;
    Ok(hook.filter(|_| !programs.is_empty()))
}

impl Attachment {
    /// Attaches a program to an interface until it is taken away, also if this process ends: in the
    /// place of that of an IOKernel of before, which does not run any more.
    ///
    /// # Errors
    /// Linux's; EBUSY if the attached program is another one's.
    pub(in crate::xdp) fn new(port: &str, index: u32, program: &OwnedFd, hook: Hook) -> io::Result<Self> {
        let (mut linux, file) = (Linux::new()?, Record::path(port)?);
        let mut there = linux.attached_xdp(index)?.map_or(0, |(number, _)| number);
        let mut before = Record::read(&file);
        if !before.knows(there) {
            if there != 0 {
                return Err(Errno::BUSY.into());
            }
            tracing::info!(
                port,
                programs = before.programs.len(),
                "the redirect program of an earlier IOKernel was taken away: its ports were opened to Linux, and are no program's until one asks for them"
            );
            before = Record::default();
        }
        let number = program_number(program)?;
        // One that cannot be written is complained of when programs get their ports.
        let note = |program, replaced| {
            let _ = Record { program, replaced: Some(replaced), ..before.clone() }.write(&file);
        };
        note(number, there);
        let attached = match linux.attach_xdp(index, program.as_fd(), hook, there != 0) {
            // One in the other mode is in the way.
            Err(error)
                if there != 0
                    && matches!(Errno::from_io_error(&error), Some(Errno::EXIST | Errno::INVAL)) =>
            {
                let other = if hook == Hook::Driver { Hook::Generic } else { Hook::Driver };
                // Until the new one is there, none is.
                note(there, 0);
                linux.detach_xdp(index, None, other)?;
                there = 0;
                note(number, 0);
                linux.attach_xdp(index, program.as_fd(), hook, false)
            }
            attached => attached,
        };
        if attached.is_err() && there == 0 && before.programs.is_empty() {
            // It is missing if it could not be written.
            let _ = std::fs::remove_file(&file);
        }
        attached?;
        let own = program.try_clone()?;
        Ok(Self { port: port.to_owned(), index, hook, program: number, own, file, left: false })
    }

    /// Returns that which is taken over from an IOKernel that still runs.
    ///
    /// # Errors
    /// Linux's.
    pub(in crate::xdp) fn taken_over(
        port: &str,
        index: u32,
        program: &OwnedFd,
        hook: Hook,
    ) -> io::Result<Self> {
        let (own, program, file) = (program.try_clone()?, program_number(program)?, Record::path(port)?);
        Ok(Self { port: port.to_owned(), index, hook, program, own, file, left: true })
    }

    /// Notes that this IOKernel serves: no other one goes on with it.
    pub(super) fn begin(&mut self) {
        self.left = false;
    }

    /// Leaves it to another IOKernel.
    pub(super) fn leave(&mut self) {
        self.left = true;
    }

    /// Returns whether it stays for programs that wait for the next IOKernel. Without a record that
    /// one would not know it.
    pub(super) fn stays(&self) -> bool {
        !self.left && self.record().is_some_and(|record| !record.programs.is_empty())
    }

    /// Returns the record, unless it is that of another IOKernel, which has started since.
    fn record(&self) -> Option<Record> {
        let record = Record::read(&self.file);
        (record.program == self.program).then_some(record)
    }

    /// Takes the program away, but no other one that is there instead.
    fn detach(&self) -> io::Result<()> {
        match Linux::new()?.detach_xdp(self.index, Some(self.own.as_fd()), self.hook) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Takes it away from an interface that the port lets go of; the record says so, and keeps the
    /// ports of programs for the next interface of this name.
    pub(super) fn let_go(&mut self) {
        if let Some(record) = self.record() {
            // One that cannot be written was complained of.
            let _ = Record { program: 0, replaced: Some(self.program), ..record }.write(&self.file);
        }
        // Fails if the interface is gone.
        let _ = self.detach();
        self.left = true;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let (port, record) = (&self.port, self.record());
        let programs = record.as_ref().map_or(0, |record| record.programs.len());
        let hook = self.hook.word();
        if programs > 0 {
            tracing::info!(
                port,
                programs,
                "the ports of these programs, which wait for the next IOKernel, stay closed to Linux; `ip link set {port} {hook} off` opens them"
            );
            return;
        }
        if let Err(error) = self.detach() {
            tracing::warn!(port, %error, "cannot take the redirect program away; `ip link set {port} {hook} off` does");
        }
        if record.is_some() {
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

#[cfg(test)]
pub(in crate::xdp) mod tests {
    use super::*;
    use crate::sys::interface::Interface;
    use crate::xdp::program::{KERNEL, redirect_all};
    use rustix::fd::AsRawFd;
    use std::net::Ipv4Addr;
    use tailwater_bpf::sys;
    use tailwater_testkit::namespace::Namespace;

    /// Removes a record, also if the test fails.
    pub(in crate::xdp::ports) struct Removed(pub(in crate::xdp::ports) PathBuf);

    impl Drop for Removed {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Returns two namespaces with `here0` and `there0`, where XDP works; `None`, with the reason
    /// printed, if there are none.
    pub(in crate::xdp) fn xdp_namespaces() -> Option<[Namespace; 2]> {
        crate::xdp::probe().inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
        Namespace::pair(["here0", "there0"], 1)
    }

    pub(in crate::xdp) fn program() -> OwnedFd {
        let map = sys::socket_map(1).unwrap();
        sys::load_xdp(&redirect_all(map.as_raw_fd(), KERNEL)).unwrap()
    }

    #[test]
    fn a_program_is_taken_away_unless_programs_wait_and_their_ports_go_with_it_if_it_is_by_hand() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let attach = || Attachment::new("here0", index, &program(), Hook::Driver).unwrap();
            let attached = || Linux::new().unwrap().attached_xdp(index).unwrap().map(|(number, _)| number);
            let _removed = Removed(Record::path("here0").unwrap());
            // As of a start that fails after it.
            let attachment = attach();
            let file = attachment.file.clone();
            assert_eq!(
                (attached(), Record::read(&file).program),
                (Some(attachment.program), attachment.program)
            );
            drop(attachment);
            assert_eq!((attached(), file.exists()), (None, false));
            // With a program that waits, also one of a start that fails.
            let ports = Ports {
                ip: Ipv4Addr::LOCALHOST,
                outgoing: (61_000, 61_099),
                listens: vec!["udp:7".parse().unwrap()],
            };
            let attachment = attach();
            let number = attachment.program;
            Record { program: number, replaced: None, programs: vec![ports.clone()] }.write(&file).unwrap();
            drop(attachment);
            assert_eq!(attached(), Some(number));
            let next = attach();
            assert_eq!(Record::read(&file).programs, std::slice::from_ref(&ports));
            assert!(attached() == Some(next.program) && recorded("here0", index).unwrap().len() == 1);
            // Taken away by hand.
            Record { program: next.program, replaced: None, programs: vec![ports.clone()] }
                .write(&file)
                .unwrap();
            drop(next);
            Linux::new().unwrap().detach_xdp(index, None, Hook::Driver).unwrap();
            assert!(recorded("here0", index).unwrap().is_empty());
            let mut next = attach();
            assert!(Record::read(&file).programs.is_empty());
            // Let go of: the ports are kept for another interface of the name.
            Record { program: next.program, replaced: None, programs: vec![ports.clone()] }
                .write(&file)
                .unwrap();
            next.let_go();
            drop(next);
            assert_eq!((attached(), recorded("here0", index).unwrap().len()), (None, 1));
        });
    }

    #[test]
    fn the_program_and_the_record_of_another_are_left_alone() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let attached = || Linux::new().unwrap().attached_xdp(index).unwrap().map(|(number, _)| number);
            let first = Attachment::new("here0", index, &program(), Hook::Driver).unwrap();
            let file = first.file.clone();
            let _removed = Removed(file.clone());
            // An IOKernel that has started since.
            let mut second = Attachment::new("here0", index, &program(), Hook::Driver).unwrap();
            drop(first);
            assert_eq!((attached(), file.exists()), (Some(second.program), true));
            // An administrator's in its place.
            let theirs = program();
            let mut linux = Linux::new().unwrap();
            linux.attach_xdp(index, theirs.as_fd(), Hook::Driver, true).unwrap();
            second.let_go();
            assert_eq!(attached(), Some(program_number(&theirs).unwrap()));
        });
    }

    #[test]
    fn programs_keep_their_ports_over_a_driver_that_runs_no_programs_and_over_another_mode() {
        let Some([here, _there]) = xdp_namespaces() else { return };
        let ports = Ports {
            ip: Ipv4Addr::LOCALHOST,
            outgoing: (61_000, 61_099),
            listens: vec!["udp:7".parse().unwrap()],
        };
        here.inside(|| {
            for (name, first, then) in
                // The loopback interface has the generic hook alone.
                [("lo", Hook::Generic, Hook::Driver), ("here0", Hook::Driver, Hook::Generic)]
            {
                let index = Interface::new(name).unwrap().index().unwrap();
                let attached = Attachment::new(name, index, &program(), first).unwrap();
                let (number, file) = (attached.program, attached.file.clone());
                let _removed = Removed(file.clone());
                assert_eq!(hook_in_use(name, index).unwrap(), None);
                Record { program: number, replaced: None, programs: vec![ports.clone()] }
                    .write(&file)
                    .unwrap();
                // As if it were killed: it stays.
                drop(attached);
                assert_eq!(hook_in_use(name, index).unwrap(), Some(first));
                let next = Attachment::new(name, index, &program(), then);
                assert_eq!(next.is_ok(), name == "here0", "{next:?}");
                assert_eq!(recorded(name, index).unwrap().len(), 1);
                drop(next);
                drop(Attachment::new(name, index, &program(), first).unwrap());
                assert_eq!(recorded(name, index).unwrap().len(), 1);
            }
        });
    }
}
