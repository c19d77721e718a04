//! Servers of classified requests: short ones never wait behind long ones (Shinjuku, NSDI'19).
//!
//! A [`Dispatcher`] runs requests on threads of its own, in the order of a [`Policy`]: the same
//! code that the simulator runs. A request that has used up its quantum while others wait gives way
//! at its next poll point ([`poll`](crate::poll), [`preemptible`](crate::preemptible)); it keeps
//! its stack, and runs on when the policy says so. [`UdpServer`] feeds one from a socket, and
//! `TcpServer` (feature `tcp`) from connections; any other source does so with
//! [`Dispatcher::submit`].
//!
//! ```standalone_crate
//! use std::time::Duration;
//! use tailwater::dispatch::{RequestClass, Service, Settings, UdpServer};
//! use tailwater::net::UdpSocket;
//!
//! struct Length;
//!
//! impl Service for Length {
//!     fn classify(&self, request: &[u8]) -> usize {
//!         usize::from(request.len() > 100)
//!     }
//!
//!     fn handle(&self, request: &[u8], reply: &mut Vec<u8>) {
//!         reply.extend_from_slice(&(request.len() as u32).to_be_bytes());
//!     }
//! }
//!
//! #[tailwater::main]
//! fn main() {
//!     let settings = Settings::new("mq:5us".parse().unwrap())
//!         .class(RequestClass::new("short").slo(Duration::from_micros(50)))
//!         .class(RequestClass::new("long").slo(Duration::from_millis(5)));
//!     let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
//!     let address = socket.local_addr().unwrap();
//!     let server = UdpServer::start(socket, Length, settings).unwrap();
//!
//!     let client = UdpSocket::bind("127.0.0.1:0").unwrap();
//!     let mut reply = [0; 4];
//!     client.send_to(b"hello", address).unwrap();
//!     client.recv_from(&mut reply).unwrap();
//!     assert_eq!(u32::from_be_bytes(reply), 5);
//!     assert_eq!(server.stats()[0].accepted, 1);
//! }
//! ```
//!
//! # How it works
//! There are as many lanes as kthreads. A lane is a thread that asks the policy for a request, runs
//! it, and asks again. Between two requests it lets other threads go first, which may bring
//! some. Lanes are ordinary user threads, so the IOKernel lends a further core when they have
//! to wait for one. The dispatcher is *inline*: each lane asks for itself, under a short lock. With
//! [`Settings::dispatchers`] one or more threads with kthreads of their own do so for all, and hand
//! requests to the lanes ahead of time.
//!
//! A request that blocks leaves its lane, which goes on with another; it competes again when it has
//! used up a quantum. Under a policy without preemption it never does.
//!
//! A server and its threads last as long as the process.
//!
//! # Bounds
//! A request that finds [`queue`](Settings::queue) others waiting is dropped and counted. In a
//! server each class has an equal share of the queue, so that long requests do not take the places
//! of short ones: a connection waits for a place, a datagram that finds none is dropped. While
//! [`preempted`](Settings::preempted) requests are, of each class its share, no further one of the
//! class begins until one has ended; each lane may add one. At most [`blocked`](Settings::blocked)
//! have left their lanes because they blocked; one more keeps its lane while it waits, so that
//! others wait in the queue. Both bound the threads of a dispatcher, of which it keeps 64 and one
//! for each lane while they have nothing to do.
//!
//! A handler without poll points is preempted by a signal, after some milliseconds, unless user
//! threads share their thread-locals (`RuntimeBuilder::shared_tls`).

mod dedicated;
mod dispatcher;
mod permits;
mod pool;
mod publish;
mod server;
mod settings;
mod shares;
mod spares;
mod stats;
mod table;
#[cfg(feature = "tcp")]
mod tcp;
mod threads;
mod udp;

/// The interface of a policy, and the policies there are: for a [policy of the program's
/// own](Settings::with_own_policy).
pub mod order {
    pub use tailwater_sched::Nanos;
    pub use tailwater_sched::dispatch::*;
}

pub use dispatcher::{Dispatcher, Refused, Request};
pub use settings::{Policy, PolicyError, RequestClass, Requeue, Settings};
pub use stats::{ClassStats, Times};
#[cfg(feature = "tcp")]
pub use tcp::{ConnectionStats, Frame, Framing, TcpServer};
pub use udp::{Service, UdpServer};
