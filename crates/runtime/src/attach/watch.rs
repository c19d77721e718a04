//! The loss of the IOKernel, and the registration with the next one.
//!
//! Owns the thread that waits for the end of the control socket and then does what
//! [`OnIoKernelLoss`] says. With `Wait` it registers again: with the same name and address, at the
//! same socket. [`rejoin`] has what the kthreads do meanwhile.
//!
//! | the IOKernel | the program |
//! |---|---|
//! | ends, or is killed | goes on, on ordinary cores; threads that send wait; this thread dials |
//! | ends the registration, with a reason | goes on without network: another registration would end in the same way |
//! | is there again, and refuses, or assigns another address | goes on waiting; the reason is written once |
//! | is of another user | the same: [`control::dial`] names the user |
//! | is there again, and ends before `Ready`, or does not answer | hangs up, and begins to wait anew, with the memory it got |
//! | is not there in time | its calls fail from then on; this thread dials on, and reports that at growing intervals |
//!
//! This thread waits for nothing of the program until it has tried to register: standard error may
//! be a full pipe, and there may be no memory for a stack.

use super::{
    ANSWER_TIMEOUT, Accepted, Connection, Registration, announce, ask, broken, dial, instances,
    limit_answers, unmanaged, unusable,
};
use crate::config::OnIoKernelLoss;
use crate::error::{AttachError, StartError};
use crate::ground::stderr::print_within;
use crate::net;
use crate::records::runtime::Runtime;
use crate::verbs::rejoin;
use core::sync::atomic::Ordering;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};
use rustix::thread::{Pid, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};
use tailwater_shm::control::{self, ControlError, Register, ServerMessage, Welcome};
use tailwater_shm::memory::MemoryError;

/// Time between two attempts while no IOKernel listens, at first and at most: an attempt takes a
/// few microseconds.
const DIALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// The same once the program's calls fail because none came in time.
const LATE_DIALS: Duration = Duration::from_secs(1);
/// Time between the first two reports that there is still no IOKernel; each doubles it, up to the
/// maximum.
const REPORTS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Time between two attempts after one that was refused: each costs the IOKernel a region.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// Maximum time until all kthreads have responded, none of which waits for the others. Linux runs
/// a best-effort kthread beside ordinary programs once in a second or so.
const RESPONSE_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time until all kthreads have stopped, at the first attempt and at most: longer than what
/// runs without poll points in an orderly program. The first to stop waits for the last.
const STOP_PATIENCE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(6_400));
/// Maximum time until an IOKernel that has taken this program again is ready to lend cores, at the
/// first attempt and at most: the whole program waits for it.
const READY_PATIENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(16));
/// Maximum number of looks at the affinity of all threads.
const MOVES: u32 = 4;
/// Maximum time until standard error takes a line.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// Maximum times of an attempt, each doubled when it was too short.
struct Patience {
    /// Until all kthreads have stopped.
    stop: Duration,
    /// Until the IOKernel is ready.
    ready: Duration,
}

/// When it is reported that there is still no IOKernel, as time since the loss.
struct Report {
    at: Duration,
    interval: Duration,
}

impl Report {
    fn write_if_due(&mut self, path: &str, elapsed: Duration) {
        if elapsed < self.at {
            return;
        }
        write(&format!(
            "tailwater: still no IOKernel takes this program at {path} after {} s; trying on\n",
            elapsed.as_secs()
        ));
        self.interval = (self.interval * 2).min(REPORTS.1);
        self.at = elapsed + self.interval;
    }
}

/// Why the IOKernel is lost.
enum Loss {
    /// It ended or was killed.
    Ended,
    /// It has ended the registration, or cannot be understood.
    Expelled(String),
}

impl Connection {
    /// Starts the thread that waits for the loss of the IOKernel.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn watch(mut self, runtime: &'static Runtime) -> Result<(), StartError> {
        let watch = move || {
            // It sleeps until then, and the program waits for it, perhaps on the core that the next
            // IOKernel polls on.
            tailwater_shm::priority::raise_thread();
            while self.outlive(runtime) {}
            net::set_link_down();
        };
        std::thread::Builder::new()
            .name("tailwater/watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|source| StartError::System { action: "start the watch thread", source })
    }

    /// Waits for the loss of the IOKernel, and for another one. Returns false if the runtime goes
    /// on without.
    fn outlive(&mut self, runtime: &'static Runtime) -> bool {
        let loss = self.wait_for_loss();
        let began = Instant::now();
        let (why, reaction) = self.reaction(&loss);
        let text = format!("tailwater: lost the IOKernel at {}: {why}. {reaction}\n", self.path);
        if self.on_loss == OnIoKernelLoss::Exit {
            exit(&text);
        }
        if matches!(loss, Loss::Ended) {
            self.unbind(runtime);
        }
        let waits = self.on_loss == OnIoKernelLoss::Wait && matches!(loss, Loss::Ended);
        // Before anything is written: nothing of the program runs until then.
        runtime.orphan(waits);
        if !waits {
            write(&text);
            return false;
        }
        self.register_again(runtime, began, &text);
        let after = began.elapsed().as_millis();
        write(&format!("tailwater: attached to the IOKernel at {} again after {after} ms\n", self.path));
        true
    }

    fn wait_for_loss(&mut self) -> Loss {
        let control = &self.registration.control;
        // If this fails, the call below returns after the limit of an answer, and is repeated.
        let _ = set_socket_timeout(control, Timeout::Recv, None);
        loop {
            // Returns when the connection ends, or if there is another instance of this program.
            match control::receive::<ServerMessage>(control) {
                Ok((ServerMessage::Instance(instance), _)) => {
                    self.request.instance = instance;
                    instances::hear(instance);
                }
                Ok((ServerMessage::End, _)) => instances::end_soon(),
                Ok((ServerMessage::Refused { why }, _)) => return Loss::Expelled(why),
                Ok(_) => return Loss::Expelled("it broke the protocol".to_owned()),
                Err(ControlError::Closed) => return Loss::Ended,
                Err(ControlError::WouldBlock) => {}
                Err(error) => return Loss::Expelled(error.to_string()),
            }
        }
    }

    /// Says why the IOKernel is lost, and what the program does.
    fn reaction(&self, loss: &Loss) -> (String, String) {
        const CONTINUING: &str = "Continuing on ordinary cores, without network.";
        let why = match loss {
            Loss::Ended => "it ended".to_owned(),
            Loss::Expelled(why) => why.clone(),
        };
        let reaction = match (self.on_loss, loss, self.wait) {
            (OnIoKernelLoss::Exit, ..) => "Exiting: start one, and this program again.".to_owned(),
            (OnIoKernelLoss::Continue, ..) | (_, Loss::Expelled(_), _) => CONTINUING.to_owned(),
            (_, _, Some(wait)) => {
                format!("Waiting for one there; after {} s, without network.", wait.as_secs_f64())
            }
            (_, _, None) => "Waiting for one there.".to_owned(),
        };
        (why, reaction)
    }

    /// Lets the kthreads run on all cores of the process again. An IOKernel that ends does that
    /// itself; one that is killed leaves each kthread bound to the core that it was lent last.
    fn unbind(&self, runtime: &Runtime) {
        let Some(allowed) = &self.allowed else { return };
        for kthread in &runtime.kthreads {
            let tid = Pid::from_raw(kthread.os_tid.load(Ordering::Relaxed));
            // If this is refused, the kthread shares the core that it has.
            let _ = sched_setaffinity(tid, allowed);
        }
    }

    /// Registers with the next IOKernel at the same socket, once there is one. Writes `text` after
    /// the first attempt, which does not wait for what reads it.
    fn register_again(&mut self, runtime: &'static Runtime, began: Instant, text: &str) {
        let mut patience = Patience { stop: STOP_PATIENCE.0, ready: READY_PATIENCE.0 };
        let (mut pause, mut written, mut loss) = (DIALS.0, String::new(), Some(text));
        let mut report = None;
        loop {
            let left = match (self.wait, &report) {
                (Some(wait), None) => wait.saturating_sub(began.elapsed()),
                _ => Duration::MAX,
            };
            let tried = self.try_again(runtime, left, &mut patience);
            loss.take().into_iter().for_each(write);
            let Err(error) = tried else { break };
            let absent = is_absence(&error);
            let most = if report.is_some() { LATE_DIALS } else { DIALS.1 };
            pause = if absent { (pause * 2).min(most) } else { AFTER_REFUSAL.max(patience.stop) };
            let text = error.to_string();
            if !absent && text != written {
                write(&format!("tailwater: not attached again yet: {text}\n"));
                written = text;
            }
            match &mut report {
                None if self.wait.is_some_and(|wait| began.elapsed() + pause > wait) => {
                    self.stop_waiting(runtime, began);
                    report = Some(Report { at: began.elapsed() + REPORTS.0, interval: REPORTS.0 });
                }
                None => {}
                Some(report) => report.write_if_due(&self.path, began.elapsed()),
            }
            std::thread::sleep(pause);
        }
        if report.is_some() {
            net::set_link_up();
        }
    }

    /// Lets the program's calls fail that waited for another IOKernel.
    fn stop_waiting(&self, runtime: &Runtime, began: Instant) {
        // An IOKernel that has not answered may have bound kthreads since.
        self.unbind(runtime);
        runtime.give_up_waiting();
        let after = began.elapsed().as_millis();
        write(&format!(
            "tailwater: no IOKernel took this program at {} in {after} ms. Continuing on ordinary cores, without \
             network, until one does.\n",
            self.path
        ));
        net::set_link_down();
    }

    /// Tries once to register, which is to take no longer than `left`.
    fn try_again(
        &mut self,
        runtime: &'static Runtime,
        left: Duration,
        patience: &mut Patience,
    ) -> Result<(), AttachError> {
        let control = dial(&self.path, ANSWER_TIMEOUT.min(left))?;
        // Before the IOKernel makes a region that would not be used.
        if !rejoin::all_respond(runtime, RESPONSE_PATIENCE.min(left)) {
            return Err(self.no_poll_point());
        }
        let old = &self.registration.welcome;
        let returns = self.request.ip.is_none();
        let request = Register { ip: Some(old.ip), returns, ..self.request.clone() };
        let Accepted { welcome, region, doorbell, places } = ask(&control, &self.path, &request)?;
        if !has_same_addresses(&welcome, old) {
            let place = |w: &Welcome| {
                format!(
                    "{}/{}, gateway {:?}, IPv6 {:?}, MAC {:x?}, MTU {}",
                    w.ip, w.prefix_len, w.gateway, w.ipv6, w.mac, w.mtu
                )
            };
            let what = format!(
                "other addresses than before: {}, and not {}; give it the network and `macs` of the one before",
                place(&welcome),
                place(old)
            );
            return Err(broken(&self.path, what));
        }
        let iokernel = runtime.iokernel.expect("a runtime that had an IOKernel");
        let next = iokernel.region.successor(region).map_err(unusable(&self.path))?;
        let awaits = runtime.awaits_iokernel();
        let Some(stopped) = rejoin::stop_all(runtime, patience.stop.min(left)) else {
            patience.stop = (patience.stop * 2).min(STOP_PATIENCE.1);
            return Err(self.no_poll_point());
        };
        iokernel
            .renew(welcome.raise, welcome.managed_cores.len(), &doorbell)
            .map_err(unusable(&self.path))?;
        // Before a kthread sleeps again. After any other error the IOKernel wakes them.
        if let Err(error @ MemoryError::Gone { .. }) = iokernel.set_wake_places(places) {
            exit(&format!("tailwater: {error}\n"));
        }
        match stopped.rejoin(next) {
            Err(error @ MemoryError::Gone { .. }) => exit(&format!("tailwater: {error}\n")),
            moved => moved.map_err(unusable(&self.path))?,
        }
        self.leave_managed_cores(runtime, &welcome);
        // All kthreads wait for a core by now.
        let announced = limit_answers(&control, &self.path, patience.ready)
            .and_then(|()| announce(&control, &self.path, tids(runtime)));
        if let Err(error) = announced {
            patience.ready = (patience.ready * 2).min(READY_PATIENCE.1);
            // An IOKernel that lives is not to lend cores to an orphan.
            let _ = shutdown(&control, Shutdown::Both);
            self.unbind(runtime);
            runtime.orphan(awaits);
            return Err(error);
        }
        if !self.request.instance.is_only() {
            instances::keep(&control);
        }
        net::use_ports(welcome.outgoing);
        self.registration = Registration { control, welcome };
        // Without memory for a stack, segments wait for the timers of their connections.
        let _ = crate::thread::Builder::new().spawn(net::resume);
        Ok(())
    }

    /// Moves all threads that are no kthreads off the cores that the next IOKernel manages, and
    /// back to those that it does not. A thread of another affinity than it was given before has
    /// chosen that, and keeps it.
    fn leave_managed_cores(&mut self, runtime: &Runtime, welcome: &Welcome) {
        let (Some(allowed), Some(before)) = (self.allowed, self.others) else { return };
        let now = unmanaged(allowed, welcome);
        if before == now {
            return;
        }
        self.others = Some(now);
        let kthreads = tids(runtime);
        // A thread that is started meanwhile may have the affinity of one that is not moved yet.
        for _ in 0..MOVES {
            let mut moved = false;
            for tid in threads().filter(|tid| !kthreads.contains(tid)) {
                let tid = Pid::from_raw(tid);
                if sched_getaffinity(tid) == Ok(before) {
                    // If this fails, the thread shares a core with a kthread.
                    moved |= sched_setaffinity(tid, &now).is_ok();
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn no_poll_point(&self) -> AttachError {
        let what = "a kthread of this program reached no poll point for too long: a long no_preempt section, or \
                    Linux did not run it";
        broken(&self.path, what.to_owned())
    }
}

/// Returns the thread ids of the kthreads.
fn tids(runtime: &Runtime) -> Vec<i32> {
    runtime.kthreads.iter().map(|kthread| kthread.os_tid.load(Ordering::Relaxed)).collect()
}

/// Returns the ids of the threads of this process; none where they cannot be read.
fn threads() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Writes to standard error, if that takes the text soon.
///
/// Not `eprintln!`: a user thread may hold the lock of standard error, and be preempted.
fn write(text: &str) {
    print_within(text, WRITE_PATIENCE);
}

/// Writes why, and ends the process.
fn exit(why: &str) -> ! {
    write(why);
    // Not `exit`: its handlers may wait for locks of threads that do not run.
    // SAFETY: the call asks for nothing.
    unsafe { libc::_exit(OnIoKernelLoss::EXIT_STATUS) }
}

/// Returns whether the error says that there is no IOKernel at the moment, or that it has just
/// ended.
fn is_absence(error: &AttachError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
    match error {
        AttachError::Closed { .. } => true,
        AttachError::Socket { source, .. } => {
            matches!(source.kind(), NotFound | ConnectionRefused | ConnectionReset | BrokenPipe)
        }
        _ => false,
    }
}

/// Returns whether the network is as it was: the stack and its peers keep the addresses.
fn has_same_addresses(new: &Welcome, old: &Welcome) -> bool {
    let network = |w: &Welcome| (w.ip, w.prefix_len, w.gateway, w.ipv6, w.mac, w.mtu);
    network(new) == network(old)
}
