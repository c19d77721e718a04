//! Options of memcached that its init scripts and unit files give, and that mean nothing here or
//! something else.
//!
//! Owns which are accepted, and the one line for each that says why it has no effect; which are
//! refused because the service would be open to more than the command line says, or lack something
//! that an operator relies on. The options that work are [`crate::cli`]'s; all others are unknown.

use std::path::PathBuf;

use clap::Args;

/// Beginnings of options of `-o` that are refused, because an operator relies on their effect.
const REFUSED: [&str; 3] = ["ext_path", "proxy_", "ssl_"];

/// Why a command line is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A Unix socket would have kept other users out, and a TCP port does not.
    #[error(
        "-s is not possible: there are no Unix sockets, and a TCP port is open to more programs; leave -s out, \
         and choose with -l and -p where the service listens"
    )]
    Socket,
    /// The process would remain root.
    #[error(
        "-u is not possible: the process would stay root; leave -u out and start it as that user, as with User= \
         of systemd"
    )]
    User,
    /// Something that an operator relies on does not exist.
    #[error("{option} is not possible: {why}")]
    Missing {
        /// The option.
        option: &'static str,
        /// What does not exist, and what to do.
        why: &'static str,
    },
}

/// Options accepted for the sake of scripts written for memcached.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of memcached, for its scripts")]
pub struct Accepted {
    /// File for the process id: written when the service listens, removed at its end
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Extended options, separated by commas; only `idle_timeout=SECONDS` has an effect
    #[arg(short = 'o', long = "extended", value_name = "LIST", value_delimiter = ',', value_parser = checked)]
    pub extended: Vec<String>,
    /// No effect: the process stays in the foreground
    #[arg(short = 'd', long = "daemon")]
    daemon: bool,
    /// No effect: there is no log of requests
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    /// No effect: the user stays the same; refused for root, unless USER is root
    #[arg(short = 'u', long = "user", value_name = "USER")]
    user: Option<String>,
    /// Refused: there are no Unix sockets
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    socket: Option<PathBuf>,
    /// No effect: there are no Unix sockets
    #[arg(short = 'a', long = "unix-mask", value_name = "MASK")]
    mask: Option<String>,
    /// No effect: items always have version numbers
    #[arg(short = 'C', long = "disable-cas")]
    no_cas: bool,
    /// No effect: the queue of connections has a fixed length
    #[arg(short = 'b', long = "listen-backlog", value_name = "N")]
    backlog: Option<u32>,
    /// No effect: each connection's first byte chooses its protocol
    #[arg(short = 'B', long = "protocol", value_name = "NAME", value_parser = ["auto", "ascii", "binary"])]
    protocol: Option<String>,
    /// No effect: connections do not share threads
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "N")]
    requests: Option<u32>,
    /// No effect: memory is not locked
    #[arg(short = 'k', long = "lock-memory")]
    lock: bool,
    /// No effect: the limit of core files stays the same
    #[arg(short = 'r', long = "enable-coredumps")]
    core_dumps: bool,
    /// No effect: items take cells of 64 bytes
    #[arg(short = 'f', long = "slab-growth-factor", value_name = "FACTOR")]
    growth: Option<String>,
    /// No effect: items take cells of 64 bytes
    #[arg(short = 'n', long = "slab-min-size", value_name = "BYTES")]
    smallest: Option<String>,
    /// No effect: the kernel chooses the pages
    #[arg(short = 'L', long = "enable-largepages")]
    large_pages: bool,
    /// Refused: there is no authentication
    #[arg(short = 'S', long = "enable-sasl")]
    sasl: bool,
    /// Refused: there is no authentication
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Refused: there is no TLS
    #[arg(short = 'Z', long = "enable-ssl")]
    tls: bool,
    /// Refused: no command ends the process
    #[arg(short = 'A', long = "enable-shutdown")]
    shutdown: bool,
    /// Refused: keys are not counted by prefix
    #[arg(short = 'D', value_name = "CHAR")]
    delimiter: Option<String>,
    /// Refused: items do not outlive the process
    #[arg(short = 'e', long = "memory-file", value_name = "FILE")]
    memory_file: Option<PathBuf>,
    /// Refused: clients may always list items
    #[arg(short = 'X', long = "disable-dumping")]
    no_dumps: bool,
}

/// Returns an option of `-o` if it is valid here.
fn checked(option: &str) -> Result<String, String> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    if name == "idle_timeout" && value.parse::<u32>().is_err() {
        return Err("idle_timeout takes a number of seconds; write idle_timeout=30".to_owned());
    }
    if REFUSED.iter().any(|refused| name.starts_with(refused)) {
        return Err(format!("there is no TLS, external storage or proxy here; leave {name} out"));
    }
    Ok(option.to_owned())
}

impl Accepted {
    /// Checks that no option is given whose absence would open the service to others, or leave out
    /// what an operator relies on. `is_root` is true if the process is root's.
    ///
    /// # Errors
    /// If there is one.
    pub fn check(&self, is_root: bool) -> Result<(), Refused> {
        if self.socket.is_some() {
            return Err(Refused::Socket);
        }
        if is_root && self.user.as_ref().is_some_and(|user| user != "root") {
            return Err(Refused::User);
        }
        let mut missing = self.missing().into_iter().filter(|(given, ..)| *given);
        match missing.next() {
            Some((_, option, why)) => Err(Refused::Missing { option, why }),
            None => Ok(()),
        }
    }

    /// Returns options for something that does not exist: whether each is given, and what to do.
    fn missing(&self) -> [(bool, &'static str, &'static str); 7] {
        let password = "there is no authentication; leave it out, and choose with -l who reaches the service";
        [
            (self.sasl, "-S", password),
            (self.auth_file.is_some(), "-Y", password),
            (self.tls, "-Z", "there is no TLS; leave it out, and put a proxy with TLS in front"),
            (self.shutdown, "-A", "no command ends the process; leave it out, and send SIGTERM"),
            (self.delimiter.is_some(), "-D", "keys are not counted by prefix; leave it out"),
            (self.memory_file.is_some(), "-e", "items do not outlive the process; use --backup for a copy"),
            (self.no_dumps, "-X", "clients may always list items; leave it out, and choose with -l who may"),
        ]
    }

    /// Returns the number of seconds of `-o idle_timeout`, if it is given.
    pub fn idle_timeout(&self) -> Option<u32> {
        let values = self.extended.iter().filter_map(|item| item.strip_prefix("idle_timeout="));
        values.filter_map(|value| value.parse().ok()).next_back()
    }

    /// Returns a line for each option that is given and has no effect.
    pub fn without_effect(&self) -> Vec<String> {
        let table = [
            (self.daemon, "-d", "run it as a service, or with `&`"),
            (self.verbose > 0, "-v", "there is no log of requests; `tailwater trace` shows single ones"),
            (self.user.is_some(), "-u", "start it as the user that it is to be, as with User= of systemd"),
            (self.mask.is_some(), "-a", "there are no Unix sockets"),
            (self.no_cas, "-C", "items always have version numbers, which cost 8 bytes"),
            (self.backlog.is_some(), "-b", "the queue of connections has a fixed length"),
            (
                self.protocol.as_ref().is_some_and(|name| name != "auto"),
                "-B",
                "each connection's first byte chooses its protocol",
            ),
            (
                self.requests.is_some(),
                "-R",
                "each connection has a thread of its own, and none waits for another",
            ),
            (self.lock, "-k", "turn swap off, or set MemorySwapMax=0 of systemd"),
            (self.core_dumps, "-r", "set the limit with `ulimit -c unlimited` before"),
            (self.growth.is_some(), "-f", "items take cells of 64 bytes"),
            (self.smallest.is_some(), "-n", "items take cells of 64 bytes"),
            (self.large_pages, "-L", "the kernel chooses the pages, as transparent_hugepage says"),
        ];
        let given = table.into_iter().filter(|(given, ..)| *given);
        let mut lines: Vec<_> =
            given.map(|(_, option, why)| format!("tailwater-kv: {option} has no effect: {why}")).collect();
        let unknown = self.extended.iter().filter(|item| !item.starts_with("idle_timeout="));
        lines.extend(
            unknown.map(|item| {
                format!("tailwater-kv: -o {item} has no effect: what it sets does not exist here")
            }),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        accepted: Accepted,
    }

    #[test]
    fn each_option_without_effect_has_one_line() {
        let words =
            "kv -d -vv -u nobody -a 0700 -C -b 1024 -B binary -R 20 -k -r -f 1.2 -n 48 -L -P /run/kv.pid";
        let words = words.split(' ').chain(["-o", "idle_timeout=30,slab_reassign", "-o", "modern"]);
        let accepted = Command::parse_from(words).accepted;
        assert_eq!((accepted.idle_timeout(), accepted.pid_file.is_some()), (Some(30), true));
        let lines = accepted.without_effect();
        let options = ["-d", "-v", "-u", "-a", "-C", "-b", "-B", "-R", "-k", "-r", "-f", "-n", "-L"];
        let wanted = options.into_iter().chain(["-o slab_reassign", "-o modern"]);
        let wanted: Vec<_> = wanted.map(|option| format!("tailwater-kv: {option} has no effect: ")).collect();
        assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.starts_with(&wanted), "{line}");
        }
        assert!(Command::parse_from(["kv", "-B", "auto"]).accepted.without_effect().is_empty());
        assert!(Command::try_parse_from(["kv", "-B", "http"]).is_err());
    }

    #[test]
    fn options_that_restrict_access_are_refused() {
        let check = |words: &[&str], is_root| {
            let words = ["kv"].into_iter().chain(words.iter().copied());
            Command::parse_from(words).accepted.check(is_root)
        };
        assert_eq!(check(&["-s", "/run/kv.sock"], false), Err(Refused::Socket));
        assert_eq!(check(&["-u", "nobody"], true), Err(Refused::User));
        assert_eq!(check(&["-u", "nobody"], false), Ok(()));
        assert_eq!(check(&["-u", "root"], true), Ok(()));
        assert_eq!(check(&["-d"], true), Ok(()));
        let missing: [&[&str]; 7] =
            [&["-S"], &["-Y", "f"], &["-Z"], &["-A"], &["-D", ":"], &["-e", "/f"], &["-X"]];
        for words in missing {
            let refused = check(words, false).expect_err(words[0]).to_string();
            assert!(refused.starts_with(words[0]) && refused.contains(" is not possible: "), "{refused}");
        }
    }

    #[test]
    fn extended_options_that_an_operator_relies_on_are_not_ignored() {
        let valid = |list: &str| Command::try_parse_from(["kv", "-o", list]).is_ok();
        for list in ["idle_timeout=30", "modern,idle_timeout=0", "slab_reassign,hashpower=20"] {
            assert!(valid(list), "{list}");
        }
        for list in ["idle_timeout=30s", "idle_timeout", "idle_timeout=5,idle_timeout=x", "modern,ssl_key=a"]
        {
            assert!(!valid(list), "{list}");
        }
        for list in ["ext_path=/data:1g", "proxy_config=a.lua"] {
            assert!(!valid(list), "{list}");
        }
    }
}
