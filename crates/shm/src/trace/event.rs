//! The events of a trace, as the IOKernel records them.
//!
//! Pure values and their encoding: five words (`TraceEvent::to_words`), of which most events need
//! three; the slot that holds them carries the time. Decoding refuses what no encoder makes.

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

/// One event. Its time is that of its slot, unless a field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEvent {
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

/// Head (tag, flag or small number, number of the trace), whose, and three words.
pub(super) type Words = [u64; 5];

/// The tag of the second slot of an event that has more than three words.
pub(super) const CONTINUED: u8 = 9;

/// The events with more than three words.
const ARRIVED: u8 = 1;
const CLAIMED: u8 = 4;

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

impl TraceEvent {
    /// Returns whether the event with this first word has more than three.
    #[inline(always)]
    pub(super) fn is_long_head(head: u64) -> bool {
        matches!(head as u8, ARRIVED | CLAIMED)
    }

    /// Returns the event as words.
    #[inline(always)]
    pub(super) fn to_words(self) -> Words {
        match self {
            Self::Arrived { id, port, len, due, polled } => {
                [head(ARRIVED, 0, port, id), len.into(), due, polled, 0]
            }
            Self::InRing { id, who, unserved, lines } => {
                [head(2, unserved.into(), 0, id), whose(who), lines.into(), 0, 0]
            }
            Self::Undelivered { id, who, why } => [head(3, why as u8, 0, id), whose(who), 0, 0, 0],
            Self::Claimed { who, written } => {
                let Written { id, kind, at, argument } = written;
                [head(CLAIMED, 0, 0, id), whose(who), kind.into(), at, argument]
            }
            Self::Seen { id, who } => [head(5, 0, 0, id), whose(who), 0, 0, 0],
            Self::Left { id, who, taken } => [head(6, taken.into(), 0, id), whose(who), 0, 0, 0],
            Self::Core { core, step, handoff, who, from } => {
                [head(7, step as u8, core, handoff as u32), whose(who), from.map_or(NO_KTHREAD, whose), 0, 0]
            }
            Self::Lost { who, steps } => [head(8, 0, 0, 0), whose(who), steps, 0, 0],
        }
    }

    /// Returns the event of these words; `None` if no event of this version has them.
    pub(super) fn from_words([first, owner, a, b, c]: Words) -> Option<Self> {
        let (tag, small, x, id) =
            (first as u8, (first >> 8) as u8, (first >> 16) as u16, (first >> 32) as u32);
        let flag = match small {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Some(match tag {
            ARRIVED => Self::Arrived { id, port: x, len: owner.try_into().ok()?, due: a, polled: b },
            2 => Self::InRing { id, who: who(owner)?, unserved: flag?, lines: a.try_into().ok()? },
            3 => {
                let why = if flag? { Undelivered::Gone } else { Undelivered::Full };
                Self::Undelivered { id, who: who(owner)?, why }
            }
            CLAIMED => {
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
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub const WHO: Who = Who { runtime: u32::MAX, kthread: 255 };

    #[test]
    fn every_event_survives_its_encoding() {
        let written = Written { id: 9, kind: 0x102, at: u64::MAX, argument: 77 };
        let mut events = vec![
            TraceEvent::Arrived { id: u32::MAX, port: 3, len: 1514, due: 1, polled: 2 },
            TraceEvent::InRing { id: 1, who: WHO, unserved: true, lines: 70_000 },
            TraceEvent::Undelivered { id: 1, who: WHO, why: Undelivered::Full },
            TraceEvent::Undelivered { id: 1, who: WHO, why: Undelivered::Gone },
            TraceEvent::Claimed { who: WHO, written },
            TraceEvent::Seen { id: 5, who: WHO },
            TraceEvent::Left { id: 5, who: WHO, taken: false },
            TraceEvent::Lost { who: WHO, steps: u64::MAX },
        ];
        for step in CORE_STEPS {
            for handoff in HANDOFFS {
                for from in [None, Some(Who { runtime: 0, kthread: 0 }), Some(WHO)] {
                    events.push(TraceEvent::Core { core: 65_535, step, handoff, who: WHO, from });
                }
            }
        }
        for event in events {
            let words = event.to_words();
            assert_eq!(TraceEvent::from_words(words), Some(event));
            let is_long = matches!(event, TraceEvent::Arrived { .. } | TraceEvent::Claimed { .. });
            assert_eq!(is_long, TraceEvent::is_long_head(words[0]));
            assert!(is_long || words[3..] == [0, 0], "{event:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_encodes_to_an_event_again(mut words in prop::array::uniform5(any::<u64>()), tag in 0u64..12) {
            for mask in [!0xff, 0x0003_ffff_03ff & !0xff, 0x3ff & !0xff] {
                words[0] = words[0] & mask | tag;
                words[1] &= 0xffff_ffff_ffff;
                if let Some(event) = TraceEvent::from_words(words) {
                    prop_assert_eq!(TraceEvent::from_words(event.to_words()), Some(event));
                }
                words[2] &= 0xffff_ffff;
            }
        }
    }
}
