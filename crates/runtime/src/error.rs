//! Why a runtime did not start.

use crate::ground::memory::StackError;
use crate::ground::tls::TlsError;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;

/// Why a runtime did not start.
///
/// # Examples
/// ```standalone_crate
/// // This program has the system's allocator.
/// let error = tailwater::RuntimeBuilder::new().run(|| ()).unwrap_err();
/// assert!(matches!(error, tailwater::StartError::NoAllocatorGuard));
/// assert!(error.to_string().contains("#[tailwater::main]"), "it says what to do");
/// assert!(format!("{error:?}").contains("#[tailwater::main]"), "under `unwrap`, too");
/// ```
///
/// Its text has all causes, since some programs print no cause of their own. It has no source: what
/// prints sources, as `anyhow` does, would print them again.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is invalid.
    #[error("configuration: {0}")]
    Config(ConfigError),
    /// The program has another global allocator.
    #[error(
        "the program's global allocator is not Tailwater's: use #[tailwater::main], or add the line\n    \
         tailwater::allocator!();"
    )]
    NoAllocatorGuard,
    /// The process has a runtime already.
    #[error("this process runs a Tailwater runtime already; there can be one")]
    AlreadyRunning,
    /// The C library is not suitable.
    #[error("{0}")]
    Tls(TlsError),
    /// Waits in the C library cannot be taken over.
    #[cfg(feature = "libc-waits")]
    #[error("cannot adopt the waits of the C library: {0}")]
    LibcWaits(tailwater_libc_waits::RedirectError),
    /// There is no memory for the first user thread's stack.
    #[error("{0}")]
    Stack(StackError),
    /// The IOKernel refused, or cannot be reached.
    #[error("cannot attach to the IOKernel: {0}")]
    Attach(AttachError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The kernel's error.
        r#source: io::Error,
    },
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<TlsError> for StartError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

#[cfg(feature = "libc-waits")]
impl From<tailwater_libc_waits::RedirectError> for StartError {
    fn from(error: tailwater_libc_waits::RedirectError) -> Self {
        Self::LibcWaits(error)
    }
}

impl From<StackError> for StartError {
    fn from(error: StackError) -> Self {
        Self::Stack(error)
    }
}

impl From<AttachError> for StartError {
    fn from(error: AttachError) -> Self {
        Self::Attach(error)
    }
}

/// As [`Display`](fmt::Display): `unwrap` and a `main` that returns the error print this form, and
/// it has to say what to do.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StartError: {self}")
    }
}

/// Why a configuration cannot be used.
///
/// # Examples
/// ```standalone_crate
/// # tailwater::allocator!();
/// use tailwater::{RuntimeBuilder, ConfigError, StartError};
///
/// let error = RuntimeBuilder::new().kthreads(0).run(|| ()).unwrap_err();
/// let StartError::Config(ConfigError::OutOfRange { setting, min, .. }) = error else {
///     panic!("{error}")
/// };
/// assert_eq!((setting, min), ("kthreads", 1));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The environment has a variable whose name is close to that of a setting.
    #[error("{name} is not a variable: did you mean {meant}?")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The setting's variable.
        meant: String,
    },
    /// The value of a variable is invalid.
    #[error("{name}={}: {source}", value.display())]
    InvalidVariable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: OsString,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A number is out of its range.
    #[error("{setting} {value} is out of range: {min} to {max}{}", option(setting))]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The smallest possible value.
        min: u64,
        /// The largest possible value.
        max: u64,
    },
    /// A setting has a value that it cannot have, alone or beside another one.
    #[error("{why}{}", option(setting))]
    Impossible {
        /// The setting.
        setting: &'static str,
        /// Its value, and what is possible.
        why: String,
    },
    /// A program without a name of its own was to replace a running instance.
    #[error(
        "replace is set and name is not: a program replaces the instance that has its name, and the default is of this \
         process alone; set name (TAILWATER_NAME, --name)"
    )]
    ReplacesNone,
    /// The file that `TAILWATER_CONFIG` names cannot be read.
    #[error("cannot read {path}, named by TAILWATER_CONFIG: {source}")]
    UnreadableFile {
        /// The file.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file has an unknown setting, or is malformed.
    #[error("{path}: {source}")]
    InvalidFile {
        /// The file.
        path: String,
        /// The error, with its place.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A variable is for a part of the runtime that the program was built without.
    #[error("{variable} is set, and this program was built without the feature `{feature}` of tailwater")]
    MissingFeature {
        /// The variable.
        variable: &'static str,
        /// The feature of the crate.
        feature: &'static str,
    },
    /// Waits in the C library were to be taken over for threads that share thread-local storage.
    #[cfg(feature = "libc-waits")]
    #[error(
        "adopt_libc_waits and shared_tls exclude each other: the C library knows the owner of a lock by its \
         thread-local storage"
    )]
    SharedTls,
    /// The network stack refuses the settings.
    #[error("network: {source}")]
    Network {
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Returns how an operator sets a setting, in brackets; nothing for one that has no such name.
fn option(setting: &str) -> String {
    if setting.contains(' ') {
        return String::new();
    }
    let option = setting.trim_end_matches("_ms").replace('_', "-");
    format!(" (TAILWATER_{}, or --{option} of `tailwater run`)", setting.to_ascii_uppercase())
}

/// Why a runtime could not attach to an IOKernel.
///
/// # Examples
/// ```standalone_crate
/// # tailwater::allocator!();
/// use tailwater::{AttachError, RuntimeBuilder, StartError};
///
/// let error = RuntimeBuilder::new().iokernel("@no-iokernel-listens-here").run(|| ()).unwrap_err();
/// assert!(matches!(error, StartError::Attach(AttachError::Socket { action: "connect", .. })));
/// assert!(error.to_string().contains("start one with `tailwater iokernel --socket @no-"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// A system call failed, most often because no IOKernel listens at the control socket.
    #[error("control socket {socket}: cannot {action}: {source}{hint}")]
    Socket {
        /// The control socket.
        socket: String,
        /// What was attempted.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
        /// What to do; empty, or with a leading "; ".
        hint: String,
    },
    /// The IOKernel is of another user, who is neither root nor named in the address.
    #[error(
        "{socket}: user {theirs} listens there, neither root nor this program's user {ours}; if that IOKernel is \
         meant, add ,user={theirs} to its address"
    )]
    OtherUser {
        /// The control socket.
        socket: String,
        /// User of the IOKernel.
        theirs: u32,
        /// User of this program.
        ours: u32,
    },
    /// The IOKernel refused the registration.
    #[error("{socket}: {why}")]
    Refused {
        /// The control socket.
        socket: String,
        /// The IOKernel's reason.
        why: String,
    },
    /// The cpuset of this process has none of the cores that the IOKernel lends.
    #[error(
        "{socket}: that IOKernel lends core {cores}, and Linux lets this process use none of them, so it would never \
         run; give its control group one of them (cpuset.cpus, AllowedCPUs), or have others lent (managed-cores)"
    )]
    NoCore {
        /// The control socket.
        socket: String,
        /// The cores that the IOKernel lends.
        cores: String,
    },
    /// The IOKernel did not answer.
    #[error("{socket}: no answer in time")]
    NoAnswer {
        /// The control socket.
        socket: String,
    },
    /// The IOKernel ended.
    #[error("{socket}: the connection was closed by the other side")]
    Closed {
        /// The control socket.
        socket: String,
    },
    /// The IOKernel is of another version, or no IOKernel.
    #[error("{socket}: {what}")]
    Protocol {
        /// The control socket.
        socket: String,
        /// The violation of the protocol.
        what: String,
    },
    /// The shared memory cannot be used.
    #[error("{socket}: {source}")]
    Memory {
        /// The control socket.
        socket: String,
        /// The error.
        source: Box<dyn Error + Send + Sync>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_fails_names_each_cause_once_whoever_prints_it() {
        let refused = || io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let attach = AttachError::Closed { socket: "@here".to_owned() };
        let unreadable = ConfigError::UnreadableFile { path: "a.toml".to_owned(), source: refused() };
        let failed = StartError::System { action: "start", source: refused() };
        for (error, cause) in [
            (StartError::from(attach), "closed by the other side"),
            (StartError::from(unreadable), "refused"),
            (failed, "refused"),
        ] {
            let mut printed = error.to_string();
            let mut next = error.source();
            while let Some(source) = next {
                printed += &source.to_string();
                next = source.source();
            }
            assert_eq!(printed.matches(cause).count(), 1, "{printed}");
        }
    }
}
