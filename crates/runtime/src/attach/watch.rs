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
//! | is there again, and ends before `Ready` | begins to wait anew, with the memory it got |
//! | is not there in time | goes on without network |

use super::{Accepted, Connection, ask, broken, unusable};
use crate::config::OnIoKernelLoss;
use crate::error::{AttachError, StartError};
use crate::ground::stderr::print;
use crate::net;
use crate::records::runtime::Runtime;
use crate::verbs::rejoin;
use core::sync::atomic::Ordering;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{Pid, sched_setaffinity};
use std::time::{Duration, Instant};
use tailwater_shm::control::{self, ControlError, Register, ServerMessage, Welcome};

/// Time between two attempts while no IOKernel listens, at first and at most: an attempt takes a
/// few microseconds.
const DIALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// Time between two attempts after one that was refused: each costs the IOKernel a region.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// Maximum time until all kthreads have stopped: longer than what runs without poll points in an
/// orderly program.
const STOP_PATIENCE: Duration = Duration::from_millis(200);

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
            while self.outlive(runtime) {}
            // Last: it takes the locks of all connections, and a thread that holds one may have
            // been parked.
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
        if matches!(loss, Loss::Ended) {
            self.unbind(runtime);
        }
        let (why, reaction) = self.reaction(&loss);
        // Not `eprintln!`: a user thread that was preempted while it held the lock of standard
        // error gets no core before `orphan`.
        print(&format!("tailwater: lost the IOKernel at {}: {why}. {reaction}\n", self.path));
        if self.on_loss == OnIoKernelLoss::Exit {
            // Not `exit`: its handlers may wait for locks in the same way.
            // SAFETY: the call asks for nothing.
            unsafe { libc::_exit(OnIoKernelLoss::EXIT_STATUS) }
        }
        let waits = self.on_loss == OnIoKernelLoss::Wait && matches!(loss, Loss::Ended);
        runtime.orphan(waits);
        if !waits {
            return false;
        }
        let back = self.register_again(runtime, began);
        let after = began.elapsed().as_millis();
        if back {
            print(&format!("tailwater: attached to the IOKernel at {} again after {after} ms\n", self.path));
        } else {
            print(&format!(
                "tailwater: no IOKernel took this program at {} in {after} ms. Continuing on ordinary cores, without \
                 network.\n",
                self.path
            ));
            runtime.give_up_waiting();
        }
        back
    }

    fn wait_for_loss(&self) -> Loss {
        let _ = set_socket_timeout(&self.control, Timeout::Recv, None);
        // The IOKernel sends nothing more, so this call returns when the connection ends.
        match control::receive::<ServerMessage>(&self.control) {
            Ok((ServerMessage::Refused { why }, _)) => Loss::Expelled(why),
            Ok(_) => Loss::Expelled("it broke the protocol".to_owned()),
            Err(ControlError::Closed) => Loss::Ended,
            Err(error) => Loss::Expelled(error.to_string()),
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
            (_, _, Some(wait)) => format!("Waiting {} s for one there.", wait.as_secs_f64()),
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

    /// Registers with the next IOKernel at the same socket, once there is one; false if there is
    /// none in time.
    fn register_again(&mut self, runtime: &'static Runtime, began: Instant) -> bool {
        let (mut pause, mut written) = (DIALS.0, String::new());
        loop {
            let error = match self.try_again(runtime) {
                Ok(()) => return true,
                Err(error) => error,
            };
            pause = if is_absence(&error) { (pause * 2).min(DIALS.1) } else { AFTER_REFUSAL };
            let text = error.to_string();
            if !is_absence(&error) && text != written {
                print(&format!("tailwater: not attached again yet: {text}\n"));
                written = text;
            }
            if self.wait.is_some_and(|wait| began.elapsed() + pause > wait) {
                return false;
            }
            std::thread::sleep(pause);
        }
    }

    fn try_again(&mut self, runtime: &'static Runtime) -> Result<(), AttachError> {
        let wish = Register { ip: Some(self.welcome.ip), ..self.wish.clone() };
        let Accepted { control, welcome, region, doorbell } = ask(&self.path, &wish)?;
        if !has_same_addresses(&welcome, &self.welcome) {
            let what = format!("other addresses than before: {welcome:?} and not {:?}", self.welcome);
            return Err(broken(&self.path, what));
        }
        let loan = runtime.loan.expect("a runtime that had an IOKernel");
        let next = loan.region.successor(region).map_err(unusable(&self.path))?;
        let Some(stopped) = rejoin::stop_all(runtime, STOP_PATIENCE) else {
            return Err(broken(&self.path, "a kthread reached no poll point for too long".to_owned()));
        };
        loan.renew(welcome.dedicated, &doorbell).map_err(unusable(&self.path))?;
        stopped.rejoin(next).map_err(unusable(&self.path))?;
        (self.control, self.welcome) = (control, welcome);
        let tids = runtime.kthreads.iter().map(|kthread| kthread.os_tid.load(Ordering::Relaxed)).collect();
        if let Err(error) = self.announce(tids) {
            self.unbind(runtime);
            runtime.orphan(true);
            return Err(error);
        }
        crate::thread::spawn(net::resume);
        Ok(())
    }
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
