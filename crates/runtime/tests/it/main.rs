//! The runtime through its public API. A process has one runtime, so a test that starts one runs in
//! a process of its own.

mod background;
mod background_parallel;
mod blocking;
mod c_poll_points;
mod common;
mod cores;
mod cores_one_kthread;
mod debugging;
mod dispatch;
mod dispatch_dedicated;
mod dispatch_dedicated_two;
mod dispatch_memory;
mod dispatch_parallel;
mod dispatch_tcp;
mod events;
mod events_one_kthread;
mod examples;
mod exclusive;
mod foreign_malloc;
mod future;
mod gdb;
mod membarrier;
mod pinned;
mod placement;
mod preempt_flood;
mod preemptible;
mod process_calls;
mod quantum;
mod quantum_off;
mod readiness;
mod reset_sleep;
mod run_order;
mod shared_tls;
mod signal;
mod soundness;
mod std_locks;
mod tcp;
mod tcp_options;
mod tcp_parallel;
mod test_attribute;
mod thread_api;
mod thread_faults;
mod threads;
mod time;
mod timers_behind;
mod udp;
mod udp_parallel;
mod wake_all;

#[global_allocator]
static ALLOC: tailwater::Alloc = tailwater::Alloc::new();
