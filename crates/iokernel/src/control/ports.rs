//! Ports of programs that share the addresses of Linux.
//!
//! Owns who may have which: as on Linux, the first ports are root's. Which ports are free is known
//! where they are held, at the [port](tailwater_ports::Port) that shares the addresses.

use std::fs;
use tailwater_ports::PortInterface;
use tailwater_shm::Version;
use tailwater_shm::control::{Listen, MAX_LISTEN, Register};

use super::Control;
use super::directory::{Assignment, Refusal};
use crate::authority::User;

/// First minor version of the protocol whose programs keep to a range of ports.
const PORTS_MINOR: u16 = 4;
/// First port that is every user's, unless set otherwise (ip-sysctl, `ip_unprivileged_port_start`).
const FIRST_UNPRIVILEGED: u16 = 1_024;
const FIRST_SETTING: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

impl Control {
    /// Gives a program its ports; returns those for its own connections, or `None` if all ports are
    /// each program's own.
    pub(super) fn claim_ports(
        &mut self,
        user: &User,
        request: &Register,
        place: &Assignment,
    ) -> Result<Option<(u16, u16)>, Refusal> {
        if request.listen.len() > MAX_LISTEN {
            let why =
                format!("{} ports to listen at are too many; {MAX_LISTEN} are allowed", request.listen.len());
            return Err(Refusal::Ports(why));
        }
        if self.parts.interfaces.iter().any(PortInterface::shares_ports) {
            check_privilege(user, &request.listen)?;
            if Version(request.version).minor() < PORTS_MINOR {
                return Err(Refusal::Ports(
                    "programs share the addresses of Linux here, which this one was built too early for; build it anew".to_owned(),
                ));
            }
        }
        let mut outgoing = None;
        for interface in &mut self.parts.interfaces {
            let claimed =
                interface.claim(place.id, (place.ip, place.ip6), &request.listen).map_err(Refusal::Ports)?;
            outgoing = outgoing.or(claimed);
        }
        Ok(outgoing)
    }
}

/// Checks that a user may listen at these ports.
fn check_privilege(user: &User, listens: &[Listen]) -> Result<(), Refusal> {
    if user.privileged {
        return Ok(());
    }
    let setting = fs::read_to_string(FIRST_SETTING);
    let first = setting.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(FIRST_UNPRIVILEGED);
    match listens.iter().find(|listen| listen.port < first) {
        Some(listen) => Err(Refusal::Ports(format!(
            "user {} may not listen at {listen}: ports below {first} are root's (net.ipv4.ip_unprivileged_port_start)",
            user.uid
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_testkit::namespace::in_namespace;

    #[test]
    fn the_first_ports_are_roots_as_far_as_linux_says() {
        let may = |privileged, port: u16| {
            let user = User { uid: 1_000, owner: 1_000, groups: Vec::new(), privileged };
            check_privilege(&user, &[format!("tcp:{port}").parse().unwrap()]).is_ok()
        };
        in_namespace(|| {
            assert!(!may(false, 1_023) && may(false, 1_024) && may(true, 1));
            fs::write(FIRST_SETTING, "80").unwrap();
            assert!(!may(false, 79) && may(false, 80));
            fs::write(FIRST_SETTING, "0").unwrap();
            assert!(may(false, 1));
        });
    }
}
