//! The records of a trace: the steps of a traced request in a runtime, and the events sent to a
//! tracer.
//!
//! Pure values and their two encodings: two words in a kthread's buffer (`Step::to_bits`),
//! [`EVENT_BYTES`] bytes in a tracer's ring ([`Event::encode`]), whose record carries the time.
//! Decoding refuses what no encoder makes.

use super::step::Written;

/// A kthread of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    /// Number of the runtime in the statistics.
    pub runtime: u32,
    /// Number of the kthread.
    pub kthread: u16,
}

/// How a core changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handoff {
    /// A busy kthread cedes it at a poll point.
    Polling,
    /// It is taken from an idle kthread.
    Idle,
    /// The core was free.
    Wake,
    /// A busy kthread needed the preempt signal.
    Signal,
    /// A busy kthread ceded in time neither when asked nor when signalled; its successor was woken
    /// beside it.
    Bypass,
    /// The owner's program ended, or the owner had not started on the core.
    Evict,
}

const HANDOFFS: [Handoff; 6] =
    [Handoff::Polling, Handoff::Idle, Handoff::Wake, Handoff::Signal, Handoff::Bypass, Handoff::Evict];

/// A step in the life of a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoreStep {
    /// It was decided that the kthread gets it.
    Decided,
    /// The kthread was sent the preempt signal.
    Signalled,
    /// The kthread gave it up, or it was taken from the kthread.
    Ceded,
    /// The kthread was seen running on it.
    Running,
}

const CORE_STEPS: [CoreStep; 4] =
    [CoreStep::Decided, CoreStep::Signalled, CoreStep::Ceded, CoreStep::Running];

/// Why a frame reached no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undelivered {
    /// The ingress ring was full.
    Full,
    /// Its runtime was about to end.
    Gone,
}

/// One record of a tracer's ring. Its time is the record's stamp, unless a field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A frame was chosen as it came from a port.
    Arrived {
        /// Number of the trace.
        id: u32,
        /// Number of the port.
        port: u16,
        /// Bytes of the frame.
        len: u16,
        /// When it was due, if the port reports that; otherwise the time of the event.
        due: u64,
        /// When the port had been polled before: the frame cannot have waited there longer than
        /// since then.
        polled: u64,
    },
    /// It lies in an ingress ring.
    InRing {
        /// Number of the trace.
        id: u32,
        /// Whose ring.
        who: Who,
        /// The runtime had no core, nor the promise of one, when the frame came.
        unserved: bool,
        /// Lines of 64 bytes that waited in the ring before it.
        lines: u32,
    },
    /// It was dropped instead.
    Undelivered {
        /// Number of the trace.
        id: u32,
        /// Whose ring it was for.
        who: Who,
        /// Why.
        why: Undelivered,
    },
    /// A step as written by a kthread, unverified.
    Claimed {
        /// The kthread whose buffer it was in.
        who: Who,
        /// The step.
        written: Written,
    },
    /// The reply was found in an egress ring; the number is the runtime's claim.
    Seen {
        /// Number of the trace, unverified.
        id: u32,
        /// Whose ring.
        who: Who,
    },
    /// The reply was passed on.
    Left {
        /// Number of the trace, unverified.
        id: u32,
        /// Whose ring it came from.
        who: Who,
        /// A port or another runtime's ring took it.
        taken: bool,
    },
    /// Something happened to a core.
    Core {
        /// The core.
        core: u16,
        /// What happened.
        step: CoreStep,
        /// How it changes hands.
        handoff: Handoff,
        /// The kthread concerned.
        who: Who,
        /// For a decision: the previous holder.
        from: Option<Who>,
    },
    /// This many steps of a kthread were overwritten unread, according to the kthread.
    Lost {
        /// The kthread.
        who: Who,
        /// Number of steps.
        steps: u64,
    },
}

/// Length of an event in bytes.
pub const EVENT_BYTES: usize = 40;

/// Not an event of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes that are not a trace event of this version")]
pub struct NotAnEvent(usize);

/// Head (tag, flag or small number, number of the trace), whose, and three words.
type Words = [u64; EVENT_BYTES / 8];

fn head(tag: u8, small: u8, x: u16, id: u32) -> u64 {
    u64::from(tag) | u64::from(small) << 8 | u64::from(x) << 16 | u64::from(id) << 32
}

fn whose(who: Who) -> u64 {
    u64::from(who.runtime) << 16 | u64::from(who.kthread)
}

fn who(word: u64) -> Option<Who> {
    Some(Who { runtime: (word >> 16).try_into().ok()?, kthread: word as u16 })
}

/// The word for no kthread.
const NO_KTHREAD: u64 = u64::MAX;

impl Event {
    /// Returns the event as a tracer's ring carries it.
    pub fn encode(&self) -> [u8; EVENT_BYTES] {
        let words: Words = match *self {
            Self::Arrived { id, port, len, due, polled } => {
                [head(1, 0, port, id), len.into(), due, polled, 0]
            }
            Self::InRing { id, who, unserved, lines } => {
                [head(2, unserved.into(), 0, id), whose(who), lines.into(), 0, 0]
            }
            Self::Undelivered { id, who, why } => [head(3, why as u8, 0, id), whose(who), 0, 0, 0],
            Self::Claimed { who, written } => {
                let Written { id, kind, at, argument } = written;
                [head(4, 0, 0, id), whose(who), kind.into(), at, argument]
            }
            Self::Seen { id, who } => [head(5, 0, 0, id), whose(who), 0, 0, 0],
            Self::Left { id, who, taken } => [head(6, taken.into(), 0, id), whose(who), 0, 0, 0],
            Self::Core { core, step, handoff, who, from } => {
                [head(7, step as u8, core, handoff as u32), whose(who), from.map_or(NO_KTHREAD, whose), 0, 0]
            }
            Self::Lost { who, steps } => [head(8, 0, 0, 0), whose(who), steps, 0, 0],
        };
        let mut bytes = [0; EVENT_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the event in `bytes`.
    ///
    /// # Errors
    /// [`NotAnEvent`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAnEvent> {
        Self::try_decode(bytes).ok_or(NotAnEvent(bytes.len()))
    }

    fn try_decode(bytes: &[u8]) -> Option<Self> {
        let (chunks, []) = bytes.as_chunks::<8>() else { return None };
        let words: [[u8; 8]; EVENT_BYTES / 8] = chunks.try_into().ok()?;
        let [first, owner, a, b, c] = words.map(u64::from_le_bytes);
        let (tag, small, x, id) =
            (first as u8, (first >> 8) as u8, (first >> 16) as u16, (first >> 32) as u32);
        let flag = match small {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Some(match tag {
            1 => Self::Arrived { id, port: x, len: owner.try_into().ok()?, due: a, polled: b },
            2 => Self::InRing { id, who: who(owner)?, unserved: flag?, lines: a.try_into().ok()? },
            3 => {
                let why = if flag? { Undelivered::Gone } else { Undelivered::Full };
                Self::Undelivered { id, who: who(owner)?, why }
            }
            4 => {
                let written = Written { id, kind: a.try_into().ok()?, at: b, argument: c };
                Self::Claimed { who: who(owner)?, written }
            }
            5 => Self::Seen { id, who: who(owner)? },
            6 => Self::Left { id, who: who(owner)?, taken: flag? },
            7 => Self::Core {
                core: x,
                step: *CORE_STEPS.get(usize::from(small))?,
                handoff: *HANDOFFS.get(id as usize)?,
                who: who(owner)?,
                from: if a == NO_KTHREAD { None } else { Some(who(a)?) },
            },
            8 => Self::Lost { who: who(owner)?, steps: a },
            _ => return None,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHO: Who = Who { runtime: u32::MAX, kthread: 255 };

    #[test]
    fn every_event_survives_its_encoding() {
        let written = Written { id: 9, kind: 0x102, at: u64::MAX, argument: 77 };
        let mut events = vec![
            Event::Arrived { id: u32::MAX, port: 3, len: 1514, due: 1, polled: 2 },
            Event::InRing { id: 1, who: WHO, unserved: true, lines: 70_000 },
            Event::Undelivered { id: 1, who: WHO, why: Undelivered::Full },
            Event::Undelivered { id: 1, who: WHO, why: Undelivered::Gone },
            Event::Claimed { who: WHO, written },
            Event::Seen { id: 5, who: WHO },
            Event::Left { id: 5, who: WHO, taken: false },
            Event::Lost { who: WHO, steps: u64::MAX },
        ];
        for step in CORE_STEPS {
            for handoff in HANDOFFS {
                for from in [None, Some(Who { runtime: 0, kthread: 0 }), Some(WHO)] {
                    events.push(Event::Core { core: 65_535, step, handoff, who: WHO, from });
                }
            }
        }
        for event in events {
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_encodes_to_an_event_again(mut bytes in prop::collection::vec(any::<u8>(), 0..60), tag in 0u8..12) {
            if let Some(first) = bytes.first_mut() {
                *first = tag;
            }
            if let Ok(event) = Event::decode(&bytes) {
                prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
            }
            if bytes.len() >= EVENT_BYTES {
                // Plausible small numbers.
                bytes.truncate(EVENT_BYTES);
                bytes[1] %= 4;
                bytes[14..16].fill(0);
                bytes[20..24].fill(0);
                if let Ok(event) = Event::decode(&bytes) {
                    prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
                }
            }
        }
    }
}
