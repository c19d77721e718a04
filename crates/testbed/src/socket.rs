//! Where commands look for the IOKernel: their option, and what it is if it is not given.
//!
//! Owns the order: what the environment says, the socket of the system's service, the default of
//! `tailwater iokernel`. It connects to none of them.

use std::ops::Deref;
use std::path::Path;

use clap::Args;
use tailwater_shm::control::{ControlError, check_address};

/// Names the control socket in the environment of programs and commands.
const VARIABLE: &str = "TAILWATER_IOKERNEL";

/// The control socket of the unit in the book.
const SYSTEM: &str = "/run/tailwater/socket";

/// The control socket of an IOKernel that is given none.
pub const DEFAULT: &str = "@tailwater";

/// What [`found`] returns, for a help text.
pub const FOUND: &str =
    "TAILWATER_IOKERNEL; if that is not set, /run/tailwater/socket if it exists, else @tailwater";

/// The option of all commands that speak to an IOKernel.
#[derive(Debug, Clone, Args)]
pub struct IokernelArg {
    /// The address.
    #[arg(
        long,
        value_name = "SOCKET",
        default_value_t = found(),
        hide_default_value = true,
        value_parser = parse,
        help = format!("Control socket of the IOKernel; @NAME is an abstract address, and ,user=UID after it trusts an IOKernel of that user [default: {FOUND}]")
    )]
    pub iokernel: String,
}

impl Deref for IokernelArg {
    type Target = String;

    fn deref(&self) -> &String {
        &self.iokernel
    }
}

/// Returns the address of a control socket as it was given.
///
/// # Errors
/// If no socket can have this address, such as an empty one.
pub fn parse(text: &str) -> Result<String, ControlError> {
    check_address(text).map(|()| text.to_owned())
}

/// Returns the control socket that is meant if none is named.
#[must_use]
pub fn found() -> String {
    first(std::env::var(VARIABLE).ok(), Path::new(SYSTEM))
}

fn first(named: Option<String>, system: &Path) -> String {
    let system = || system.exists().then(|| system.display().to_string());
    named.filter(|name| !name.is_empty()).or_else(system).unwrap_or_else(|| DEFAULT.to_owned())
}

/// Returns what to add to the error that no IOKernel is at `socket`: why it was looked for there,
/// and where else one may be.
#[must_use]
pub fn hint(socket: &str) -> Option<String> {
    (socket == found()).then(|| {
        let is_named = std::env::var(VARIABLE).is_ok_and(|name| !name.is_empty());
        let why = match socket {
            _ if is_named => format!("{VARIABLE} names this socket"),
            SYSTEM => format!("{VARIABLE} is not set, and {SYSTEM} exists"),
            _ => format!("{VARIABLE} is not set, and there is no {SYSTEM}"),
        };
        format!("{why}; --iokernel names another one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_before_the_systems_socket_and_that_before_the_default() {
        let (there, absent) = (Path::new("/proc/self"), Path::new("/proc/self/no-such-socket"));
        assert_eq!(first(Some("@mine".to_owned()), there), "@mine");
        assert_eq!(first(Some(String::new()), there), there.display().to_string());
        assert_eq!(first(None, there), there.display().to_string());
        assert_eq!(first(None, absent), DEFAULT);
    }

    #[test]
    fn why_it_is_looked_for_there_is_said_unless_another_place_was_named() {
        let said = hint(&found()).unwrap();
        assert!(said.contains(VARIABLE) && said.contains("--iokernel"), "{said}");
        assert_eq!(hint("@no-such-place"), None);
    }

    #[test]
    fn an_address_that_no_socket_can_have_is_refused_with_what_to_write() {
        let long = format!("/{}", "x".repeat(108));
        for (address, part) in [("", "@NAME"), ("@", "@NAME"), (&long, "108"), ("@a,user=foo", "number")] {
            let why = parse(address).unwrap_err().to_string();
            assert!(why.contains(part), "{address}: {why}");
        }
        for address in ["@a", "/run/s", "@a,user=0", &long[1..]] {
            assert_eq!(parse(address).unwrap(), address);
        }
    }
}
