//! The `kv` program: what its options make it do.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

struct Kv(Child);

impl Drop for Kv {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A standalone `kv` with a UDP port, once it listens.
fn start(kthreads: &str, options: &[&str]) -> Kv {
    let process = Command::new(env!("CARGO_BIN_EXE_kv"))
        .args(["-p", "0", "-U", "11211"])
        .args(options)
        .envs([("TAILWATER_KTHREADS", kthreads), ("TAILWATER_DUMP_SIGNAL", "quit")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut kv = Kv(process);
    let lines = BufReader::new(kv.0.stdout.take().unwrap()).lines();
    let mut udp = lines.map_while(Result::ok).filter(|line| line.ends_with(" for datagrams"));
    assert!(udp.next().is_some(), "it ended");
    kv
}

/// User threads of this name, from what the program prints when asked for all of them.
fn user_threads(kv: &mut Kv, name: &str) -> usize {
    kill_process(Pid::from_child(&kv.0), Signal::QUIT).unwrap();
    let mut lines = BufReader::new(kv.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let count = lines.find_map(|line| {
        line.strip_prefix("tailwater: ")?.strip_suffix(" user threads")?.parse::<usize>().ok()
    });
    let all = lines.filter(|line| line.starts_with("user thread ")).take(count.expect("a dump"));
    all.filter(|line| line.starts_with(&format!("user thread '{name}' "))).count()
}

#[test]
fn datagrams_are_served_on_as_many_cores_as_the_runtime_has() {
    for (kthreads, options, wanted) in [("3", &[][..], 3), ("1", &[], 1), ("1", &["-t", "2"], 2)] {
        let mut kv = start(kthreads, options);
        assert_eq!(user_threads(&mut kv, "kv-udp"), wanted, "{kthreads} kthreads, options {options:?}");
    }
}
