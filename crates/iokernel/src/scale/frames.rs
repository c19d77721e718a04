//! Numbered frames to services whose cores change hands all the time, beside batch jobs that want
//! every core.
//!
//! Owns the programs: a kthread of a service reads a few frames of a round and parks when there are
//! none, so the services' kthreads come and go with the bursts, and their flow groups move. Counts
//! what never happens: a frame that is lost or overtakes one of its flow, and a core that stays
//! free. Time is an argument: the counts do not depend on the machine's speed.

use std::net::Ipv4Addr;
use tailwater_ports::Attachment;
use tailwater_ports::memory::{MemoryPeer, pair};
use tailwater_shm::KthreadState;
use tailwater_shm::ring::{FrameBuffer, Next};
use tailwater_wire::{
    Addresses, DEFAULT_TTL, ETHERNET_HEADER, Fragmenting, IPV4_HEADER, IpProtocol, MacAddr, PacketInfo,
    Stations, UDP_HEADER,
};

use super::{Machine, PATIENCE, Program, Shape};

/// Programs: every second one is a service.
const PROGRAMS: u16 = 8;
/// Flows to each service.
const FLOWS: usize = 64;
/// Frames on their way, few enough for every ring.
const WINDOW: u64 = 128;
/// Frames that a kthread reads between two looks.
const READ: usize = 4;
/// Looks within which a free core is lent: one notices, one grants, and the next kthread starts.
const LOOKS: u32 = 10;
const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const HEADERS: usize = ETHERNET_HEADER + IPV4_HEADER + UDP_HEADER;

/// What became of the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Frames that the services have read.
    pub delivered: u64,
    /// Frames that none of them has read.
    pub lost: u64,
    /// Frames that came before an earlier one of their flow, or after a later one.
    pub reordered: u64,
    /// Looks at which a core was free that had been for longer than a few.
    pub looks_beside_free_core: u64,
    /// Flow groups whose frames went on to another kthread.
    pub moved_groups: u64,
    /// Of these, groups whose earlier frames still waited.
    pub fenced_groups: u64,
    /// Looks of the allocator.
    pub looks: u64,
}

/// Sends `count` frames to four services that share `cores` cores with four batch jobs.
///
/// # Panics
/// If the kernel has no memory or descriptors left, or frames neither arrive nor are dropped.
pub fn deliver(cores: u16, count: u64) -> Delivery {
    let (port, station) =
        pair("station", Attachment::Station { mac: STATION, ip: None }).expect("a descriptor");
    // What the loop costs is charged by its own time, not by that of this machine.
    let (machine, programs) = Machine::new(Shape { cores, programs: PROGRAMS }, vec![Box::new(port)], || 0);
    let (services, batch) = programs.into_iter().enumerate().partition::<Vec<_>, _>(|(at, _)| at % 2 == 0);
    let without_number =
        |programs: Vec<(usize, Program)>| programs.into_iter().map(|(_, program)| program).collect();
    let mut run = Run {
        machine,
        station,
        flows: vec![Flow::default(); FLOWS * services.len()],
        services: without_number(services),
        batch: without_number(batch),
        random: Random(37),
        buffer: FrameBuffer::new(),
        free_for: 0,
        seen: Delivery::default(),
    };
    run.all(count);
    run.seen
}

/// The next frame of a flow, by sender and receiver.
#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    to_send: u32,
    to_arrive: u32,
}

/// A linear congruential generator (Knuth's MMIX), whose upper bits are used.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

struct Run {
    machine: Machine,
    station: MemoryPeer,
    services: Vec<Program>,
    batch: Vec<Program>,
    flows: Vec<Flow>,
    random: Random,
    buffer: FrameBuffer,
    /// Looks for which a core has been free.
    free_for: u32,
    seen: Delivery,
}

impl Run {
    fn all(&mut self, count: u64) {
        let (mut sent, mut patience) = (0, PATIENCE);
        while sent < count || (self.seen.delivered < count && patience > 0) {
            let before = self.seen.delivered;
            sent += self.burst((WINDOW - (sent - before).min(WINDOW)).min(count - sent));
            self.look();
            patience = if self.seen.delivered > before { PATIENCE } else { patience - 1 };
            assert!(patience > 0 || sent == count, "frames do not arrive: {:?}", self.seen);
        }
        let counters = &self.machine.world.stats.switch;
        self.seen.lost = count - self.seen.delivered;
        self.seen.moved_groups = counters.moved_groups.get();
        self.seen.fenced_groups = counters.fenced_groups.get();
    }

    /// Sends at most so many frames to one service; returns their number.
    fn burst(&mut self, room: u64) -> u64 {
        let service = self.random.below(self.services.len());
        let count = self.random.below(room as usize + 1);
        for _ in 0..count {
            let flow = service * FLOWS + self.random.below(FLOWS);
            let number = &mut self.flows[flow].to_send;
            // The first service is the first program, the second one the third.
            let frame = frame(&address(2 * service), flow, *number);
            *number += 1;
            assert!(self.station.send(&frame), "the port has room for a window");
        }
        count as u64
    }

    /// Lets the IOKernel look, and the programs go on until the next look.
    fn look(&mut self) {
        self.machine.iterate();
        self.seen.looks += 1;
        self.free_for = if self.machine.allocator.has_free_core() { self.free_for + 1 } else { 0 };
        self.seen.looks_beside_free_core += u64::from(self.free_for > LOOKS);
        for job in &mut self.batch {
            job.go();
            job.demand(1);
        }
        for service in &mut self.services {
            service.go();
            serve(service, &mut self.flows, &mut self.seen, &mut self.buffer);
        }
    }
}

/// Lets each kthread of a service that has a core read frames, or park.
fn serve(service: &mut Program, flows: &mut [Flow], seen: &mut Delivery, buffer: &mut FrameBuffer) {
    for k in 0..service.rings.len() {
        let state = &service.region.kthread(k as u16).state.0;
        if state.load().0 != KthreadState::Running {
            continue;
        }
        let has_read = (0..READ).filter(|_| read(service, k, flows, seen, buffer)).count() > 0;
        if !has_read {
            service.region.kthread(k as u16).state.0.set_parked(service.generations[k]);
        }
    }
}

/// Reads a frame of kthread `k`'s ring, or of that of another kthread, whose work it takes. Returns
/// false if there is none.
fn read(
    service: &mut Program,
    k: usize,
    flows: &mut [Flow],
    seen: &mut Delivery,
    buffer: &mut FrameBuffer,
) -> bool {
    let count = service.rings.len();
    (0..count).any(|step| read_ring(service, (k + step) % count, flows, seen, buffer))
}

/// Reads the next frame of this ring, or first of the ring that a fence in it names.
fn read_ring(
    service: &mut Program,
    at: usize,
    flows: &mut [Flow],
    seen: &mut Delivery,
    buffer: &mut FrameBuffer,
) -> bool {
    loop {
        let (ring, _) = &mut service.rings[at];
        match ring.next().expect("the switch keeps the protocol") {
            None => return false,
            Some(Next::Frame(record)) => {
                let frame = record.copy_frame(buffer);
                let word = |at| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
                let (flow, number) = (&mut flows[word(HEADERS) as usize], word(HEADERS + 4));
                seen.delivered += 1;
                seen.reordered += u64::from(number != flow.to_arrive);
                flow.to_arrive = number + 1;
                record.advance();
                ring.publish();
                return true;
            }
            Some(Next::Fence(fence)) => {
                let (older, position) = (usize::from(fence.kthread()), fence.position());
                if !service.rings[older].1.has_passed(position) {
                    return read_ring(service, older, flows, seen, buffer);
                }
                let (ring, _) = &mut service.rings[at];
                if let Ok(Some(Next::Fence(fence))) = ring.next() {
                    fence.advance();
                }
                ring.publish();
            }
        }
    }
}

/// Returns the address of a program by its number.
fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number as u8 + 10)
}

/// Returns a numbered frame of a flow to this address.
fn frame(to: &Ipv4Addr, flow: usize, number: u32) -> Vec<u8> {
    let payload = [flow as u32, number].map(u32::to_be_bytes).concat();
    let len = UDP_HEADER + payload.len();
    let mut frame = vec![0; HEADERS];
    let packet = PacketInfo {
        addresses: Addresses::V4 { source: Ipv4Addr::new(10, 77, 200, 1), destination: *to },
        protocol: IpProtocol::UDP,
        hop_limit: DEFAULT_TTL,
        traffic_class: 0,
    };
    let stations = Stations { source: STATION, destination: MacAddr::derived(*to) };
    let (headers, udp) = frame.split_at_mut(ETHERNET_HEADER + IPV4_HEADER);
    packet.write_headers(headers, stations, Fragmenting::Forbidden, len);
    udp[..2].copy_from_slice(&(4000 + flow as u16).to_be_bytes());
    udp[2..4].copy_from_slice(&7u16.to_be_bytes());
    udp[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_once_and_in_order_while_flow_groups_move_and_no_core_stays_free() {
        let count = 20_000;
        for cores in [4, 16] {
            let seen = deliver(cores, count);
            assert_eq!((seen.delivered, seen.lost, seen.reordered), (count, 0, 0), "{seen:?}");
            assert_eq!(seen.looks_beside_free_core, 0, "{seen:?}");
            assert!(seen.moved_groups > 100 && seen.fenced_groups > 0, "{seen:?}");
        }
    }
}
