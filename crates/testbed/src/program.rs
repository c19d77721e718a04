//! Programs with protocols of their own: this project's on Tailwater or Linux, others on kernel
//! sockets.
//!
//! Owns the arguments with which each program serves datagrams and connections at one address, with
//! one thread for each shared core, and the files that it reads, which are in its own folder from
//! its start to its end.

use std::fs::File as Opened;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tailwater_loadgen::protocol::{Medium, Protocol, Spin};
use tailwater_workload::ServiceTime;

use crate::backups::Backups;
use crate::folder::Folder;

/// Stands for the port in arguments and files.
pub const PORT: &str = "{port}";

/// Stands for the program's folder in arguments and files.
pub const FOLDER: &str = "{folder}";

/// Memory of a store in mebibytes.
const STORE_MIB: &str = "256";

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// On Tailwater, beside an IOKernel in this process.
    Tailwater,
    /// On kernel threads and kernel sockets.
    Linux,
}

/// A file that a program reads.
#[derive(Debug, Clone)]
pub struct File {
    /// Its name in the program's folder.
    pub name: &'static str,
    /// Its text, with [`PORT`] for the port and [`FOLDER`] for the folder.
    pub text: Arc<str>,
}

/// A program and the requests it gets.
#[derive(Debug, Clone)]
pub struct Program {
    /// Where it runs.
    pub host: Host,
    /// Its name among the services of the running program.
    pub app: &'static str,
    /// Its arguments, with [`PORT`] for the port and [`FOLDER`] for the folder.
    pub arguments: Vec<String>,
    /// Files in its folder at its start; a program without files has no folder.
    pub files: Vec<File>,
    /// The protocol of its requests.
    pub protocol: Arc<dyn Protocol>,
    /// Whether it prints `listening on ADDRESS` once it listens; on Tailwater.
    pub prints_address: bool,
    /// What carries requests and answers.
    pub medium: Medium,
    /// Whether a batch job runs on the same cores.
    pub batch: bool,
    /// Whether it requests as many cores as its load needs, by Arachne's estimate; on Tailwater.
    pub estimates: bool,
    /// The backups to which it replicates.
    pub backups: Option<Backups>,
}

/// A program that is ready to start at a port.
#[derive(Debug)]
pub struct Prepared {
    /// Its arguments, with port and folder in place.
    pub arguments: Vec<String>,
    /// Its own folder, removed with its content when this is dropped.
    pub folder: Option<Folder>,
}

impl Program {
    /// Returns a program inside the running one, without files, over datagrams, beside a batch job.
    pub fn new(host: Host, app: &'static str, words: &[&str], protocol: Arc<dyn Protocol>) -> Self {
        let arguments = words.iter().map(|&word| word.to_owned()).collect();
        let (files, medium) = (Vec::new(), Medium::Datagram);
        let (prints_address, batch, estimates, backups) = (true, true, false, None);
        Self { host, app, arguments, files, protocol, prints_address, medium, batch, estimates, backups }
    }

    /// Returns the spin server on Tailwater.
    pub fn spin(speed: u64, service: ServiceTime) -> Self {
        let words = ["--listen", &format!("0.0.0.0:{PORT}"), "--speed", &speed.to_string()];
        Self::new(Host::Tailwater, "spin", &words, Arc::new(Spin::new(service)))
    }

    /// Returns the store on Tailwater.
    pub fn kv(threads: usize, protocol: Arc<dyn Protocol>) -> Self {
        let words = ["-l", "0.0.0.0", "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", &threads.to_string()];
        Self::new(Host::Tailwater, "kv", &words, protocol)
    }

    /// Returns the store on kernel sockets and kernel threads.
    pub fn kv_on_linux(threads: usize, protocol: Arc<dyn Protocol>) -> Self {
        let threads = threads.to_string();
        let words = ["--linux", "-l", "127.0.0.1", "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", &threads];
        Self::new(Host::Linux, "kv", &words, protocol)
    }

    /// Returns the store over connections, on either host, with `count` backups.
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn kv_with_backups(
        host: Host,
        threads: usize,
        protocol: Arc<dyn Protocol>,
        count: usize,
    ) -> anyhow::Result<Self> {
        let threads = threads.to_string();
        let place = match host {
            Host::Tailwater => &["-l", "0.0.0.0"][..],
            Host::Linux => &["--linux", "-l", "127.0.0.1"],
        };
        let store = ["-m", STORE_MIB, "-t", &threads];
        let words = [place, &["-p", PORT], &store].concat();
        let program = Self::new(host, "kv", &words, protocol).over(Medium::Stream);
        if count == 0 {
            return Ok(program);
        }
        Backups::of(program, count, &[place, &store].concat())
    }

    /// memcached; `None` where it is not installed.
    pub fn memcached(threads: usize, protocol: Arc<dyn Protocol>) -> Option<Self> {
        Some(Self::foreign(
            &find("memcached")?,
            &memcached_words("127.0.0.1", &threads.to_string()),
            protocol,
        ))
    }

    /// The same memcached, as it is, on Tailwater's threads and network; `None` where it is not
    /// installed, or `tailwater` or the library that it preloads is not beside the running program.
    pub fn memcached_as_it_is(threads: usize, protocol: Arc<dyn Protocol>) -> Option<Self> {
        let own = std::env::current_exe().ok()?.with_file_name("tailwater");
        let is_built = own.is_file() && own.with_file_name("libtailwater_posix.so").is_file();
        let (threads, path) = (threads.to_string(), find("memcached").filter(|_| is_built)?);
        let start = [own.to_str()?, "run", "--posix", "--", path.to_str()?];
        let words = [&start[..], &memcached_words("0.0.0.0", &threads)].concat();
        let program = Self::new(Host::Tailwater, "exec", &words, protocol).over(Medium::Stream);
        Some(Self { prints_address: false, ..program })
    }

    /// Returns the RocksDB service on Tailwater, with `keys` values of so many bytes each, and its
    /// requests in the order of `policy`; `None` where it is not built.
    pub fn rocks(policy: &str, keys: u64, value_len: usize, protocol: Arc<dyn Protocol>) -> Option<Self> {
        let path = find_own("tailwater-rocks")?.display().to_string();
        let (store, listen) = (format!("{FOLDER}/store"), format!("0.0.0.0:{PORT}"));
        let (keys, value_len) = (keys.to_string(), value_len.to_string());
        let words = [&path, "--listen", &listen, "--path", &store, "--load", &keys, "--value", &value_len];
        let words = [&words[..], &["--dispatch", policy]].concat();
        Some(Self::new(Host::Tailwater, "exec", &words, protocol).alone())
    }

    /// Returns a program of the system, on Linux.
    pub fn foreign(path: &std::path::Path, words: &[&str], protocol: Arc<dyn Protocol>) -> Self {
        let path = path.display().to_string();
        let words: Vec<&str> = [path.as_str()].into_iter().chain(words.iter().copied()).collect();
        Self::new(Host::Linux, "exec", &words, protocol)
    }

    /// Returns the same program over [`CONNECTIONS`](super::port::CONNECTIONS) or over datagrams.
    #[must_use]
    pub fn over(self, medium: Medium) -> Self {
        Self { medium, ..self }
    }

    /// Returns the same program without a batch job.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { batch: false, ..self }
    }

    /// Returns the same store on Tailwater, run to completion: event loops serve its connections.
    #[must_use]
    pub fn run_to_completion(mut self) -> Self {
        self.arguments.push("--events".to_owned());
        self
    }

    /// Returns the same spin server or store on Tailwater, which requests as many cores as its load
    /// needs.
    #[must_use]
    pub fn estimating(mut self) -> Self {
        self.arguments.push("--estimate-cores".to_owned());
        Self { estimates: true, ..self }
    }

    /// Writes the program's files for a start at `port`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn prepare(&self, port: u16) -> anyhow::Result<Prepared> {
        let names_folder = self.arguments.iter().any(|word| word.contains(FOLDER));
        let folder = match self.files.is_empty() && !names_folder {
            true => None,
            false => Some(Folder::new()?),
        };
        let path = folder.as_ref().map_or_else(String::new, |folder| folder.path().display().to_string());
        let fill = |text: &str| text.replace(PORT, &port.to_string()).replace(FOLDER, &path);
        for File { name, text } in &self.files {
            let file = std::path::Path::new(&path).join(name);
            // The folder is closed to other users too, but a program may refuse a file that is not.
            let opened = Opened::options().write(true).create_new(true).mode(0o600).open(&file);
            let written = opened.and_then(|mut opened| opened.write_all(fill(text).as_bytes()));
            written.with_context(|| format!("cannot write {}", file.display()))?;
        }
        let arguments = self.arguments.iter().map(|word| fill(word)).collect();
        Ok(Prepared { arguments, folder })
    }
}

/// Returns the words of memcached with so many threads, which listens at `ip`: on Tailwater at all
/// addresses, of which its own is one. Without `-u` it does not start as root; another user might
/// not be allowed to read its files.
fn memcached_words<'a>(ip: &'a str, threads: &'a str) -> [&'a str; 12] {
    ["-l", ip, "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", threads, "-u", "root"]
}

/// Returns the path of a program of this project: beside the running one, or else in PATH.
pub fn find_own(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    beside.filter(|file| file.is_file()).or_else(|| find(name))
}

/// Returns the path of a program of the system; servers are often outside a user's PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use tailwater_loadgen::protocol::Echo;

    #[test]
    fn the_port_stands_wherever_it_is_named() {
        let protocol = Arc::new(Echo::new(8).unwrap());
        let prepared = Program::kv(2, protocol).prepare(5000).unwrap();
        assert_eq!(prepared.arguments.join(" "), "-l 0.0.0.0 -p 5000 -U 5000 -m 256 -t 2");
        assert!(prepared.folder.is_none());
    }

    #[test]
    fn a_program_that_names_its_folder_has_one() {
        let mut program = Program::kv(1, Arc::new(Echo::new(8).unwrap()));
        program.arguments = vec![format!("{FOLDER}/store")];
        let prepared = program.prepare(5000).unwrap();
        let folder = prepared.folder.as_ref().unwrap().path().to_owned();
        assert!(folder.is_dir() && prepared.arguments[0] == format!("{}/store", folder.display()));
        drop(prepared);
        assert!(!folder.exists());
    }

    #[test]
    fn files_name_port_and_folder_and_go_with_them() {
        let mut program = Program::kv(1, Arc::new(Echo::new(8).unwrap()));
        program.arguments = vec![format!("{FOLDER}/config")];
        program.files = vec![File { name: "config", text: format!("{PORT} {FOLDER}").into() }];
        let prepared = program.prepare(5000).unwrap();
        let folder = prepared.folder.as_ref().unwrap().path().to_owned();
        let file = PathBuf::from(&prepared.arguments[0]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("5000 {}", folder.display()));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(folder.join("more"), "").unwrap();
        drop(prepared);
        assert!(!folder.exists());
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find("no-such-program-anywhere"), None);
    }
}
