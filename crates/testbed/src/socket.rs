//! Where commands look for the IOKernel if they are not told.
//!
//! Owns the order: what the environment says, the socket of the system's service, the default of
//! `tailwater iokernel`. It connects to none of them.

use std::path::Path;

/// Names the control socket in the environment of programs and commands.
const VARIABLE: &str = "TAILWATER_IOKERNEL";

/// The control socket of the unit in the book.
const SYSTEM: &str = "/run/tailwater/socket";

/// The control socket of an IOKernel that is given none.
pub const DEFAULT: &str = "@tailwater";

/// Returns the control socket that is meant if none is named.
#[must_use]
pub fn found() -> String {
    first(std::env::var(VARIABLE).ok(), Path::new(SYSTEM))
}

fn first(named: Option<String>, system: &Path) -> String {
    let system = || system.exists().then(|| system.display().to_string());
    named.filter(|name| !name.is_empty()).or_else(system).unwrap_or_else(|| DEFAULT.to_owned())
}

/// Returns what to add to the error that no IOKernel is at `socket`: where else one may be.
#[must_use]
pub fn hint(socket: &str) -> Option<String> {
    (socket == found()).then(|| {
        format!("it is looked for at {VARIABLE}, {SYSTEM} and {DEFAULT}, in this order; --iokernel names another place")
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
    fn where_it_is_looked_for_is_said_unless_another_place_was_named() {
        let said = hint(&found()).unwrap();
        let places = [VARIABLE, SYSTEM, DEFAULT].map(|place| said.find(place));
        assert!(places[0].is_some() && places.is_sorted(), "{said}");
        assert_eq!(hint("@no-such-place"), None);
    }
}
