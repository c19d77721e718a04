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

use super::record::Record;
use super::steering::key;
use crate::port::xdp::linux::Linux;

/// See the module documentation. Taken away on drop.
#[derive(Debug)]
pub(in crate::port::xdp) struct Attachment {
    /// Name and number of the interface.
    pub(super) port: String,
    pub(super) index: u32,
    hook: Hook,
    /// Number of the attached program.
    pub(super) program: u32,
    pub(super) file: PathBuf,
    /// Another IOKernel, or another attachment, goes on with it; so it is with one that is taken
    /// over, until this one serves.
    left: bool,
}

/// Returns the keys of the ports of an interface that an earlier IOKernel has left closed to Linux.
///
/// # Errors
/// If Linux does not answer.
pub(in crate::port::xdp) fn recorded(port: &str, index: u32) -> io::Result<Vec<u32>> {
    let there = Linux::new()?.attached_xdp(index)?.unwrap_or(0);
    let record = Record::read(&Record::path(port)?);
    let programs = if record.knows(there) { record.programs } else { Vec::new() };
    Ok(programs.iter().flat_map(|ports| ports.listens.iter().map(key)).collect())
}

impl Attachment {
    /// Attaches a program to an interface until it is taken away, also if this process ends: in the
    /// place of that of an IOKernel of before, which does not run any more.
    ///
    /// # Errors
    /// Linux's; EBUSY if the attached program is another one's.
    pub(in crate::port::xdp) fn new(
        port: &str,
        index: u32,
        program: &OwnedFd,
        hook: Hook,
    ) -> io::Result<Self> {
        let (mut linux, file) = (Linux::new()?, Record::path(port)?);
        let there = linux.attached_xdp(index)?.unwrap_or(0);
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
        let _ = Record { program: number, replaced: Some(there), ..before.clone() }.write(&file);
        let attached = match linux.attach_xdp(index, program.as_fd(), hook, there != 0) {
            // One in the other mode is in the way.
            Err(error)
                if there != 0
                    && matches!(Errno::from_io_error(&error), Some(Errno::EXIST | Errno::INVAL)) =>
            {
                let other = if hook == Hook::Driver { Hook::Generic } else { Hook::Driver };
                linux.detach_xdp(index, other)?;
                linux.attach_xdp(index, program.as_fd(), hook, false)
            }
            attached => attached,
        };
        if attached.is_err() && there == 0 && before == Record::default() {
            // It is missing if it could not be written.
            let _ = std::fs::remove_file(&file);
        }
        attached?;
        Ok(Self { port: port.to_owned(), index, hook, program: number, file, left: false })
    }

    /// Returns that which is taken over from an IOKernel that still runs.
    ///
    /// # Errors
    /// Linux's.
    pub(in crate::port::xdp) fn taken_over(
        port: &str,
        index: u32,
        program: &OwnedFd,
        hook: Hook,
    ) -> io::Result<Self> {
        let (program, file) = (program_number(program)?, Record::path(port)?);
        Ok(Self { port: port.to_owned(), index, hook, program, file, left: true })
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
        !self.left && !Record::read(&self.file).programs.is_empty()
    }

    /// Takes it away from an interface that the port lets go of; the record says so, and keeps the
    /// ports of programs for the next interface of this name.
    pub(super) fn let_go(&mut self) {
        let record = Record::read(&self.file);
        let let_go = Record { program: 0, replaced: Some(self.program), ..record };
        // One that cannot be written was complained of.
        let _ = let_go.write(&self.file);
        // Fails if the interface is gone.
        let _ = Linux::new().and_then(|mut linux| linux.detach_xdp(self.index, self.hook));
        self.left = true;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let (port, programs) = (&self.port, Record::read(&self.file).programs.len());
        let hook = match self.hook {
            Hook::Driver => "xdp",
            Hook::Generic => "xdpgeneric",
        };
        if programs > 0 {
            tracing::info!(
                port,
                programs,
                "the ports of these programs, which wait for the next IOKernel, stay closed to Linux; `ip link set {port} {hook} off` opens them"
            );
            return;
        }
        if let Err(error) = Linux::new().and_then(|mut linux| linux.detach_xdp(self.index, self.hook)) {
            tracing::warn!(port, %error, "cannot take the redirect program away; `ip link set {port} {hook} off` does");
        }
        // It is missing if it could not be written.
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::xdp::ports::record::Ports;
    use crate::port::xdp::program::{KERNEL, redirect_all};
    use crate::sys::interface::Interface;
    use rustix::fd::AsRawFd;
    use std::net::Ipv4Addr;
    use tailwater_bpf::sys;
    use tailwater_testkit::namespace::Namespace;

    fn program() -> OwnedFd {
        let map = sys::socket_map(1).unwrap();
        sys::load_xdp(&redirect_all(map.as_raw_fd(), KERNEL)).unwrap()
    }

    #[test]
    fn a_program_is_taken_away_unless_programs_wait_and_their_ports_go_with_it_if_it_is_by_hand() {
        let Some([here, _there]) = Namespace::pair(["here0", "there0"], 1) else { return };
        if let Err(why) = crate::port::xdp::probe() {
            return eprintln!("skipped: {why}");
        }
        here.inside(|| {
            let index = Interface::new("here0").unwrap().index().unwrap();
            let attach = || Attachment::new("here0", index, &program(), Hook::Driver).unwrap();
            let attached = || Linux::new().unwrap().attached_xdp(index).unwrap();
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
            Linux::new().unwrap().detach_xdp(index, Hook::Driver).unwrap();
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
            std::fs::remove_file(&file).unwrap();
        });
    }
}
