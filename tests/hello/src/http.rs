//! Both ends of a connection, on any runtime: [`serve`] answers requests, [`ask`] sends them one
//! after another until its [`Course`] is over.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, Write as WriteStream};
use hyper::service::service_fn;
use hyper::{Request, Response};

use crate::Result;

const ANSWER: &[u8] = b"hello";

/// Answers each request of the connection with `hello`, until its end.
pub async fn serve(stream: impl Read + WriteStream + Unpin + 'static) {
    let hello = service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(ANSWER))))
    });
    // The error is that the client is gone.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, hello).await;
}

/// A future that drives a connection to its end.
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time in which answers are counted.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    from: Instant,
    until: Instant,
}

impl Course {
    /// Returns a course that counts for `counted` from the end of `warm_up` on.
    pub fn new(warm_up: Duration, counted: Duration) -> Self {
        let from = Instant::now() + warm_up;
        Self { from, until: from + counted }
    }

    /// Prints the rate and the median latency of the answers, whose latencies in nanoseconds these
    /// are, in any order.
    ///
    /// # Errors
    /// Without answers, or if they cannot be printed.
    pub fn report(&self, mut latencies_ns: Vec<u64>) -> Result<()> {
        if latencies_ns.is_empty() {
            return Err("no request was answered in the counted time".into());
        }
        let middle = latencies_ns.len() / 2;
        let rate = latencies_ns.len() as f64 / (self.until - self.from).as_secs_f64();
        let (_, p50_ns, _) = latencies_ns.select_nth_unstable(middle);
        let p50_us = *p50_ns as f64 / 1e3;
        let mut out = std::io::stdout().lock();
        writeln!(out, "rps {rate}\np50_us {p50_us}")?;
        Ok(out.flush()?)
    }
}

/// Sends requests over the connection, each after the answer to the one before, and checks the
/// answers. `spawn` starts the task that drives the connection. Returns the latencies in the
/// counted time, in nanoseconds.
///
/// # Errors
/// If the connection fails or an answer is not `hello`.
pub async fn ask<S, D>(stream: S, course: Course, spawn: impl FnOnce(Driver) -> D) -> Result<Vec<u64>>
where
    S: Read + WriteStream + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let driver = spawn(Box::pin(async move {
        // Its errors are also those of the requests.
        let _ = connection.await;
    }));
    let mut latencies_ns = Vec::new();
    loop {
        let began = Instant::now();
        if began >= course.until {
            // Dropped only now: a driver may end with its handle.
            drop(driver);
            return Ok(latencies_ns);
        }
        let request = Request::get("/").header("host", "hello").body(Full::<Bytes>::default())?;
        // The connection's task may not have seen yet that the last answer was read to its end.
        sender.ready().await?;
        let answer = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        if answer != ANSWER {
            return Err(format!("the server answered {answer:?}, not `hello`").into());
        }
        let now = Instant::now();
        if began >= course.from && now <= course.until {
            latencies_ns.push((now - began).as_nanos() as u64);
        }
    }
}
