//! Two connections over emulated links in virtual time, drawn from seeds; and over the same links
//! in real time, beside Linux ([`beside_linux`]).
//!
//! Owns links (rate, delay, queue, loss, reordering, duplication, corruption, a shrinking MTU, ECN
//! marks) and applications that read and write as they like. Uses nothing but the crate's public
//! surface. What must hold for each seed: all bytes arrive in order or the connection fails with an
//! error on a path that gave it reason to; memory stays bounded; both sides end in a bounded number
//! of steps.

mod beside_linux;
mod dice;
mod floods;
mod goodput;
mod link;
mod seeds;
mod world;
