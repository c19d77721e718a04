//! The steps of a traced request in a runtime, and their encoding in two words of a kthread's
//! buffer.

use crate::clock::Cycles;

/// A step of a traced request in a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A kthread took the frame from the ingress ring of kthread `ring`.
    Taken {
        /// The kthread whose ring it was in.
        ring: u16,
    },
    /// The data lies in its socket.
    Delivered {
        /// A user thread that waited for it was made runnable.
        woke: bool,
        /// Datagrams before it in the socket; 0 for TCP.
        ahead: u32,
        /// User threads in the kthread's run queue afterwards.
        queue: u32,
    },
    /// The socket had no room for it: the request is lost.
    Refused,
    /// Too many traced requests wait in one socket to be distinguished: this one is not followed
    /// further.
    Untracked,
    /// A user thread has read it.
    Received,
    /// That thread left its core.
    Off {
        /// The core or its time slice was reclaimed; otherwise the thread waits for something, or
        /// yielded.
        asked: bool,
    },
    /// It runs again.
    On,
    /// The request passed to a thread that this one started.
    Passed,
    /// It waits in the queue of a dispatcher, as a request of this class; a thread that begins it
    /// writes [`Step::On`].
    Queued {
        /// Number of its class.
        class: u16,
    },
    /// The reply lies in the egress ring.
    Sent,
    /// The thread started other work, or ended, without a reply.
    Ended,
}

impl Step {
    /// Kind and argument, as a buffer holds them.
    pub fn to_bits(self) -> (u32, u64) {
        match self {
            Self::Taken { ring } => (1, ring.into()),
            Self::Delivered { woke, ahead, queue } => {
                (2 | u32::from(woke) << 8, u64::from(ahead) << 32 | u64::from(queue))
            }
            Self::Refused => (3, 0),
            Self::Untracked => (4, 0),
            Self::Received => (5, 0),
            Self::Off { asked } => (6 | u32::from(asked) << 8, 0),
            Self::On => (7, 0),
            Self::Passed => (8, 0),
            Self::Sent => (9, 0),
            Self::Ended => (10, 0),
            Self::Queued { class } => (11, class.into()),
        }
    }

    /// Returns the step with these bits, if there is one.
    pub fn from_bits(kind: u32, argument: u64) -> Option<Self> {
        let flag = match kind >> 8 {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(match (kind & 0xff, flag) {
            (1, false) => Self::Taken { ring: argument.try_into().ok()? },
            (2, woke) => Self::Delivered { woke, ahead: (argument >> 32) as u32, queue: argument as u32 },
            (3, false) => Self::Refused,
            (4, false) => Self::Untracked,
            (5, false) => Self::Received,
            (6, asked) => Self::Off { asked },
            (7, false) => Self::On,
            (8, false) => Self::Passed,
            (9, false) => Self::Sent,
            (10, false) => Self::Ended,
            (11, false) => Self::Queued { class: argument.try_into().ok()? },
            _ => return None,
        })
    }
}

/// A step as it lies in a buffer. The reader does not check the kind: see [`Step::from_bits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of the trace.
    pub id: u32,
    /// [`Step::to_bits`], if the writer follows the protocol.
    pub kind: u32,
    /// Time of the step.
    pub at: Cycles,
    /// The argument of the kind.
    pub argument: u64,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_step_survives_its_encoding() {
        for step in [
            Step::Taken { ring: 255 },
            Step::Delivered { woke: true, ahead: u32::MAX, queue: 3 },
            Step::Delivered { woke: false, ahead: 0, queue: u32::MAX },
            Step::Refused,
            Step::Untracked,
            Step::Received,
            Step::Off { asked: true },
            Step::Off { asked: false },
            Step::On,
            Step::Passed,
            Step::Queued { class: u16::MAX },
            Step::Sent,
            Step::Ended,
        ] {
            let (kind, argument) = step.to_bits();
            assert_eq!(Step::from_bits(kind, argument), Some(step));
            assert_eq!(Step::from_bits(kind | 1 << 9, argument), None);
        }
        assert_eq!(Step::from_bits(0, 0), None);
        assert_eq!(Step::from_bits(11, 1 << 16), None);
        assert_eq!(Step::from_bits(12, 0), None);
    }
}
