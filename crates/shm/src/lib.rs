//! Shared memory between the IOKernel and its runtimes: layout, rings, grant and park protocol.
//!
//! # What this crate owns
//! * [`layout`]: the byte-for-byte shape of a runtime's region, versioned and checked at compile
//!   time;
//! * [`ring`]: single-producer single-consumer byte rings that carry frames (one pair per kthread);
//! * [`grant`]: the words through which cores are lent, taken back and given up;
//! * [`classes`]: the page in which a program publishes what became of its requests;
//! * [`park`]: the futex words on which kthreads sleep;
//! * [`board`]: the words at which the kthread that cedes a core wakes the next owner;
//! * [`account`]: what was used, and when it is paid;
//! * [`adaptive_spin`]: how long either side polls before it sleeps;
//! * [`priority`]: the scheduling parameters of kthreads, so that Linux does not delay their
//!   hand-offs;
//! * [`memory`]: sealed memory files and their mappings;
//! * [`control`]: the registration messages that cross the control socket;
//! * [`clock`]: the cycle counter both sides stamp with;
//! * [`version`]: which builds understand each other;
//! * [`last_error`]: the error of a system call without a safe wrapper, for the crates
//!   above that make such calls.
//!
//! # Trust
//! A runtime trusts the IOKernel that it attached to. The IOKernel trusts **no byte** a runtime can
//! write: it creates and seals every memory file (a runtime cannot shrink one under it), keeps its
//! own copy of everything it laid out, reads shared words through atomics and frames by copying,
//! and bounds every value before use. An impossible value costs that runtime its registration and
//! nothing else.
//!
//! # Invariants
//! * No reference (`&T` to plain data, `&mut T`) is ever made to memory a distrusted peer can
//!   write.
//! * Every non-`Relaxed` access names its partner in a comment;
//!   `docs/src/design/memory-ordering.md` lists the pairs.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("Tailwater runs on x86-64 Linux only: build with --target x86_64-unknown-linux-gnu");

pub mod account;
pub mod adaptive_spin;
pub mod board;
pub mod classes;
pub mod clock;
pub mod control;
mod errno;
pub mod grant;
pub mod layout;
pub mod memory;
pub mod park;
pub mod priority;
pub mod ring;
pub mod sync;
pub mod trace;
pub mod version;

pub use clock::{Clock, Cycles};
pub use errno::last_error;
pub use grant::{Generation, Grant, GrantWord, KthreadState, NextOwner, StateWord};
pub use layout::{KthreadShared, RegionSpec};
pub use park::Parker;
pub use version::Version;
