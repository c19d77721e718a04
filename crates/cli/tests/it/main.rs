//! The command `tailwater`, run as a user runs it.

mod batch;
mod capture;
mod commands;
mod common;
mod control_groups;
mod demo;
mod kept;
mod load;
mod load_over;
mod nat;
mod observe;
mod tap;
mod trace;
mod why;
mod xdp;

tailwater::allocator!();
