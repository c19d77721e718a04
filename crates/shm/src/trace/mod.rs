//! Traces of single requests: the records of a sampled frame on its path through IOKernel and
//! runtime.
//!
//! Owns the parts that cross a process boundary: the flag that marks a record as traced
//! ([`FLAG_TRACED`]), the buffer in which a kthread leaves its steps ([`buffer`]), and the events
//! that the IOKernel records ([`event`]). [`flow`] decides which frame answers which.
//!
//! The IOKernel gives a sampled frame a number and puts it in the place of the flow hash; the
//! kthread that handles the frame writes steps with that number into its buffer, and puts it in the
//! place of the flow hash of the reply. Neither side waits for the other: a buffer that is not
//! emptied is overwritten, and the lost steps are counted. Events are in a ring that is always
//! written ([`recorder`]), so that a tracer can also read what happened before it came.
//!
//! # Crash and lie
//!
//! | a runtime | consequence |
//! |---|---|
//! | writes garbage steps, unknown kinds, numbers that were never given | they are passed on as claimed, with the true name of the runtime; the tracer drops what contradicts what the IOKernel saw |
//! | moves its position about | the steps in between are counted as lost, for that runtime |
//! | changes a step while it is read | a step is copied once and its place checked before and after: garbage, as above, or lost |
//! | marks a frame that is not a reply | as a garbage step |

pub mod buffer;
pub mod event;
pub mod flow;
pub mod recorder;
mod step;

pub use buffer::{TraceReader, TraceWriter};
pub use event::{CoreStep, Handoff, TraceEvent, Who};
pub use flow::FlowKeys;
pub use recorder::{Played, Recorder, Recording};
pub use step::{Step, Written};

/// Flag of a ring record: the word of the flow hash holds the number of a trace.
///
/// The bits below are about checksums ([`crate::ring`]).
pub const FLAG_TRACED: u8 = 1 << 2;
