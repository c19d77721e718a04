//! Behaviours of raw kthreads, good and bad.

use core::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_shm::ring::Next;
use tailwater_shm::{Cycles, clock};

use crate::kthread::{Behaviour, RawKthread, Step};
use crate::wire::{UDP_HEADERS, answer_arp, turn_around};

/// Frames answered per step.
const BATCH: usize = 16;

/// Answers every UDP frame, and questions for its MAC address (ARP). Into payloads of 16 bytes or
/// more it writes two time stamps (TSC, little endian): when its tenancy began or it last resumed,
/// and when it read the frame.
#[derive(Debug, Default)]
pub struct Echo {
    began: Cycles,
    /// When its tenancy began or it last resumed, for other threads to read.
    pub last_began: Arc<AtomicU64>,
    /// UDP frames answered.
    pub answered: Arc<AtomicU64>,
}

impl Behaviour for Echo {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let (mut done, mut answers) = (0, 0);
        let (mut is_full, own) = (false, kthread.endpoint());
        while done < BATCH {
            // A ring error by the IOKernel would be a defect of ours.
            let record = match kthread.ingress.next().expect("the IOKernel keeps the ring protocol") {
                None => break,
                Some(Next::Frame(record)) => record,
                // Echoes are in no order.
                Some(Next::Fence(fence)) => {
                    fence.advance();
                    continue;
                }
            };
            // A request for whose answer there is no room waits, as it would in a socket.
            let Ok(mut slot) = kthread.egress.reserve(record.len()) else {
                is_full = true;
                break;
            };
            let (mut frame, hash) = (record.copy_frame(&mut kthread.buffer).to_vec(), record.hash());
            record.advance();
            done += 1;
            if turn_around(&mut frame) {
                if frame.len() >= UDP_HEADERS + 16 {
                    // The payload changes: no UDP checksum instead of a wrong one (RFC 768).
                    frame[40..42].fill(0);
                    frame[UDP_HEADERS..UDP_HEADERS + 8].copy_from_slice(&self.began.to_le_bytes());
                    frame[UDP_HEADERS + 8..UDP_HEADERS + 16].copy_from_slice(&clock::now().to_le_bytes());
                }
                answers += 1;
            } else if let Some(reply) = answer_arp(&frame, own) {
                // What is behind it pads the frame.
                frame[..reply.len()].copy_from_slice(&reply);
            } else {
                continue;
            }
            slot.write(0, &frame);
            slot.commit(hash, 0, clock::now());
            kthread.ring_from_core();
        }
        self.answered.fetch_add(answers, Ordering::Relaxed);
        kthread.ingress.publish();
        if kthread.submitted().swap(0, Ordering::Acquire) > 0 || done > 0 || is_full {
            Step::Busy
        } else {
            Step::Nothing
        }
    }

    fn has_work(&self, kthread: &RawKthread) -> bool {
        kthread.ingress.has_record() || kthread.submitted().load(Ordering::Relaxed) > 0
    }

    fn started(&mut self, _kthread: &mut RawKthread, now: Cycles) {
        self.began = now;
        self.last_began.store(now, Ordering::Relaxed);
    }
}

impl Echo {
    /// Returns one whose starts can be watched.
    pub fn watched(last_began: Arc<AtomicU64>) -> Self {
        Self { last_began, ..Self::default() }
    }
}

/// A batch job that polls: always busy, cedes when asked, and has work left.
#[derive(Debug, Default)]
pub struct Burn {
    /// Steps of about 0.1 us.
    pub steps: Arc<AtomicU64>,
}

impl Behaviour for Burn {
    fn step(&mut self, _kthread: &mut RawKthread) -> Step {
        for _ in 0..8 {
            spin_loop();
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        Step::Busy
    }

    fn has_work(&self, _kthread: &RawKthread) -> bool {
        true
    }

    fn started(&mut self, kthread: &mut RawKthread, _now: Cycles) {
        kthread.set_queued(0);
        kthread.submitted().store(0, Ordering::Relaxed);
    }

    fn ceding(&mut self, kthread: &mut RawKthread) {
        // Its one user thread now waits in the run queue.
        kthread.set_queued(1);
    }
}

/// A batch job that does not poll; it stops at the preempt signal, or never.
#[derive(Debug, Default)]
pub struct Hog {
    /// True if it stops at the signal.
    pub heeds_signal: bool,
    /// Turns of its loop.
    pub turns: Arc<AtomicU64>,
}

impl Behaviour for Hog {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        crate::sys::take_preempt_signal();
        while !kthread.shared.stopping() {
            self.turns.fetch_add(1, Ordering::Relaxed);
            if crate::sys::take_preempt_signal() && self.heeds_signal {
                break;
            }
            spin_loop();
        }
        Step::Busy
    }

    fn has_work(&self, _kthread: &RawKthread) -> bool {
        true
    }

    fn started(&mut self, kthread: &mut RawKthread, _now: Cycles) {
        crate::sys::note_preempt_signals();
        kthread.set_queued(0);
        kthread.submitted().store(0, Ordering::Relaxed);
    }

    fn ceding(&mut self, kthread: &mut RawKthread) {
        kthread.set_queued(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kthread::raw_kthread;
    use crate::wire::{Endpoint, udp};
    use std::net::Ipv4Addr;
    use tailwater_wire::MacAddr;

    #[test]
    fn requests_for_whose_answers_there_is_no_room_are_answered_later() {
        let (mut kthread, mut iokernel) = raw_kthread(1 << 15);
        let end = |n| Endpoint { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: Ipv4Addr::new(10, 77, 0, n), port: 7 };
        let request = udp(end(1), end(2), &[0; 32]);
        let (mut echo, mut asked) = (Echo::default(), 0);
        let mut read = || {
            let mut answers = 0;
            while let Ok(Some(record)) = iokernel.egress.peek() {
                record.advance();
                answers += 1;
            }
            iokernel.egress.publish();
            answers
        };
        let mut answered = 0;
        for _ in 0..3 {
            // More than one ring holds.
            for _ in 0..400 {
                let Ok(mut slot) = iokernel.ingress.reserve(request.len()) else { break };
                slot.write(0, &request);
                slot.commit(0, 0, 0);
                asked += 1;
                assert_eq!(echo.step(&mut kthread), Step::Busy);
            }
            answered += read();
        }
        for _ in 0..100 {
            echo.step(&mut kthread);
            answered += read();
        }
        assert!(asked > 600, "{asked}");
        assert_eq!(answered, asked);
        assert_eq!(echo.answered.load(Ordering::Relaxed), asked);
    }
}
