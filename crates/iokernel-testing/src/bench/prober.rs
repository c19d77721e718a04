//! A port that sends one request at a time to an echo service and times the answers.
//!
//! Owns the schedule of a probe and its samples, and answers ARP: a service that has just
//! registered may miss the request that introduces the port, and then sends one itself. Runs in the
//! polling loop, so the time at which it injects is the time at which the allocator decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tailwater_ports::{Attachment, Context, Inject, Port, PortError};
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_wire::MacAddr;

use super::common::{BenchError, PATIENCE};
use crate::wire::{Endpoint, UDP_HEADERS, answer_arp, arp_request, udp};

const SELF: Endpoint =
    Endpoint { mac: MacAddr([2, 0, 0, 0, 0, 0xb]), ip: std::net::Ipv4Addr::new(10, 77, 255, 1), port: 7000 };
/// Time after which an unanswered request is sent again and counted as lost.
const LOST_AFTER_NS: u64 = 100_000_000;

/// A measurement.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    pub(super) target: Endpoint,
    /// Pause from an answer to the next request.
    pub(super) gap: Duration,
    pub(super) count: usize,
}

/// One answered request; nanoseconds from its injection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Until the service's thread began or resumed; `None` if it had been running all the time.
    pub(super) began: Option<u64>,
    /// Until the answer reached the port.
    pub(super) answered: u64,
}

/// The program's end.
pub(super) struct Handle {
    orders: SyncSender<Probe>,
    samples: Receiver<Vec<Sample>>,
    pending: Arc<AtomicBool>,
}

impl Handle {
    /// Makes one probe and waits for its samples.
    pub(super) fn measure(&self, probe: Probe) -> Result<Vec<Sample>, BenchError> {
        let too_slow = || BenchError::TooSlow { what: "a probe", limit: PATIENCE };
        self.orders.send(probe).map_err(|_| too_slow())?;
        // Release: pairs with the Acquire in `poll`.
        self.pending.store(true, Ordering::Release);
        self.samples.recv_timeout(PATIENCE).map_err(|_| too_slow())
    }
}

/// The port. See the module documentation.
pub(super) struct Prober {
    orders: Receiver<Probe>,
    samples: SyncSender<Vec<Sample>>,
    pending: Arc<AtomicBool>,
    clock: Clock,
    running: Option<Run>,
    /// The answer to the latest ARP request, until the next poll.
    arp: Option<Vec<u8>>,
}

struct Run {
    probe: Probe,
    /// The request without its number: building a frame takes a third of the measured time.
    frame: Vec<u8>,
    gap: Cycles,
    next: Cycles,
    sent: Option<(u64, Cycles)>,
    number: u64,
    done: Vec<Sample>,
}

pub(super) fn prober() -> (Prober, Handle) {
    let (orders_out, orders) = sync_channel(1);
    let (samples, samples_in) = sync_channel(1);
    let pending = Arc::new(AtomicBool::new(false));
    // The clock is set at start.
    let clock = Clock::from_hz(1_000_000_000);
    let port = Prober { orders, samples, pending: Arc::clone(&pending), clock, running: None, arp: None };
    (port, Handle { orders: orders_out, samples: samples_in, pending })
}

impl Port for Prober {
    fn name(&self) -> &'static str {
        "prober"
    }

    fn attachment(&self) -> Attachment {
        Attachment::Station { mac: SELF.mac, ip: Some(SELF.ip) }
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = context.clock;
        Ok(())
    }

    fn poll(&mut self, now: Cycles, _budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        // Relaxed, then Acquire: pairs with the Release in `measure`.
        if self.pending.load(Ordering::Relaxed) && self.pending.swap(false, Ordering::Acquire) {
            self.running = self.orders.try_recv().ok().map(|probe| Run {
                frame: udp(SELF, probe.target, &[0; 24]),
                gap: self.clock.from_ns(probe.gap.as_nanos() as u64),
                done: Vec::with_capacity(probe.count),
                next: now,
                sent: None,
                number: 0,
                probe,
            });
            if let Some(run) = &self.running {
                // A service with a network stack must know the address for its answers.
                switch.inject(&arp_request(SELF, run.probe.target));
            }
        }
        if let Some(answer) = self.arp.take() {
            switch.inject(&answer);
        }
        let Some(run) = &mut self.running else { return Ok(0) };
        let lost = self.clock.from_ns(LOST_AFTER_NS);
        let due = match run.sent {
            None => now >= run.next,
            Some((_, at)) => now.saturating_sub(at) > lost,
        };
        if !due {
            return Ok(0);
        }
        run.number += 1;
        run.sent = Some((run.number, now));
        run.frame[UDP_HEADERS + 16..].copy_from_slice(&run.number.to_le_bytes());
        switch.inject(&run.frame);
        Ok(1)
    }

    fn transmit(&mut self, _now: Cycles, frame: &[u8]) -> bool {
        let now = clock::now();
        let Some((began, number)) = decode(frame) else {
            self.arp = answer_arp(frame, SELF).or(self.arp.take());
            return true;
        };
        let Some(run) = &mut self.running else { return true };
        let Some((_, sent)) = run.sent.filter(|(expected, _)| *expected == number) else { return true };
        let ns = |at: Cycles| self.clock.to_ns(at.saturating_sub(sent));
        run.done.push(Sample { began: (began >= sent).then(|| ns(began)), answered: ns(now) });
        run.sent = None;
        run.next = now + run.gap;
        if run.done.len() == run.probe.count
            && let Some(run) = self.running.take()
        {
            // Fails if the samples are no longer awaited, after a timeout.
            let _ = self.samples.try_send(run.done);
        }
        true
    }

    fn next_event(&self) -> Option<Cycles> {
        if self.arp.is_some() { Some(0) } else { self.running.as_ref().map(|run| run.next) }
    }
}

/// Returns the service's time stamp of its start, and the request's number; `None` if the frame is
/// too short to be an answer.
fn decode(frame: &[u8]) -> Option<(Cycles, u64)> {
    let word = |at: usize| {
        Some(u64::from_le_bytes(frame.get(UDP_HEADERS + at..UDP_HEADERS + at + 8)?.try_into().ok()?))
    };
    Some((word(0)?, word(16)?))
}
