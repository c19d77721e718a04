//! What a driver can do, which Linux says by generic netlink
//! (Documentation/netlink/specs/netdev.yaml).
//!
//! Owns the messages. Answers come from the kernel; their lengths are checked all the same, and
//! what does not fit is as if it were absent. The question needs no right.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// Bytes of a `struct nlmsghdr`, `struct genlmsghdr`.
const MESSAGE: usize = 16;
const GENERIC_HEADER: usize = 4;
/// Maximum length of an answer: that about a family lists its commands.
const ANSWER: usize = 64 << 10;

const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// The bits of an attribute's type that are flags.
const TYPE_FLAGS: u16 = 0xc000;

/// Features of a driver (enum netdev_xdp_act).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Returns features from the kernel's bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns whether programs run in the driver and may redirect frames there.
    pub fn runs_native(self) -> bool {
        self.0 & 3 == 3
    }

    /// Returns whether the driver writes into an AF_XDP socket's memory.
    pub fn has_zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// Returns what the driver of an interface can do.
///
/// # Errors
/// The kernel's; [`Errno::NOENT`] before Linux 6.3.
pub(super) fn features(index: u32) -> Result<Features, Errno> {
    let name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let answer = ask(GENL_ID_CTRL, &generic(CTRL_CMD_GETFAMILY, &name))?;
    let family = find(answer.get(GENERIC_HEADER..).unwrap_or_default(), CTRL_ATTR_FAMILY_ID);
    let family =
        family.and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?))).ok_or(Errno::NOENT)?;
    let index = attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let answer = ask(family, &generic(NETDEV_CMD_DEV_GET, &index))?;
    let bits = find(answer.get(GENERIC_HEADER..).unwrap_or_default(), NETDEV_A_DEV_XDP_FEATURES);
    let bits = bits.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
    bits.map(Features).ok_or(Errno::NOENT)
}

fn generic(command: u8, attributes: &[u8]) -> Vec<u8> {
    [&[command, 1, 0, 0], attributes].concat()
}

/// Returns an attribute, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = (4 + value.len()) as u16;
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the value of the first attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    // Bounded: each round takes at least four bytes.
    while let [a, b, c, d, ..] = *attributes {
        let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let value = attributes.get(4..len)?;
        if kind & !TYPE_FLAGS == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

/// Sends a request and returns what follows the header of its answer.
fn ask(kind: u16, body: &[u8]) -> Result<Vec<u8>, Errno> {
    let socket = open()?;
    let len = (MESSAGE + body.len()) as u32;
    let head = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &NLM_F_REQUEST.to_ne_bytes(), &[0; 8]];
    send(&socket, &[&head.concat(), body].concat(), SendFlags::empty())?;
    let mut buffer = vec![0; ANSWER];
    let (len, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    read_answer(buffer.get(..len).unwrap_or_default()).map(<[u8]>::to_vec)
}

fn read_answer(bytes: &[u8]) -> Result<&[u8], Errno> {
    let (header, _) = bytes.split_first_chunk::<MESSAGE>().ok_or(Errno::PROTO)?;
    let [a, b, c, d, e, f, ..] = *header;
    let len = u32::from_ne_bytes([a, b, c, d]) as usize;
    let body = bytes.get(MESSAGE..len).ok_or(Errno::PROTO)?;
    if u16::from_ne_bytes([e, f]) != NLMSG_ERROR {
        return Ok(body);
    }
    let error = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code).wrapping_neg());
    Err(if error > 0 { Errno::from_raw_os_error(error) } else { Errno::PROTO })
}

fn open() -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(GENERIC))?;
    connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_is_what_follows_its_header_or_the_error_in_it() {
        let message = |kind: u16, body: &[u8]| {
            let len = (MESSAGE + body.len()) as u32;
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
        };
        assert_eq!(read_answer(&message(16, b"body")), Ok(&b"body"[..]));
        assert_eq!(read_answer(&message(NLMSG_ERROR, &(-2i32).to_ne_bytes())), Err(Errno::NOENT));
        assert_eq!(read_answer(&message(NLMSG_ERROR, &[])), Err(Errno::PROTO));
        assert_eq!(read_answer(&message(16, b"body")[..18]), Err(Errno::PROTO));
    }

    #[test]
    fn features_are_bits() {
        assert!(Features::from_bits(0b1011).runs_native() && Features::from_bits(0b1011).has_zero_copy());
        assert!(!Features::from_bits(1).runs_native() && !Features::from_bits(7).has_zero_copy());
    }

    #[test]
    fn linux_answers_for_the_loopback_interface() {
        // Absent before Linux 6.3; a sandbox may refuse the kind of socket.
        if let Err(error) = features(1) {
            eprintln!("skipped: Linux does not answer what the driver can do: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), kind: u16) {
            let _ = (read_answer(&bytes), find(&bytes, kind).map(<[u8]>::len));
        }
    }
}
