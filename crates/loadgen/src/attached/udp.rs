//! UDP: one connected socket and one receiving user thread for each flow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tailwater::net::UdpSocket;
use tailwater::sync::{Mutex, PoisonError};
use tailwater::{thread, time};

use super::{GLANCE, NO_WAIT, SEND_BATCH, next_look, start_ns};
use crate::clock::Clock;
use crate::contact::{self, MAX_DATAGRAM};
use crate::control::Control;
use crate::generator::{Generator, ReplyOutcome};
use crate::kernel_udp::{Load, Target, UdpError, system};
use crate::plan::Plan;
use crate::protocol::Medium;
use crate::report::Measurement;

/// State shared by the threads of a run.
struct Run<'a> {
    generator: Mutex<Generator>,
    sockets: Vec<UdpSocket>,
    clock: Clock,
    control: &'a Control<'a>,
    over: AtomicBool,
}

/// Runs on the calling user thread and further ones.
pub(super) fn run(
    plan: &Plan,
    load: &Load,
    target: &Target,
    control: &Control<'_>,
) -> Result<Measurement, UdpError> {
    plan.check()?;
    let first = connect(target.server)?;
    first.set_read_timeout(Some(contact::INTERVAL)).map_err(system("set a socket's timeout"))?;
    contact::find_by_datagram(&*load.protocol, &first, target.server, target.wait, control.stop)?;
    if load.preload {
        contact::preload_by_datagram(&*load.protocol, &first, control.stop)?;
    }
    drop(first);
    let sockets = (0..plan.flows).map(|_| connect(target.server)).collect::<Result<Vec<_>, _>>()?;
    for socket in &sockets {
        let timeouts = socket.set_read_timeout(Some(GLANCE)).and(socket.set_write_timeout(Some(NO_WAIT)));
        timeouts.map_err(system("set a socket's timeout"))?;
    }
    let clock = Clock::start();
    let start_ns = start_ns(control, &clock).map_err(system("start together with the others"))?;
    let protocol = Arc::clone(&load.protocol);
    let generator = Generator::with_protocol(plan.clone(), protocol, Medium::Datagram, load.seed, start_ns)?;
    let run = Run { generator: Mutex::new(generator), sockets, clock, control, over: AtomicBool::new(false) };
    thread::scope(|scope| {
        for flow in 0..plan.flows {
            let run = &run;
            scope.spawn(move || run.receive(flow));
        }
        run.send();
        run.over.store(true, Relaxed);
    });
    let generator = run.generator.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(generator.finish(clock.now_ns()))
}

fn connect(server: SocketAddr) -> Result<UdpSocket, UdpError> {
    let socket = UdpSocket::bind(contact::unspecified(server)).map_err(system("open a UDP socket"))?;
    socket.connect(server).map_err(system("connect a UDP socket to the server"))?;
    Ok(socket)
}

impl Run<'_> {
    /// Sends what is due until the run is over.
    fn send(&self) {
        let mut bytes = Vec::with_capacity(MAX_DATAGRAM);
        loop {
            let mut generator = self.generator.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.control.turn_after_sleep(&mut generator, self.clock.now_ns()) {
                return;
            }
            for _ in 0..SEND_BATCH {
                let Some(outgoing) = generator.poll_due(self.clock.now_ns()) else { break };
                bytes.clear();
                generator.encode(&outgoing, &mut bytes);
                if self.sockets[usize::from(outgoing.flow)].send(&bytes).is_err() {
                    generator.handle_send_failure(&outgoing, self.clock.now_ns());
                }
            }
            let next = next_look(&generator, &self.clock);
            drop(generator);
            time::sleep_until(next);
        }
    }

    /// Receives the answers of `flow` until the run is over.
    fn receive(&self, flow: u16) {
        let mut bytes = vec![0; MAX_DATAGRAM];
        while !self.over.load(Relaxed) {
            // An error reports the fate of an earlier request, which its timeout settles, or that
            // nothing arrived for a while.
            let Ok(len) = self.sockets[usize::from(flow)].recv(&mut bytes) else { continue };
            let now_ns = self.clock.now_ns();
            let mut generator = self.generator.lock().unwrap_or_else(PoisonError::into_inner);
            let _: ReplyOutcome = generator.handle_reply(now_ns, flow, &bytes[..len]);
        }
    }
}
