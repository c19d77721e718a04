//! Programs that are asked in a protocol of their own: ours on Tailwater, those of others on kernel sockets.
//!
//! Owns which arguments make each serve datagrams and connections at one address with one thread per shared core, the files that
//! they read, which a folder of their own has from their start to their end, and that all are measured alike: what they serve is
//! stored first, requests come in the same medium, a batch job runs beside.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tailwater_loadgen::Plan;
use tailwater_loadgen::kernel_udp::Load;
use tailwater_loadgen::protocol::{Medium, Protocol, Spin};
use tailwater_workload::ServiceTime;
use tempfile::TempDir;

use super::handoffs::HandoffRecord;
use super::{Measured, Testbed, on_linux, on_tailwater};

/// Stands for the port in arguments and files.
pub const PORT: &str = "{port}";

/// Stands for the folder of its own in arguments and files.
pub const FOLDER: &str = "{folder}";

/// Mebibytes that a store may use.
const STORE_MIB: &str = "256";

/// Where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Tailwater,
    Linux,
}

/// A file that a program reads.
#[derive(Debug, Clone)]
pub struct File {
    pub name: &'static str,
    /// With [`PORT`] for the port and [`FOLDER`] for the folder.
    pub text: Arc<str>,
}

/// A program and what it is asked.
#[derive(Debug, Clone)]
pub struct Program {
    pub host: Host,
    /// Its name inside this program.
    pub app: &'static str,
    /// Its arguments, with [`PORT`] for the port and [`FOLDER`] for the folder.
    pub arguments: Vec<String>,
    /// What is in its folder when it starts; without any it has none.
    pub files: Vec<File>,
    pub protocol: Arc<dyn Protocol>,
    /// What carries requests and answers: datagrams unless said otherwise.
    pub medium: Medium,
    /// Whether a batch job runs on the same cores.
    pub batch: bool,
}

/// A program that is about to start at some port.
#[derive(Debug)]
pub struct Prepared {
    pub arguments: Vec<String>,
    /// Of its own; removed with all that the program wrote there when this is dropped.
    pub folder: Option<TempDir>,
}

impl Program {
    pub(super) fn new(host: Host, app: &'static str, words: &[&str], protocol: Arc<dyn Protocol>) -> Self {
        let arguments = words.iter().map(|&word| word.to_owned()).collect();
        Self { host, app, arguments, files: Vec::new(), protocol, medium: Medium::Datagram, batch: true }
    }

    /// Tailwater's spin server.
    pub fn spin(speed: u64, service: ServiceTime) -> Self {
        let words = ["--listen", &format!("0.0.0.0:{PORT}"), "--speed", &speed.to_string()];
        Self::new(Host::Tailwater, "spin", &words, Arc::new(Spin::new(service)))
    }

    /// Tailwater's store.
    pub fn kv(threads: usize, protocol: Arc<dyn Protocol>) -> Self {
        let words = ["-l", "0.0.0.0", "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", &threads.to_string()];
        Self::new(Host::Tailwater, "kv", &words, protocol)
    }

    /// The same on kernel sockets and kernel threads.
    pub fn kv_on_linux(threads: usize, protocol: Arc<dyn Protocol>) -> Self {
        let threads = threads.to_string();
        let words = ["--linux", "-l", "127.0.0.1", "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", &threads];
        Self::new(Host::Linux, "kv", &words, protocol)
    }

    /// memcached; `None` where it is not installed.
    pub fn memcached(threads: usize, protocol: Arc<dyn Protocol>) -> Option<Self> {
        let path = find("memcached")?;
        let threads = threads.to_string();
        // Without `-u` it does not start as root; to become another user it would need to see its files.
        let words =
            ["-l", "127.0.0.1", "-p", PORT, "-U", PORT, "-m", STORE_MIB, "-t", &threads, "-u", "root"];
        Some(Self::foreign(&path, &words, protocol))
    }

    pub(super) fn foreign(path: &std::path::Path, words: &[&str], protocol: Arc<dyn Protocol>) -> Self {
        let path = path.display().to_string();
        let words: Vec<&str> = [path.as_str()].into_iter().chain(words.iter().copied()).collect();
        Self::new(Host::Linux, "exec", &words, protocol)
    }

    /// The same over [`CONNECTIONS`](super::port::CONNECTIONS), or over datagrams.
    #[must_use]
    pub fn over(self, medium: Medium) -> Self {
        Self { medium, ..self }
    }

    /// The same with nothing beside it.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { batch: false, ..self }
    }

    /// One point.
    ///
    /// # Errors
    /// When a process does not start or ends, the plan cannot be run, or a signal came.
    pub fn point(
        &self,
        testbed: &Testbed,
        plan: &Plan,
        seed: u64,
        handoffs: &mut HandoffRecord,
    ) -> anyhow::Result<Measured> {
        let load = Load { protocol: Arc::clone(&self.protocol), seed, preload: true };
        match self.host {
            Host::Tailwater => {
                let setting = on_tailwater::Setting { batch: self.batch, ..Default::default() };
                on_tailwater::measure(testbed, self, plan, &load, setting, handoffs)
            }
            Host::Linux => on_linux::measure_program(testbed, self, plan, &load),
        }
    }

    /// Writes its files for a start at `port`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn prepare(&self, port: u16) -> anyhow::Result<Prepared> {
        let folder = match self.files.is_empty() {
            true => None,
            false => Some(tempfile::tempdir().context("cannot make a temporary folder")?),
        };
        let path = folder.as_ref().map_or_else(String::new, |folder| folder.path().display().to_string());
        let fill = |text: &str| text.replace(PORT, &port.to_string()).replace(FOLDER, &path);
        for File { name, text } in &self.files {
            let file = std::path::Path::new(&path).join(name);
            std::fs::write(&file, fill(text)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(Prepared { arguments: self.arguments.iter().map(|word| fill(word)).collect(), folder })
    }
}

/// A program of the system, which some keep out of a user's PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
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
    fn files_name_port_and_folder_and_go_with_them() {
        let mut program = Program::kv(1, Arc::new(Echo::new(8).unwrap()));
        program.arguments = vec![format!("{FOLDER}/config")];
        program.files = vec![File { name: "config", text: format!("{PORT} {FOLDER}").into() }];
        let prepared = program.prepare(5000).unwrap();
        let folder = prepared.folder.as_ref().unwrap().path().to_owned();
        let file = PathBuf::from(&prepared.arguments[0]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("5000 {}", folder.display()));
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
