//! `tailwater::sync` through the public API, on user threads, on OS threads and on both at once.

mod barrier_and_groups;
mod channels;
mod mutex;
mod once;
mod rcu;
mod rwlock;
mod select;
mod semaphore;
mod signals;
mod support;

tailwater::allocator!();
