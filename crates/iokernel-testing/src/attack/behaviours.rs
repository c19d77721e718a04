//! Behaviours of attackers' kthreads on a core.

use core::hint::spin_loop;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tailwater_shm::{Cycles, clock};
use tailwater_wire::{MacAddr, checksum};

use crate::kthread::{Behaviour, RawKthread, Step};
use crate::wire::{Endpoint, UDP_HEADERS, udp};

/// What an attacker does that always has work, and so wants each core that it gives up back.
pub(super) trait Restless: Send {
    /// As [`Behaviour::step`].
    fn step(&mut self, kthread: &mut RawKthread) -> Step;
}

impl<T: Restless> Behaviour for T {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        Restless::step(self, kthread)
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        true
    }

    fn started(&mut self, kthread: &mut RawKthread, _: u64) {
        kthread.submitted().store(0, Ordering::Relaxed);
        kthread.set_queued(0);
    }

    fn ceding(&mut self, kthread: &mut RawKthread) {
        kthread.set_queued(1);
    }
}

/// Sends frames as fast as its ring takes them: to others, or with an address that is not its own.
pub(super) struct Flood {
    pub(super) to: Option<(MacAddr, Ipv4Addr)>,
}

impl Restless for Flood {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let own = kthread.endpoint();
        let foreign = Endpoint { ip: Ipv4Addr::new(10, 77, 0, 99), ..own };
        let (from, to) = match self.to {
            Some((mac, ip)) => (own, Endpoint { mac, ip, port: 7 }),
            None => (foreign, own),
        };
        let frame = udp(from, to, &[0; 32]);
        while send(kthread, &frame) {}
        Step::Busy
    }
}

/// Leaves the work for which it is lent a core where it is.
pub(super) struct Fickle;

impl Behaviour for Fickle {
    fn step(&mut self, _: &mut RawKthread) -> Step {
        Step::Nothing
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        false
    }
}

/// Keeps each core for longer than a kthread may, and is there for the next one at once.
pub(super) struct Late;

/// Longer than a kthread takes to be bypassed.
const KEPT: Duration = Duration::from_millis(3);

impl Restless for Late {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let began = Instant::now();
        while began.elapsed() < KEPT && !kthread.shared.stopping() {
            spin_loop();
        }
        Step::Busy
    }
}

/// Keeps each core without using it, whatever the signals: it sleeps.
pub(super) struct Asleep;

/// Time between two looks of [`Asleep`] whether its program ends.
const NAP: Duration = Duration::from_millis(50);

impl Behaviour for Asleep {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        while !kthread.shared.stopping() {
            std::thread::sleep(NAP);
        }
        Step::Busy
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        true
    }

    fn started(&mut self, kthread: &mut RawKthread, _: u64) {
        // There is more for the next kthread.
        kthread.set_queued(1);
    }
}

/// Sends a frame to a program now and then, and has a core for that only.
pub(super) struct Pings {
    pub(super) to: Ipv4Addr,
    /// When the next one is due.
    pub(super) next: Cycles,
}

/// Time between two frames of [`Pings`], in nanoseconds.
const PING_PAUSE_NS: u64 = 1_000_000;

impl Behaviour for Pings {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let now = clock::now();
        if now < self.next {
            return Step::Nothing;
        }
        self.next = now + kthread.clock.from_ns(PING_PAUSE_NS);
        kthread.words().status.next_timer.store(self.next, Ordering::Relaxed);
        let frame = udp(kthread.endpoint(), at(self.to), &[0; 32]);
        send(kthread, &frame);
        Step::Busy
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        clock::now() >= self.next
    }

    fn started(&mut self, kthread: &mut RawKthread, _: u64) {
        kthread.submitted().store(0, Ordering::Relaxed);
    }
}

/// Tells a program, as a router would, that its packets to a client are too large ("fragmentation
/// needed", RFC 792, code 4).
pub(super) struct FalseErrors {
    pub(super) service: Ipv4Addr,
}

/// A host of the network that is no program.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);

impl FalseErrors {
    fn frame(&self, own: Endpoint) -> Vec<u8> {
        let service = at(self.service);
        // The packet that was too large, as the service had sent it to a client.
        let client = Endpoint { ip: CLIENT, port: 4000, ..own };
        let quoted = udp(Endpoint { port: 7, ..service }, client, &[0; 8]);
        let mut frame = udp(own, service, &quoted[14..]);
        // ICMP in place of UDP: type, code, checksum, unused, the next hop's MTU.
        frame[23] = 1;
        frame[34..UDP_HEADERS].copy_from_slice(&[3, 4, 0, 0, 0, 0, 0, 68]);
        frame[24..26].fill(0);
        for (from, to, sum) in [(14, 34, 24), (34, frame.len(), 36)] {
            let value = checksum(&frame[from..to]);
            frame[sum..sum + 2].copy_from_slice(&value.to_be_bytes());
        }
        frame
    }
}

impl Restless for FalseErrors {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let frame = self.frame(kthread.endpoint());
        while send(kthread, &frame) {}
        Step::Busy
    }
}

/// Returns the address of another program.
fn at(ip: Ipv4Addr) -> Endpoint {
    Endpoint { mac: MacAddr::derived(ip), ip, port: 7 }
}

/// Sends a frame; returns false if the ring is full.
fn send(kthread: &mut RawKthread, frame: &[u8]) -> bool {
    let Ok(mut slot) = kthread.egress.reserve(frame.len()) else { return false };
    slot.write(0, frame);
    slot.commit(0, 0, 0);
    kthread.ring_from_core();
    true
}
