//! A socket that answers as an IOKernel does, with statistics that a test changes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use serde_json::{Value, json};
use tailwater_shm::control::{ClientMessage, ServerMessage, receive, send, serve};

/// Answers until it is dropped.
pub struct IoKernel {
    statistics: Arc<Mutex<Value>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Returns a program in the statistics.
pub fn program(name: &str, class: &str, guaranteed: u64, cores: u64) -> Value {
    json!({ "name": name, "class": class, "guaranteed": guaranteed, "counters": { "cores": cores } })
}

impl IoKernel {
    /// Answers in the folder of a test, with these lent cores and programs.
    pub fn start(folder: &Path, managed: &[u64], programs: &[Value]) -> Self {
        let listener =
            serve(folder.join("run/socket").to_str().expect("Unicode"), |_| {}).expect("it listens");
        let statistics = Arc::new(Mutex::new(Value::Null));
        let ends = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (statistics, ends) = (Arc::clone(&statistics), Arc::clone(&ends));
            move || {
                while !ends.load(Ordering::Relaxed) {
                    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                    let _ = poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&moment));
                    let Ok(socket) = accept_with(&listener, SocketFlags::CLOEXEC) else { continue };
                    if let Ok((ClientMessage::Stats, _)) = receive(&socket) {
                        let answer = statistics.lock().expect("no panic").clone();
                        let _ = send(&socket, &ServerMessage::Stats(answer), &[]);
                    }
                }
            }
        });
        let iokernel = Self { statistics, ends, thread: Some(thread) };
        iokernel.set(managed, programs);
        iokernel
    }

    /// Changes the statistics.
    pub fn set(&self, managed: &[u64], programs: &[Value]) {
        let statistics = json!({ "iokernel": { "managed_cores": managed }, "runtimes": programs });
        *self.statistics.lock().expect("no panic") = statistics;
    }
}

impl Drop for IoKernel {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().expect("once").join();
    }
}
