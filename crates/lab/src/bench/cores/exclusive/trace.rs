//! What Linux's scheduler runs on some cores, by its trace: the event `sched_switch` of tracefs
//! (Linux, Documentation/trace/events.rst).
//!
//! Owns an instance of the trace of its own, so that other users of it see nothing and lose
//! nothing, the thread that reads it, and what the threads were. Time stamps are of the processor's
//! counter (`x86-tsc`), which the measured program reads, too. A trace that cannot be had is no
//! error: [`Unavailable`] says why. Interrupts are no switches, and are not seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::OFlags;
use tailwater_bpf::core_time::{in_first_pid_namespace, is_of_the_kernel};
use tailwater_shm::clock;

use super::child::Period;

/// Where tracefs is mounted (Linux, Documentation/trace/ftrace.rst).
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Ring of each core, for some tens of thousands of switches.
const BUFFER_KIB: &str = "4096";
/// Time between two reads.
const LOOK: Duration = Duration::from_millis(20);

/// Why there is no trace, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub String);

/// A switch of a core from one thread to another; thread 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    core: u32,
    at: u64,
    from: u32,
    to: u32,
}

impl Switch {
    /// Reads a line of `trace_pipe`, with the name of the thread to which the core is switched;
    /// `None` if it is none of a switch.
    fn parse(line: &str) -> Option<(Self, &str)> {
        let (head, event) = line.split_once(": sched_switch: prev_comm=")?;
        let (before, after) = event.split_once(" ==> next_comm=")?;
        // Names of threads may contain anything; what follows them does not.
        let number = |text: &str| text.split(' ').next()?.parse().ok();
        let (_, before) = before.rsplit_once(" prev_pid=")?;
        let (name, after) = after.rsplit_once(" next_pid=")?;
        let (from, to) = (number(before)?, number(after)?);
        let (head, at) = head.rsplit_once(' ')?;
        let (_, core) = head.rsplit_once('[')?;
        let core = core.split(']').next()?.parse().ok()?;
        Some((Self { core, at: at.parse().ok()?, from, to }, name))
    }
}

/// A running trace; it ends when this is dropped.
#[derive(Debug)]
pub struct Trace {
    instance: Instance,
    began: u64,
    stop: Arc<AtomicBool>,
    reader: JoinHandle<anyhow::Result<Record>>,
}

/// What was read.
#[derive(Debug, Default)]
pub struct Record {
    /// In the order of time, for each core.
    switches: Vec<Switch>,
    /// Threads of the kernel's own among those that were seen.
    kernel: HashSet<u32>,
    /// Names of threads.
    names: HashMap<u32, String>,
    /// From when until when.
    began: u64,
    ended: u64,
}

/// The folder of the instance, which is removed on drop.
#[derive(Debug)]
struct Instance(PathBuf);

impl Drop for Instance {
    fn drop(&mut self) {
        // Nothing can be done about one that stays; it records nothing.
        let _ = fs::write(self.0.join("tracing_on"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

impl Instance {
    fn make(cores: &[usize]) -> Result<Self, Unavailable> {
        if !in_first_pid_namespace() {
            return Err(Unavailable("in a PID namespace the trace's threads are not known".to_owned()));
        }
        let mount = MOUNTS.map(Path::new).into_iter().find(|mount| mount.join("instances").is_dir());
        let Some(mount) = mount else {
            return Err(Unavailable("tracefs is not mounted, or not for this user".to_owned()));
        };
        let folder = mount.join("instances").join(format!("tailwater-lab-{}", std::process::id()));
        let failed = |what: &Path, error: &dyn std::fmt::Display| {
            Unavailable(format!("the scheduler's trace: {}: {error}", what.display()))
        };
        fs::create_dir(&folder).map_err(|error| failed(&folder, &error))?;
        let (instance, mask) = (Self(folder), mask(cores));
        for (name, word) in [
            ("trace_clock", "x86-tsc"),
            ("tracing_cpumask", &*mask),
            ("buffer_size_kb", BUFFER_KIB),
            ("events/sched/sched_switch/enable", "1"),
        ] {
            let file = instance.0.join(name);
            fs::write(&file, word).map_err(|error| failed(&file, &error))?;
        }
        Ok(instance)
    }

    fn open_pipe(&self) -> std::io::Result<File> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(self.0.join("trace_pipe"))
    }

    /// Returns the number of switches that were not recorded, for lack of room.
    fn lost(&self, cores: &[usize]) -> u64 {
        let of_core = |core: &usize| {
            let file = self.0.join(format!("per_cpu/cpu{core}/stats"));
            let text = fs::read_to_string(file).unwrap_or_default();
            let number = |key| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
            ["overrun:", "dropped events:"].map(|key| number(key).unwrap_or(0u64)).iter().sum::<u64>()
        };
        cores.iter().map(of_core).sum()
    }
}

/// Returns these cores as `tracing_cpumask` takes them: hexadecimal, in words of 32 bits.
fn mask(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |&last| last / 32 + 1);
    let word = |n: usize| {
        cores.iter().filter(|&&core| core / 32 == n).fold(0u32, |bits, core| bits | 1 << (core % 32))
    };
    (0..words).rev().map(|n| format!("{:08x}", word(n))).collect::<Vec<_>>().join(",")
}

impl Trace {
    /// Begins to record what these cores run.
    pub fn begin(cores: &[usize]) -> Result<Self, Unavailable> {
        let instance = Instance::make(cores)?;
        let failed = |error| Unavailable(format!("the scheduler's trace cannot be read: {error}"));
        let pipe = instance.open_pipe().map_err(failed)?;
        let (began, stop) = (clock::now(), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&stop);
        let read = move || read(pipe, &ended);
        let builder = std::thread::Builder::new().name("trace".to_owned());
        let reader = builder.spawn(read).map_err(failed)?;
        Ok(Self { instance, began, stop, reader })
    }

    /// Ends the trace; returns what was recorded.
    ///
    /// # Errors
    /// If the trace cannot be read, or is not complete.
    pub fn finish(self, cores: &[usize]) -> anyhow::Result<Record> {
        let ended = clock::now();
        let stopped = fs::write(self.instance.0.join("tracing_on"), "0");
        self.stop.store(true, Ordering::Relaxed);
        let record = self.reader.join().expect("it does not panic")?;
        stopped.context("cannot end the scheduler's trace")?;
        let lost = self.instance.lost(cores);
        anyhow::ensure!(lost == 0, "the scheduler's trace lacks {lost} switches: the machine is too busy");
        Ok(Record { began: self.began, ended, ..record })
    }
}

/// Reads the trace until it was stopped and is empty.
fn read(mut pipe: File, stop: &AtomicBool) -> anyhow::Result<Record> {
    let (mut record, mut known) = (Record::default(), HashSet::new());
    let (mut unread, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // Before the read: what was recorded until then is read.
        let last = stop.load(Ordering::Relaxed);
        match pipe.read(&mut bytes) {
            Ok(len @ 1..) => {
                unread.extend_from_slice(&bytes[..len]);
                let whole = unread.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
                let lines = String::from_utf8_lossy(&unread[..whole]).into_owned();
                unread.drain(..whole);
                for (switch, name) in lines.lines().filter_map(Switch::parse) {
                    record.names.insert(switch.to, name.to_owned());
                    for tid in [switch.from, switch.to] {
                        // As soon as it is seen: it may end.
                        if known.insert(tid) && is_of_the_kernel(tid) == Some(true) {
                            record.kernel.insert(tid);
                        }
                    }
                    record.switches.push(switch);
                }
            }
            Ok(0) | Err(_) if last => return Ok(record),
            Ok(_) => std::thread::sleep(LOOK),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error).context("cannot read the scheduler's trace"),
        }
    }
}

/// What ran on the exclusive thread's core while that thread had it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that an ordinary thread ran.
    pub ordinary: u64,
    /// These threads, by name and id, and how often each ran.
    pub who: BTreeMap<String, u64>,
    /// For how long, in cycles.
    pub ordinary_cycles: u64,
    /// Times that a thread of the kernel's own ran.
    pub kernel: u64,
}

impl Record {
    /// Counts what else ran within these periods. A thread that ended before it could be looked up
    /// counts as ordinary.
    pub fn count(&self, periods: &[Period]) -> Counts {
        let mut counts = Counts::default();
        for (core, tid, from, to) in self.stays() {
            for period in periods.iter().filter(|period| period.core == core && period.tid != tid) {
                let (from, to) = (from.max(period.from), to.min(period.to));
                match from < to {
                    true if self.kernel.contains(&tid) => counts.kernel += 1,
                    true => {
                        counts.ordinary += 1;
                        counts.ordinary_cycles += to - from;
                        let name = self.names.get(&tid).map_or("?", String::as_str);
                        *counts.who.entry(format!("{name} ({tid})")).or_default() += 1;
                    }
                    false => {}
                }
            }
        }
        counts
    }

    /// Returns which thread was on which core from when until when, without those that were not
    /// switched.
    fn stays(&self) -> Vec<(u32, u32, u64, u64)> {
        let (mut stays, mut since) = (Vec::new(), HashMap::new());
        for &Switch { core, at, from, to } in &self.switches {
            let (_, began) = since.insert(core, (to, at)).unwrap_or((from, self.began));
            stays.push((core, from, began, at));
        }
        stays.extend(since.into_iter().map(|(core, (tid, began))| (core, tid, began, self.ended)));
        stays.retain(|&(_, tid, ..)| tid != 0);
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_read_whatever_the_threads_are_called() {
        let line = "  a [9] b ==> c-77      [012] d..2. 123456789012: sched_switch: prev_comm=a [9] b prev_pid=77 \
                    prev_prio=120 prev_state=R ==> next_comm=x next_pid=3 next_pid=88 next_prio=-1";
        let switch = Switch { core: 12, at: 123_456_789_012, from: 77, to: 88 };
        assert_eq!(Switch::parse(line), Some((switch, "x next_pid=3")));
        for other in ["CPU:1 [LOST 12 EVENTS]", "", "x-1 [000] d.. 12: sched_wakeup: comm=a pid=3"] {
            assert_eq!(Switch::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_mask_has_words_of_32_bits() {
        assert_eq!(mask(&[1, 2]), "00000006");
        assert_eq!(mask(&[0, 33]), "00000002,00000001");
    }

    #[test]
    fn threads_count_while_the_exclusive_thread_has_the_core() {
        let switch = |core, at, from, to| Switch { core, at, from, to };
        let switches = vec![
            // An ordinary thread that ran since the start, then the exclusive one's kthread, 9.
            switch(1, 100, 50, 9),
            switch(2, 120, 0, 50),
            switch(1, 200, 9, 7),
            switch(1, 210, 7, 9),
            switch(1, 300, 9, 51),
            switch(1, 330, 51, 9),
            // Until the end.
            switch(1, 900, 9, 52),
        ];
        let names = HashMap::from([(51, "job".to_owned())]);
        let record = Record { switches, kernel: HashSet::from([7]), names, began: 10, ended: 1_000 };
        let counts = |from, to| record.count(&[Period { core: 1, tid: 9, from, to }]);
        let who = |names: &[&str]| names.iter().map(|&name| (name.to_owned(), 1)).collect();
        let all = who(&["? (50)", "job (51)", "? (52)"]);
        let whole = Counts { ordinary: 3, who: all, ordinary_cycles: 90 + 30 + 100, kernel: 1 };
        assert_eq!(counts(0, 2_000), whole);
        let part = Counts { ordinary: 1, who: who(&["job (51)"]), ordinary_cycles: 20, kernel: 1 };
        assert_eq!(counts(100, 320), part);
        assert_eq!(counts(340, 900), Counts::default());
    }
}
