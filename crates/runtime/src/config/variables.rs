//! Names of the environment variables that configure a runtime, and detection of misspellings.
//!
//! Other programs of the project have `TAILWATER_*` variables too. An unknown name is therefore
//! refused only if it is close to a known one.

/// Prefix of all names.
const PREFIX: &str = "TAILWATER_";

/// All variables, without the prefix.
const NAMES: [&str; 22] = [
    "ADOPT_LIBC_WAITS",
    "BLOCKING_THREADS",
    "CLASS",
    "CONFIG",
    "DUMP_SIGNAL",
    "EXIT_LINGER_MS",
    "GUARANTEED",
    "IDLE_TIMEOUT_US",
    "IOKERNEL",
    "IOKERNEL_WAIT_MS",
    "IP",
    "KTHREADS",
    "LISTEN",
    "NAME",
    "ON_IOKERNEL_LOSS",
    "PACKET_STEALING",
    "QUANTUM_US",
    "REPLACE",
    "RING_BYTES",
    "STACK_SIZE",
    "STALL_TIMEOUT_MS",
    "TCP_CONNECTIONS",
];

/// Returns whether a variable of this name is read.
pub fn is_known(variable: &str) -> bool {
    variable.strip_prefix(PREFIX).is_some_and(|name| NAMES.contains(&name))
}

/// Returns the name that `variable` is a misspelling of; `None` if it is known or unlike all of
/// them.
///
/// Misspellings are a name in another case, one cut short, one with something appended, and one
/// with up to a third of its characters wrong.
pub fn meant(variable: &str) -> Option<String> {
    let upper = variable.to_ascii_uppercase();
    let given = upper.strip_prefix(PREFIX)?;
    if is_known(variable) || given.is_empty() {
        return None;
    }
    let (distance, name) = NAMES.iter().map(|name| (distance(given, name), name)).min()?;
    let close = distance <= (name.len() / 3).max(1);
    let longer = NAMES.iter().find(|name| name.starts_with(given) || given.starts_with(*name));
    let name = if close { Some(name) } else { longer };
    name.map(|name| format!("{PREFIX}{name}"))
}

/// Returns the name that `key` of a configuration file is a misspelling of.
#[cfg(feature = "config-file")]
pub fn meant_in_file(key: &str) -> Option<String> {
    let variable = format!("{PREFIX}{}", key.to_ascii_uppercase().replace('-', "_"));
    let meant = if is_known(&variable) { Some(variable) } else { meant(&variable) };
    let meant = meant?.strip_prefix(PREFIX)?.to_ascii_lowercase().replace('_', "-");
    // The variable that names the file has no place in it.
    Some(meant).filter(|meant| meant != "config")
}

/// Returns the Levenshtein distance: the fewest characters to insert, delete or replace.
fn distance(from: &str, to: &str) -> usize {
    let to = to.as_bytes();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], i + 1);
        for (j, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_recognised() {
        for (given, name) in [
            ("TAILWATER_KTHREAD", "TAILWATER_KTHREADS"),
            ("TAILWATER_THREADS", "TAILWATER_KTHREADS"),
            ("TAILWATER_QUANTUM", "TAILWATER_QUANTUM_US"),
            ("TAILWATER_QUANTUM_MS", "TAILWATER_QUANTUM_US"),
            ("TAILWATER_STACK", "TAILWATER_STACK_SIZE"),
            ("TAILWATER_IOKERNEL_PATH", "TAILWATER_IOKERNEL"),
            ("tailwater_ip", "TAILWATER_IP"),
        ] {
            assert_eq!(meant(given).as_deref(), Some(name), "{given}");
        }
    }

    #[test]
    fn known_names_and_unlike_ones_are_left_alone() {
        assert!(NAMES.iter().all(|name| meant(&format!("{PREFIX}{name}")).is_none()));
        for other in ["TAILWATER_USER_THREADS", "TAILWATER_TEST_CHILD", "TAILWATER_COMMIT", "PATH"] {
            assert_eq!(meant(other), None, "{other}");
        }
    }

    #[test]
    fn distances_count_single_changes() {
        assert_eq!([distance("", "abc"), distance("abc", "abc"), distance("kitten", "sitting")], [3, 0, 3]);
    }
}
