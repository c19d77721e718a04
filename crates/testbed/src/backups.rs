//! Backups of a store: processes to which the service replicates.
//!
//! Owns their arguments, the secret that they share with the service, their start before it, and
//! the wait until all of them have a complete copy. The service reports that in its log, which is
//! in its folder, as the secret is; the backups write to the same log.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bed::START_TIMEOUT;
use crate::child::{Service, Spec};
use crate::interrupt::Interrupt;
use crate::program::{FOLDER, File, PORT, Prepared, Program};

/// Stands for the addresses of the backups in a service's arguments.
const ADDRESSES: &str = "{backups}";
/// Name of the file with the secret.
const SECRET: &str = "secret";
/// Bytes of the secret.
const SECRET_BYTES: usize = 16;
/// Seconds after which a silent backup is lost: a busy machine may stand still for some.
const TIMEOUT_S: &str = "600";
/// Part of the line that a store writes for each backup that has everything.
const IN_STEP: &str = " is in step";
/// Time between two looks at the log.
const TURN: Duration = Duration::from_millis(5);

/// The backups of a program.
#[derive(Debug, Clone)]
pub struct Backups {
    /// How many there are.
    pub count: usize,
    /// The arguments of each, with [`PORT`] for the port on which it takes its copy.
    arguments: Vec<String>,
}

impl Backups {
    /// Returns the store `program` with `count` backups, which have the arguments `words` besides
    /// those of their role.
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn of(mut program: Program, count: usize, words: &[&str]) -> anyhow::Result<Program> {
        let mut secret = [0; SECRET_BYTES];
        getrandom(&mut secret, GetRandomFlags::empty()).context("no random numbers")?;
        let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("{FOLDER}/{SECRET}");
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        program.arguments.extend(owned(&[
            "--replicate",
            ADDRESSES,
            "--backup-timeout",
            TIMEOUT_S,
            "--secret",
            &path,
        ]));
        program.files.push(File { name: SECRET, text: digits.into() });
        let role = ["-p", "0", "--backup", PORT, "--secret", &path];
        program.backups = Some(Self { count, arguments: owned(&[words, &role].concat()) });
        Ok(program)
    }

    /// Starts a backup for each of `addresses`, on which it takes its copy; `spec` completes what
    /// is to be started. Returns the log of the service, in whose arguments the addresses are then.
    ///
    /// # Errors
    /// If one does not listen, or on a signal.
    pub fn start(
        &self,
        prepared: &mut Prepared,
        addresses: &[SocketAddr],
        spec: impl Fn(usize, Spec) -> Spec,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(Vec<Service>, Option<PathBuf>)> {
        let folder = prepared.folder.as_ref().context("a program with a secret has a folder")?.path();
        let (path, log) = (folder.display().to_string(), folder.join("log"));
        let one = |(number, address): (usize, &SocketAddr)| {
            let fill = |word: &String| word.replace(PORT, &address.port().to_string()).replace(FOLDER, &path);
            let arguments = self.arguments.iter().map(fill).collect();
            let spec = spec(number, Spec { arguments, log: Some(log.clone()), ..Spec::default() });
            Service::start(&spec, interrupt).with_context(|| read(&log))
        };
        let backups = addresses.iter().enumerate().map(one).collect::<anyhow::Result<_>>()?;
        let list: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        for word in &mut prepared.arguments {
            *word = word.replace(ADDRESSES, &list.join(","));
        }
        Ok((backups, Some(log)))
    }

    /// Waits until all backups of a service have everything.
    ///
    /// # Errors
    /// If that takes too long, the service ends, or on a signal.
    pub fn wait(&self, service: &mut Service, log: &PathBuf, interrupt: &Interrupt) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while read(log).matches(IN_STEP).count() < self.count {
            service.check()?;
            anyhow::ensure!(Instant::now() < deadline, "the backups have no copy: {}", read(log));
            interrupt.sleep_until(Instant::now() + TURN)?;
        }
        Ok(())
    }
}

/// Returns the text of the log, which does not exist before the first process.
fn read(log: &PathBuf) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tailwater_loadgen::protocol::Echo;

    use super::*;
    use crate::program::Host;

    #[test]
    fn a_store_and_its_backups_share_a_secret_and_nobody_else() {
        let store =
            |count| Program::kv_with_backups(Host::Linux, 1, Arc::new(Echo::new(8).unwrap()), count).unwrap();
        assert!(store(0).backups.is_none() && store(0).files.is_empty());
        let program = store(2);
        let prepared = program.prepare(5000).unwrap();
        let secret = prepared.folder.as_ref().unwrap().path().join(SECRET).display().to_string();
        assert_eq!(
            prepared.arguments.join(" "),
            format!(
                "--linux -l 127.0.0.1 -p 5000 -m 256 -t 1 --replicate {ADDRESSES} --backup-timeout 600 --secret {secret}"
            )
        );
        assert_eq!(std::fs::read_to_string(secret).unwrap().len(), 2 * SECRET_BYTES);
        let arguments = program.backups.unwrap().arguments.join(" ");
        assert!(arguments.ends_with("-p 0 --backup {port} --secret {folder}/secret"), "{arguments}");
        assert_ne!(store(1).files[0].text, store(1).files[0].text);
    }
}
