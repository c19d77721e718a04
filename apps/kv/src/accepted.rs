//! Options of memcached that its init scripts and unit files give, and that mean nothing here or
//! something else.
//!
//! Owns which are accepted, and the one line for each that says why it has no effect. The options
//! that work are [`crate::cli`]'s.

use std::path::PathBuf;

use clap::Args;

/// Options accepted for the sake of scripts written for memcached.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of memcached, for its scripts")]
pub struct Accepted {
    /// File for the process id
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Extended options, separated by commas; `idle_timeout=SECONDS` has an effect
    #[arg(short = 'o', long = "extended", value_name = "LIST", value_delimiter = ',')]
    pub extended: Vec<String>,
    /// No effect: the process stays in the foreground
    #[arg(short = 'd', long = "daemon")]
    daemon: bool,
    /// No effect: there is no log of requests
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
    /// No effect: the user stays the same
    #[arg(short = 'u', long = "user", value_name = "USER")]
    user: Option<String>,
    /// No effect: there are no Unix sockets
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
    #[arg(short = 'B', long = "protocol", value_name = "NAME")]
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
}

impl Accepted {
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
            (self.socket.is_some(), "-s", "there are no Unix sockets; clients reach it at -l and -p"),
            (self.mask.is_some(), "-a", "there are no Unix sockets"),
            (self.no_cas, "-C", "items always have version numbers, which cost 8 bytes"),
            (self.backlog.is_some(), "-b", "the queue of connections has a fixed length"),
            (
                self.protocol.as_ref().is_some_and(|name| !name.starts_with("auto")),
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
        ];
        let given = table.into_iter().filter(|(given, ..)| *given);
        let mut lines: Vec<_> =
            given.map(|(_, option, why)| format!("tailwater-kv: {option} has no effect: {why}")).collect();
        let unknown = self.extended.iter().filter(|item| !item.starts_with("idle_timeout="));
        lines.extend(unknown.map(|item| {
            format!("tailwater-kv: -o {item} has no effect: it tunes what is made in another way here")
        }));
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
            "kv -d -vv -u nobody -s /run/kv.sock -a 0700 -C -b 1024 -B binary -R 20 -k -r -P /run/kv.pid";
        let words = words.split(' ').chain(["-o", "idle_timeout=30,slab_reassign", "-o", "modern"]);
        let accepted = Command::parse_from(words).accepted;
        assert_eq!((accepted.idle_timeout(), accepted.pid_file.is_some()), (Some(30), true));
        let lines = accepted.without_effect();
        let options = ["-d", "-v", "-u", "-s", "-a", "-C", "-b", "-B", "-R", "-k", "-r"];
        let wanted = options.into_iter().chain(["-o slab_reassign", "-o modern"]);
        let wanted: Vec<_> = wanted.map(|option| format!("tailwater-kv: {option} has no effect: ")).collect();
        assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.starts_with(&wanted), "{line}");
        }
        assert!(Command::parse_from(["kv", "-B", "auto"]).accepted.without_effect().is_empty());
    }
}
