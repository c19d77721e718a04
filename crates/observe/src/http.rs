//! As much of HTTP/1.1 (RFC 9112) as three readers need: Prometheus, a browser, a shell.
//!
//! Owns one request and its response: `GET` and `HEAD`, no bodies, one request a connection. A
//! client is bounded in bytes and in time, however it sends.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longest request line with headers.
const MOST_BYTES: usize = 8 << 10;
/// Longest time for a request, and for taking its response.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// A request that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The path, without what follows `?`.
    pub path: String,
    /// Only the head of the response is wanted.
    pub head_only: bool,
    /// The `Host` header.
    pub host: String,
    /// The `Accept` header.
    pub accept: String,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Its status: number and words.
    pub status: &'static str,
    /// Type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// Returns a response that succeeds.
    pub fn ok(content_type: &'static str, body: impl Into<String>) -> Self {
        Self { status: "200 OK", content_type, body: body.into() }
    }

    /// Returns a response of one line of text.
    pub fn line(status: &'static str, text: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }
}

/// Reads a request; `Err` is the response to what cannot be read, or `None` if there is nobody to
/// answer.
pub fn read(stream: &mut TcpStream) -> Result<Request, Option<Response>> {
    let until = Instant::now() + DEADLINE;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(Some(Response::line("408 Request Timeout", "the request took too long")));
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err(None),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Err(None),
        }
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            return parse(&bytes[..end]).map_err(Some);
        }
        if bytes.len() > MOST_BYTES {
            let why = "the request line and headers have over 8 KiB";
            return Err(Some(Response::line("431 Request Header Fields Too Large", why)));
        }
    }
}

fn parse(head: &[u8]) -> Result<Request, Response> {
    let bad = || Response::line("400 Bad Request", "this is no HTTP request");
    let head = std::str::from_utf8(head).map_err(|_| bad())?;
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad());
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(bad());
    }
    let head_only = match method {
        "GET" => false,
        "HEAD" => true,
        _ => {
            return Err(Response::line(
                "405 Method Not Allowed",
                "only GET and HEAD: nothing can be changed",
            ));
        }
    };
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let path = target.split('?').next().unwrap_or_default().to_owned();
    Ok(Request { path, head_only, host: header("host"), accept: header("accept") })
}

/// Returns whether the name by which a client on this machine reached the loopback address is one
/// of that address. A web page of another site can make its own name resolve to it, and read what a
/// browser here gets (DNS rebinding).
pub fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.is_empty() || name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Writes a response, at most until [`DEADLINE`] from now.
///
/// # Errors
/// If the client is gone, or does not take it in time.
pub fn write(stream: &mut TcpStream, response: &Response, head_only: bool) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len()
    );
    let body = if head_only { "" } else { response.body.as_str() };
    let bytes = [head.as_bytes(), body.as_bytes()].concat();
    let until = Instant::now() + DEADLINE;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => rest = &rest[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_refused_with_the_reason() {
        let request =
            parse(b"GET /metrics?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9757\r\nACCEPT: text/plain").unwrap();
        assert_eq!((request.path.as_str(), request.accept.as_str()), ("/metrics", "text/plain"));
        assert!(parse(b"HEAD / HTTP/1.0").unwrap().head_only);
        for (head, status) in [
            (&b"POST / HTTP/1.1"[..], "405"),
            (b"GET  / HTTP/1.1", "400"),
            (b"GET http://x/ HTTP/1.1", "400"),
            (b"\xff\xfe", "400"),
            (b"", "400"),
        ] {
            assert!(parse(head).unwrap_err().status.starts_with(status), "{head:?}");
        }
    }

    #[test]
    fn a_name_of_another_site_is_not_this_machines() {
        for own in ["127.0.0.1:9757", "[::1]:9757", "localhost", "LOCALHOST:1", ""] {
            assert!(is_own_name(own), "{own}");
        }
        for other in ["evil.example:9757", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!is_own_name(other), "{other}");
        }
    }
}
