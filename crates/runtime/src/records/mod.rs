//! The records: user threads, kthreads and the runtime, and what each of them owns.
//!
//! Records hold state and the operations that keep it consistent. What makes threads run, wait and
//! move is in [`verbs`](crate::verbs).

pub mod atexit;
pub mod background;
pub mod custom_stacks;
pub mod identity;
pub mod ingress;
pub mod iokernel;
pub mod kthread;
pub mod meter;
pub mod placing;
pub mod registry;
pub mod request;
pub mod runtime;
pub mod serving;
pub mod stack;
pub mod stacks;
pub mod uthread;
