//! The limit of descriptors of this process, of which each socket of the kernel takes one.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard one. The soft one is low for the sake of
/// programs that use select(2), which the generators do not.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, the sockets within the present limit can still be opened.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Adds the remedy to the error of a socket that could not be opened for want of descriptors.
pub(crate) fn explain(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(Errno::MFILE.raw_os_error()) {
        return error;
    }
    let limit = getrlimit(Resource::Nofile).current.map_or("no number".to_owned(), |limit| limit.to_string());
    io::Error::other(format!(
        "{error}: this process may have {limit}, and each connection takes one; raise the limit with `ulimit -n` as \
         root, or LimitNOFILE= of systemd, or ask for fewer connections"
    ))
}
