//! Traces of single requests: what is written down about a sampled frame on its way through IOKernel and runtime.
//!
//! Owns the words of it that cross a process boundary: the flag that marks a record as traced ([`FLAG_TRACED`]), the buffer in
//! which a kthread leaves its steps ([`buffer`]), and the events that a tracer is sent ([`event`]). [`flow`] says which frame
//! answers which.
//!
//! The IOKernel gives a sampled frame a number and puts it in the place of the flow hash; who handles the frame writes steps
//! with that number into its kthread's buffer, and puts it in the place of the flow hash of the reply. Nobody waits for
//! anybody: a buffer that nobody empties is overwritten, and what was lost is counted.
//!
//! # Crash and lie
//!
//! | a runtime | consequence |
//! |---|---|
//! | writes garbage steps, unknown kinds, numbers that were never given | they are passed on as alleged, with the true name of the runtime; the tracer drops what contradicts what the IOKernel saw |
//! | moves its position about | what lies between is counted as lost, of that runtime |
//! | changes a step while it is read | a step is copied once and its place checked before and after: garbage, as above, or lost |
//! | marks a frame that is no reply | as a garbage step |

pub mod buffer;
pub mod event;
pub mod flow;

pub use buffer::{Slots, TraceReader, TraceWriter};
pub use event::{CoreStep, Event, Handoff, Step, Who};
pub use flow::FlowKeys;

/// Flag of a ring record: the word of the flow hash holds the number of a trace.
///
/// The bits below are about checksums ([`crate::ring`]).
pub const FLAG_TRACED: u8 = 1 << 2;
