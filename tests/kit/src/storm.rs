//! Preempt signals at a rate at which no program gets them, for tests of what they interrupt.
//!
//! A kthread sends itself the signal at most once per tick of the kernel. A storm sends it to every
//! kthread of the process each period; a thread that runs at two signals in a row while others wait
//! is preempted by the second.

use rustix::process::{Signal, getpid};
use rustix::thread::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after which the threads of the process are listed again.
const LIST: Duration = Duration::from_millis(20);

/// Sends signals until it is dropped.
#[derive(Debug)]
pub struct Storm {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storm {
    /// Starts to send the preempt signal to each kthread of this process every `period`. For tests
    /// that start one runtime with a quantum: another program would take the signal for nothing.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn start(period: Duration) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            // A period must not last for as long as Linux lets the kthreads run; refused to
            // ordinary users.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
            while !seen.load(Ordering::Relaxed) {
                let (kthreads, listed) = (kthreads(), Instant::now());
                while listed.elapsed() < LIST && !seen.load(Ordering::Relaxed) {
                    kthreads.iter().for_each(|&tid| interrupt(tid));
                    std::thread::sleep(period);
                }
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the threads of this process that have the name of a kthread, `tailwater/` and a number.
fn kthreads() -> Vec<Pid> {
    let is_kthread = |name: &str| {
        let number = name.trim_end().strip_prefix("tailwater/");
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| is_kthread(&name)))
        .filter_map(|task| Pid::from_raw(task.file_name().to_str()?.parse().ok()?))
        .collect()
}

fn interrupt(tid: Pid) {
    // SAFETY: tgkill has no memory operands. The signal is ignored where the runtime has not
    // installed its handler yet, and a thread that has ended gets none.
    unsafe {
        let (pid, signal) = (getpid().as_raw_nonzero().get(), Signal::URG.as_raw());
        libc::syscall(libc::SYS_tgkill, pid, tid.as_raw_nonzero().get(), signal);
    }
}
