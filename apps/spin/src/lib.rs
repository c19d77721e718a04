//! Spin server: computes for as long as the request asks, then answers.
//!
//! Owns the [calibrated work](work), the execution of a request ([`handle`]), the [service] on
//! Tailwater with its [classes] of requests and a batch job in its [background], the same on
//! [kernel sockets](linux) for baselines, and their [command line](cli). The service is that of
//! Shenango NSDI'19, section 7.1; the protocol is [`tailwater_workload::spin`].
//!
//! Every system under comparison runs [`handle`], so they differ only in what carries the request
//! to it.

#![forbid(unsafe_code)]

pub mod background;
pub mod classes;
pub mod cli;
pub mod linux;
pub mod service;
pub mod work;

pub use work::Spinner;

use tailwater_workload::spin::{DecodeError, REPLY_LEN, Reply, Request};

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests answered.
    pub served: u64,
    /// Datagrams that are not requests, ignored.
    pub malformed: u64,
    /// Replies that could not be sent.
    pub unsent: u64,
}

/// Executes the request in `bytes`: computes, calling `poll` at least every 200 ns, and returns the
/// reply.
///
/// `now_ns` is any monotonic clock; it is read before and after the work. Pass one that is cheap on
/// the calling thread.
///
/// # Errors
/// What is wrong with the bytes; nothing was computed then, and no reply is due.
#[inline]
pub fn handle(
    bytes: &[u8],
    spinner: &Spinner,
    now_ns: impl Fn() -> u64,
    poll: &mut impl FnMut(),
) -> Result<[u8; REPLY_LEN], DecodeError> {
    let request = Request::decode(bytes)?;
    let start_ns = now_ns();
    spinner.work(request.work_ns, poll);
    Ok(Reply { request, served_ns: now_ns().saturating_sub(start_ns) }.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_request_is_worked_on_and_answered() {
        // One iteration per ns, 100 ns between polls.
        let spinner = Spinner::with_speed(1_000_000);
        let request = Request { id: 7, work_ns: 1_000, sent_ns: 3 };
        let clock = Cell::new(100);
        let polls = Cell::new(0);
        let reply = handle(
            &request.encode(),
            &spinner,
            || {
                clock.set(clock.get() + 50);
                clock.get()
            },
            &mut || polls.set(polls.get() + 1),
        );
        assert_eq!(Reply::decode(&reply.unwrap()), Ok(Reply { request, served_ns: 50 }));
        assert_eq!(polls.get(), 10);
    }

    #[test]
    fn what_is_no_request_is_not_worked_on() {
        let spinner = Spinner::with_speed(1_000_000);
        let mut bytes = Request { id: 7, work_ns: 1_000, sent_ns: 3 }.encode();
        bytes[0] = 0;
        let result = handle(&bytes, &spinner, || 0, &mut || panic!("no work, no poll"));
        assert!(matches!(result, Err(DecodeError::Magic { .. })));
    }
}
