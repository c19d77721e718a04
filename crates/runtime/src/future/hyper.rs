//! The executor and the timers that `hyper` needs beside a stream.
//!
//! hyper's HTTP/1 needs neither an executor nor, unless a timeout is set, timers; its HTTP/2 needs
//! the executor.

use super::{Sleep, sleep, sleep_until, spawn};
use core::future::Future;
use core::pin::Pin;
use hyper::rt;
use std::time::{Duration, Instant};

/// Runs each future as a [task](spawn()).
///
/// # Examples
/// ```
/// use tailwater::future::hyper::Executor;
///
/// fn for_http2() -> hyper::server::conn::http2::Builder<Executor> {
///     hyper::server::conn::http2::Builder::new(Executor)
/// }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Executor;

impl<F> rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(spawn(future));
    }
}

/// Timers of Tailwater.
///
/// # Examples
/// ```
/// use tailwater::future::hyper::Timer;
///
/// fn with_timeouts() -> hyper::server::conn::http1::Builder {
///     let mut builder = hyper::server::conn::http1::Builder::new();
///     builder.timer(Timer).header_read_timeout(std::time::Duration::from_secs(5));
///     builder
/// }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Timer;

impl rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(sleep(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(sleep_until(deadline))
    }

    fn reset(&self, at: &mut Pin<Box<dyn rt::Sleep>>, deadline: Instant) {
        match at.as_mut().downcast_mut_pin::<Sleep>() {
            Some(sleep) => sleep.get_mut().reset(deadline),
            None => *at = self.sleep_until(deadline),
        }
    }
}

impl rt::Sleep for Sleep {}
