//! One direction of a path.

use core::time::Duration;
use std::collections::BTreeMap;

use tailwater_tcp::{EcnCodepoint, Instant, Seq};

use crate::dice::Dice;

/// Bytes of an IPv4 header.
const IPV4_HEADER: u16 = 20;
/// Packets under way at most, whatever the plan says.
const MAX_PACKETS: usize = 4_096;

#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// Bytes a second; zero is without limit.
    pub rate: u64,
    /// Bytes of the IP header, which takes time on the link as the segment does.
    pub ip_header: u16,
    pub delay: Duration,
    /// Bytes that may wait, where there is a rate.
    pub queue: u64,
    /// And the number from which on they are marked, if they may be; zero is never.
    pub mark_from: u64,
    /// In parts of a million.
    pub loss_per_million: u32,
    /// In parts of a thousand, each.
    pub reordering: u32,
    pub duplication: u32,
    pub corruption: u32,
    /// From this moment on, packets carry at most so much behind the headers.
    pub shrinks: Option<(Instant, u16)>,
    /// From this moment on nothing arrives.
    pub dies: Option<Instant>,
}

impl LinkPlan {
    /// Loses nothing.
    pub fn perfect(delay: Duration) -> Self {
        Self {
            rate: 0,
            ip_header: IPV4_HEADER,
            delay,
            queue: 0,
            mark_from: 0,
            loss_per_million: 0,
            reordering: 0,
            duplication: 0,
            corruption: 0,
            shrinks: None,
            dies: None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Packet {
    Segment {
        bytes: Vec<u8>,
        ecn: EcnCodepoint,
    },
    /// Damaged, and found out by the checksum: only a parser sees it.
    Damaged {
        bytes: Vec<u8>,
    },
    /// To the sender of a packet too large, which began with `quoted`: the next link takes so much.
    TooBig {
        path_mss: u16,
        quoted: Seq,
    },
}

#[derive(Debug)]
pub struct Link {
    pub plan: LinkPlan,
    dice: Dice,
    under_way: BTreeMap<(Instant, u64), Packet>,
    number: u64,
    /// When the last byte accepted so far has left.
    free_at: Instant,
    pub dropped: u64,
}

impl Link {
    pub fn new(plan: LinkPlan, seed: u64) -> Self {
        Self {
            plan,
            dice: Dice(seed),
            under_way: BTreeMap::new(),
            number: 0,
            free_at: Instant(0),
            dropped: 0,
        }
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|(&(at, _), _)| at)
    }

    pub fn arrive(&mut self, now: Instant) -> Option<Packet> {
        let entry = self.under_way.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    /// Takes a packet; what comes back is for its sender, at once, from a router in front of the
    /// link.
    pub fn send(&mut self, now: Instant, bytes: &[u8], mut ecn: EcnCodepoint) -> Option<Packet> {
        let plan = &self.plan;
        if plan.dies.is_some_and(|at| now >= at) || self.under_way.len() >= MAX_PACKETS {
            self.dropped += 1;
            return None;
        }
        if let Some((_, path_mss)) = plan.shrinks.filter(|&(at, _)| now >= at)
            && bytes.len() > usize::from(path_mss) + 20
        {
            let quoted = Seq(u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
            // One in ten of a router's answers is lost.
            return (!self.dice.one_in(10)).then_some(Packet::TooBig { path_mss, quoted });
        }
        let mut leaves = now;
        if plan.rate > 0 {
            let waiting = (self.free_at - now).as_nanos() as u64 * plan.rate / 1_000_000_000;
            if waiting > plan.queue {
                self.dropped += 1;
                return None;
            }
            if plan.mark_from > 0 && waiting >= plan.mark_from && ecn != EcnCodepoint::NotEct {
                ecn = EcnCodepoint::Ce;
            }
            let wire = bytes.len() as u64 + u64::from(plan.ip_header);
            self.free_at = self.free_at.max(now) + Duration::from_nanos(wire * 1_000_000_000 / plan.rate);
            leaves = self.free_at;
        }
        if self.dice.below(1_000_000) < u64::from(plan.loss_per_million) {
            self.dropped += 1;
            return None;
        }
        let copies = if self.dice.per_mille(plan.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let mut at = leaves + self.plan.delay;
            if self.dice.per_mille(self.plan.reordering) {
                at = at + self.dice.up_to(self.plan.delay * 2 + Duration::from_micros(100));
            }
            let packet = if self.dice.per_mille(self.plan.corruption) {
                Packet::Damaged { bytes: self.damage(bytes.to_vec()) }
            } else {
                Packet::Segment { bytes: bytes.to_vec(), ecn }
            };
            self.number += 1;
            self.under_way.insert((at, self.number), packet);
        }
        None
    }

    fn damage(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.dice.between(1, 4) {
            let at = self.dice.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.dice.below(8);
        }
        if self.dice.one_in(4) {
            let len = self.dice.below(bytes.len() as u64) as usize;
            bytes.truncate(len);
        }
        bytes
    }
}
