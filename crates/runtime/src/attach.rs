//! Attachment to an IOKernel: registration, the mapped memory, and the watch over the connection.
//!
//! Owns the control socket for the life of the process: the IOKernel knows a runtime is gone when this socket closes, and
//! the other way round. All of it runs on ordinary OS threads.

use crate::config::Config;
use crate::net::NetConfig;
use crate::runtime::{Runtime, StartError};
use core::sync::atomic::{Ordering, fence};
use rustix::fd::OwnedFd;
use std::time::Duration;
use tailwater_shm::control::{self, ClientMessage, ControlError, Register, ServerMessage, Welcome};
use tailwater_shm::layout::{Region, VERSION};
use tailwater_shm::lot::{ParkingLot, SlotId};
use tailwater_shm::memory::Mapping;
use tailwater_shm::ring::{Consumer, Producer};
use tailwater_shm::trace::TraceWriter;

/// How long the IOKernel may take to answer. Its control thread is never busy for long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What an IOKernel gave this process.
#[derive(Debug)]
pub struct Attachment {
    /// The runtime's region.
    pub region: Region,
    /// Everybody's parking slots.
    pub lot: ParkingLot,
    /// This runtime's slots, by kthread.
    pub slots: Vec<SlotId>,
    welcome: Welcome,
    doorbell: OwnedFd,
    control: OwnedFd,
    path: String,
}

fn failed(path: &str) -> impl Fn(&dyn std::fmt::Display) -> StartError {
    move |e| StartError::Attach(format!("{path}: {e}"))
}

impl Attachment {
    /// Registers with the IOKernel at `path` and maps what it sends.
    ///
    /// # Errors
    /// Nobody listens there, the registration was refused (with the reason), or the memory is of another version.
    pub fn register(path: &str, config: &Config) -> Result<Self, StartError> {
        let failed = failed(path);
        let control = control::dial(path).map_err(|e| StartError::Attach(e.to_string()))?;
        rustix::net::sockopt::set_socket_timeout(
            &control,
            rustix::net::sockopt::Timeout::Recv,
            Some(ANSWER_TIMEOUT),
        )
        .map_err(|e| failed(&e))?;
        let register = Register {
            version: VERSION,
            name: config.name.clone(),
            kthreads: config.kthreads,
            guaranteed: config.guaranteed,
            class: config.class,
            ring_bytes: config.ring_bytes,
            ip: config.ip,
            mac: None,
        };
        control::send(&control, &ClientMessage::Register(register), &[]).map_err(|e| failed(&e))?;
        let (welcome, fds) = match answer(&control, path)? {
            (ServerMessage::Welcome(welcome), fds) => (welcome, fds),
            (other, _) => return Err(failed(&format!("unexpected answer to the registration: {other:?}"))),
        };
        let [region, lot, doorbell] = <[OwnedFd; 3]>::try_from(fds)
            .map_err(|fds| failed(&format!("{} descriptors came with the welcome, 3 expected", fds.len())))?;
        let region = Region::attach(Mapping::new(region, "region").map_err(|e| failed(&e))?)
            .map_err(|e| failed(&e))?;
        let lot = Mapping::new(lot, "parking lot").and_then(ParkingLot::new).map_err(|e| failed(&e))?;
        if region.spec().kthreads() != config.kthreads || welcome.slots.len() != usize::from(config.kthreads)
        {
            return Err(failed(&"the region is not for as many kthreads as requested"));
        }
        Ok(Self {
            region,
            lot,
            slots: welcome.slots.clone(),
            welcome,
            doorbell,
            control,
            path: path.to_owned(),
        })
    }

    /// The ends of kthread `index`'s rings that belong to the runtime, and of its buffer of traced steps. Called once per
    /// kthread.
    pub fn ends(&self, index: u16) -> (Producer, Consumer, TraceWriter) {
        let (egress, ingress) = (self.region.egress(index), self.region.ingress(index));
        (Producer::new(egress), Consumer::new(ingress), self.region.trace_writer(index))
    }

    /// Addresses for the network stack.
    pub fn net_config(&self) -> NetConfig {
        NetConfig::from(&self.welcome)
    }

    /// Tells the IOKernel the thread ids of the kthreads, after which it may grant cores, and moves the process's other
    /// threads off the managed cores.
    ///
    /// # Errors
    /// The IOKernel refused the threads or went away.
    pub fn announce(&self, tids: Vec<i32>) -> Result<(), StartError> {
        self.leave_managed_cores();
        control::send(&self.control, &ClientMessage::Kthreads { tids }, &[])
            .map_err(|e| failed(&self.path)(&e))?;
        match answer(&self.control, &self.path)? {
            (ServerMessage::Ready, _) => Ok(()),
            (other, _) => Err(failed(&self.path)(&format!("unexpected answer to the kthreads: {other:?}"))),
        }
    }

    /// Keeps the calling thread (and those it starts) off the managed cores, unless there are no others.
    fn leave_managed_cores(&self) {
        let Ok(mut cores) = rustix::thread::sched_getaffinity(None) else { return };
        for &core in &self.welcome.managed_cores {
            cores.unset(core as usize);
        }
        if cores.count() > 0 {
            // A refusal only costs the kthreads some company.
            let _ = rustix::thread::sched_setaffinity(None, &cores);
        }
    }

    /// Starts the thread that notices the IOKernel's end.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn watch(&'static self, runtime: &'static Runtime) -> Result<(), StartError> {
        let watch = move || {
            let _ = rustix::net::sockopt::set_socket_timeout(
                &self.control,
                rustix::net::sockopt::Timeout::Recv,
                None,
            );
            // The IOKernel says nothing more; whatever ends this call ends the loan.
            let why = match control::receive::<ServerMessage>(&self.control) {
                Ok((ServerMessage::Refused { why }, _)) => why,
                Ok(_) => "it broke the protocol".to_owned(),
                Err(ControlError::Closed) => "it ended".to_owned(),
                Err(e) => e.to_string(),
            };
            eprintln!(
                "tailwater: lost the IOKernel at {}: {why}. Continuing on ordinary cores, without network.",
                self.path
            );
            runtime.orphan();
        };
        std::thread::Builder::new()
            .name("tailwater/watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(|source| StartError::System { action: "start the watch thread", source })
    }

    /// Wakes the IOKernel if it sleeps. Called after work was published that it should grant a core for.
    pub fn ring_doorbell(&self) {
        // Store-load: our publication before its `asleep`; pairs with the IOKernel's fence before its last look.
        fence(Ordering::SeqCst);
        if self.region.asleep().load(Ordering::Relaxed) != 0 {
            // A full counter means that it is ringing already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

fn answer(control: &OwnedFd, path: &str) -> Result<(ServerMessage, Vec<OwnedFd>), StartError> {
    match control::receive(control) {
        Ok((ServerMessage::Refused { why }, _)) => Err(failed(path)(&why)),
        Ok(answer) => Ok(answer),
        Err(ControlError::WouldBlock) => Err(failed(path)(&"no answer within ten seconds")),
        Err(e) => Err(failed(path)(&e)),
    }
}
