//! A runtime's overwritten shared memory, as input of the IOKernel's egress path, allocator and
//! switch.
//!
//! Input: a sequence of steps, each a control byte followed by its arguments (integers little
//! endian).
//!
//! | control byte | arguments | step |
//! |---|---|---|
//! | 0-63 | offset (u32), word (u64) | a word somewhere in the region |
//! | 64-95 | word (u64) | a word of a kthread's state, queue and ring positions, chosen by the control byte |
//! | 96-159 | length (u8), bytes | a frame with an honest record header at the egress ring's head, as if from its kthread |
//! | 160-223 | time step (u16) | the IOKernel's loop goes round; odd: with a look at all queues |
//! | 224-255 | length (u8), bytes | a frame arrives from the port 1, 2, 4 .. 128 times over: enough to fill a ring |

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_iokernel::fuzzing::{Arena, HOSTILE, KTHREADS, RING_BYTES, STATION, ip6_of};
use tailwater_wire::MacAddr;

/// Maximum number of steps in one run.
const MAX_STEPS: usize = 256;
/// Offset of the words of kthread 0, and the distance from one kthread's to the next
/// (`tailwater_shm::layout`).
const WORDS: usize = 4096;
const WORDS_STRIDE: usize = 512;
/// Offset of the rings: after two pages.
const RINGS: usize = 8192;
const RECORD_HEADER: usize = 16;
const LINE: usize = 64;

/// Bytes read front to back; a missing byte ends the run.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.u8()?;
        self.take(n.into())
    }
}

/// The actions of the hostile runtime.
struct Hostile {
    arena: Arena,
    /// Lines written to each egress ring according to the protocol.
    heads: [usize; KTHREADS as usize],
    /// Number of its frames that were delivered.
    left: usize,
}

impl Hostile {
    fn store(&self, offset: usize, word: u64) {
        let offset = offset % self.arena.region.len() / 8 * 8;
        // SAFETY: in bounds and aligned; the other side uses atomics only, and this process
        // accesses the region through nothing else.
        unsafe { &*self.arena.region.base().add(offset).cast::<AtomicU64>() }.store(word, Relaxed);
    }

    /// Writes a record as an honest producer would, but with any frame.
    fn send(&mut self, kthread: usize, frame: &[u8]) {
        let ring_lines = RING_BYTES as usize / LINE;
        let lines = (frame.len() + RECORD_HEADER).div_ceil(LINE);
        if self.heads[kthread] % ring_lines + lines >= ring_lines {
            return;
        }
        let ring = RINGS + (2 * kthread + 1) * RING_BYTES as usize;
        let at = ring + self.heads[kthread] % ring_lines * LINE;
        let mut body = frame.to_vec();
        body.resize(lines * LINE - RECORD_HEADER, 0);
        for (i, word) in body.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            self.store(at + RECORD_HEADER + i * 8, word);
        }
        self.store(at, frame.len() as u64 | 1 << 16);
        self.heads[kthread] += lines;
    }

    fn step(&mut self, step: u8, input: &mut Input<'_>) -> Option<()> {
        let kthread = usize::from(step) % usize::from(KTHREADS);
        match step {
            0..=63 => {
                let (offset, word) = (input.u32()?, input.u64()?);
                self.store(offset as usize, word);
            }
            64..=95 => {
                // Grant, state, three words of status, both tails, how many steps of traced
                // requests.
                let field = [0, 64, 128, 136, 144, 192, 256, 320][usize::from(step) / 4 % 8];
                self.store(WORDS + kthread * WORDS_STRIDE + field, input.u64()?);
            }
            96..=159 => self.send(kthread, input.bytes()?),
            160..=223 => self.arena.pass(u32::from(input.u16()?) * 16, step & 1 == 1),
            224..=255 => {
                let mut frame = input.bytes()?.to_vec();
                if let Some(source) = frame.get_mut(6..12) {
                    source.copy_from_slice(&STATION.0);
                }
                for _ in 0..1 << (step % 8) {
                    self.arena.inject(&frame);
                }
            }
        }
        Some(())
    }

    /// Checks that frames that left the IOKernel have their true source. The port is trusted: the
    /// contents of its frames are arbitrary.
    fn check_outgoing(&mut self) {
        while let Some(frame) = self.arena.at_station() {
            check_sender(&frame);
            self.left += 1;
        }
        while let Some(frame) = self.arena.at_honest() {
            if frame[6..12] != STATION.0 {
                check_sender(&frame);
                self.left += 1;
            }
        }
    }
}

fn check_sender(frame: &[u8]) {
    assert_eq!(frame[6..12], MacAddr::derived(HOSTILE).0, "a frame left with a forged MAC address");
    match frame[12..14] {
        [8, 0] => assert_eq!(frame[26..30], HOSTILE.octets(), "a forged IPv4 source left"),
        [8, 6] => {
            assert_eq!(frame[22..28], MacAddr::derived(HOSTILE).0, "a forged ARP sender left");
            assert!(
                frame[28..32] == HOSTILE.octets() || frame[28..32] == [0; 4],
                "a forged ARP address left"
            );
        }
        [0x86, 0xdd] => check_ipv6(frame),
        ref other => panic!("a frame of EtherType {other:02x?} left"),
    }
}

/// Messages that only routers send: listener query, router advertisement, redirect, renumbering.
const OF_ROUTERS: [u8; 4] = [130, 134, 137, 138];

/// Checks that an IPv6 packet has its true source and speaks only for its sender, whatever headers
/// it has.
fn check_ipv6(frame: &[u8]) {
    let own = [Some(MacAddr::derived(HOSTILE).link_local()), ip6_of(HOSTILE)];
    let own = own.map(|ip| ip.map(|ip| ip.octets()));
    let is_own = |address: &[u8]| own.iter().flatten().any(|ip| ip == address);
    let unspecified = frame[22..38] == [0; 16];
    assert!(unspecified || is_own(&frame[22..38]), "a forged IPv6 source left");
    let (mut next, mut at, mut fragmented) = (frame[20], 54, false);
    // Every header takes at least eight bytes; one that does not parse would panic here.
    while matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140) {
        let units = usize::from(frame[at + 1]);
        let size = match next {
            44 => 8,
            51 => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        if next == 44 {
            fragmented = true;
            if u16::from_be_bytes([frame[at + 2], frame[at + 3]]) >> 3 != 0 {
                return;
            }
        }
        assert!(next != 43 || frame[at + 3] == 0, "a source route left");
        (next, at) = (frame[at], at + size);
    }
    assert!(!unspecified || next == 58, "a packet without a source left");
    if next != 58 {
        return;
    }
    let end = 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]));
    let message = &frame[at..end];
    assert!(!OF_ROUTERS.contains(&message[0]), "a message of type {} left", message[0]);
    if !matches!(message[0], 133 | 135 | 136) {
        return;
    }
    assert!(!fragmented && frame[21] == 255, "neighbour discovery that receivers must ignore left");
    if message[0] == 136 || (message[0] == 135 && unspecified) {
        assert!(is_own(&message[8..24]), "a foreign address was advertised");
    }
    let mut options = &message[if message[0] == 133 { 8 } else { 24 }..];
    while let [kind, units, ..] = *options {
        if matches!(kind, 1 | 2) {
            assert_eq!(options[2..8], MacAddr::derived(HOSTILE).0, "a foreign MAC address was advertised");
        }
        options = &options[usize::from(units) * 8..];
    }
}

/// Writes arbitrary bytes into everything that a runtime can write.
pub fn egress(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) -> Hostile {
    let mut hostile = Hostile { arena: Arena::new(), heads: [0; KTHREADS as usize], left: 0 };
    let mut input = Input(data);
    for _ in 0..MAX_STEPS {
        let Some(step) = input.u8() else { break };
        if hostile.step(step, &mut input).is_none() {
            break;
        }
        hostile.check_outgoing();
    }
    // Time passes, so that every watchdog may act.
    for _ in 0..8 {
        hostile.arena.pass(2_000_000, true);
        hostile.check_outgoing();
    }
    hostile
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of frames that left, and whether the registration survived.
    fn outcome(seed: &str) -> (usize, bool) {
        let seeds = crate::seeds::of("egress");
        let (_, bytes) = seeds.iter().find(|(name, _)| *name == seed).expect("a seed of this name");
        let hostile = run(bytes);
        (hostile.left, hostile.arena.hostile_is_registered())
    }

    #[test]
    fn seeds_reach_what_they_are_meant_to_reach() {
        assert_eq!(outcome("frame"), (1, true));
        assert_eq!(outcome("forged"), (0, true));
        assert_eq!(outcome("advertisement"), (2, true), "to all nodes: the port and the neighbour");
        assert_eq!(outcome("forged-advertisement"), (0, true));
        assert_eq!(outcome("life"), (0, true));
        assert_eq!(outcome("wild-tail"), (0, false));
        assert_eq!(outcome("wild-word"), (0, false));
    }
}
