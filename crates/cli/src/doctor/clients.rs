//! Ordinary programs that talk to services of this machine from a managed core.

use std::process;

use tailwater_iokernel::Config;
use tailwater_testbed::machine::core_list;

use super::part::{Part, Status};
use crate::query;
use crate::run::client::{connected, cores_of};

/// Clients that a line names at most.
const MOST: usize = 5;

/// Looks for them, if an IOKernel answers at `socket`.
pub fn examine(socket: &str, config: &Config) -> Option<Part> {
    let (_, lent) = cores_of(&query::statistics(socket).ok()?).ok()?;
    let mut clients = connected::on(config, &lent);
    clients.retain(|client| client.pid.cast_unsigned() != process::id());
    let (status, found) = judge(&clients);
    Some(Part { name: "clients", status, found })
}

fn judge(clients: &[connected::Client]) -> (Status, String) {
    if clients.is_empty() {
        return (Status::Ok, "no ordinary program is connected to a service from a managed core".to_owned());
    }
    let named: Vec<String> = clients
        .iter()
        .take(MOST)
        .map(|client| format!("{} (process {}, cores {})", client.name, client.pid, core_list(&client.cores)))
        .collect();
    let more = match clients.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let found = format!(
        "{}{more} may run on managed cores, where a service polls or runs ahead of a client: start it by `tailwater run \
         --client -- PROGRAM`, or `taskset -acp CORES PID`",
        named.join(", ")
    );
    (Status::Caution, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_on_a_lent_core_is_named_with_the_remedy() {
        assert_eq!(judge(&[]).0, Status::Ok);
        let client = |pid| connected::Client { pid, name: "redis-cli".to_owned(), cores: vec![1, 3] };
        let (status, found) = judge(&(1..=7).map(client).collect::<Vec<_>>());
        assert_eq!(status, Status::Caution);
        for part in ["redis-cli (process 1, cores 1,3)", "and 2 more", "--client"] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
